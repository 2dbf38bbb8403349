"""At most a few wrong guesses a minute from one place, counted once for tokens, cookies and codes alike."""

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from gateway.http.answers import Refusal

__all__ = ["Guesses", "TooManyGuesses", "is_loopback", "place_of"]

WINDOW = 60.0
ALLOWED = 10
PLACES = 4096

Found = TypeVar("Found")


class TooManyGuesses(Refusal):
    def __init__(self, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many wrong attempts; try again in {seconds} seconds.",
            headers={"Retry-After": str(seconds)},
        )


class Guesses:
    """Keeps the last `PLACES` places that guessed wrong; the one that guessed longest ago is forgotten first."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def judge(self, remote: str | None, check: Callable[[], Found | None], *, is_proxied: bool = False) -> Found | None:
        """Return what `check` finds; None is a wrong guess. Raise `TooManyGuesses` when there were enough of those.

        From elsewhere, `check` does not even run then. From this machine it does, so that nobody here can lock
        the owner out; but not what a proxy on this machine passes on, since everybody may be behind it.
        """
        place = f"behind {place_of(remote)}" if is_proxied else place_of(remote)
        wait = self._wait(place)
        if wait > 0 and (is_proxied or not is_loopback(remote)):
            raise TooManyGuesses(wait)
        found = check()
        if found is None and wait > 0:
            raise TooManyGuesses(wait)
        if found is None:
            self._note(place)
        return found

    def _wait(self, place: str) -> float:
        """Seconds until `place` may guess again."""
        recent = [at for at in self._wrong.get(place, ()) if at > self._monotonic() - WINDOW]
        return recent[0] + WINDOW - self._monotonic() if len(recent) >= ALLOWED else 0.0

    def _note(self, place: str) -> None:
        times = self._wrong.setdefault(place, [])
        times.append(self._monotonic())
        del times[:-ALLOWED]
        self._wrong.move_to_end(place)
        if len(self._wrong) > PLACES:
            self._wrong.popitem(last=False)


def place_of(remote: str | None) -> str:
    """Name what one person can hold: an IPv4 address, or the /64 of an IPv6 one."""
    address = _address(remote)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def is_loopback(remote: str | None) -> bool:
    """Tell whether `remote` is this machine; the control socket has no address and is."""
    address = _address(remote)
    return address is None or address.is_loopback


def _address(remote: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if not remote:
        return None
    address = ipaddress.ip_address(remote.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
