"""What proves the owner: the token, a cookie made from it, and single-use codes that turn into cookies."""

import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from config import Secret
from config.files import write_atomically
from gateway.bounded import BoundedDict
from gateway.errors import CannotStart
from gateway.http.responses import HttpError

ATTEMPT_WINDOW = 60.0
MAX_WRONG_ATTEMPTS = 10
MAX_NETWORKS = 4096

Found = TypeVar("Found")


class TooManyAttempts(HttpError):
    def __init__(self, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many wrong attempts; try again in {seconds} seconds.",
            headers={"Retry-After": str(seconds)},
        )


class AuthRateLimiter:
    """Keeps the last `PLACES` places that guessed wrong; the one that guessed longest ago is forgotten first."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wrong = BoundedDict[str, list[float]](MAX_NETWORKS)

    def judge(self, remote: str | None, check: Callable[[], Found | None], *, is_proxied: bool = False) -> Found | None:
        """Return what `check` finds; None is a wrong guess. Raise `TooManyGuesses` when there were enough of those.

        From elsewhere, `check` does not even run then. From this machine it does, so that nobody here can lock
        the owner out; but not what a proxy on this machine passes on, since everybody may be behind it.
        """
        place = f"behind {network_of(remote)}" if is_proxied else network_of(remote)
        wait = self._wait(place)
        if wait > 0 and (is_proxied or not is_loopback(remote)):
            raise TooManyAttempts(wait)
        found = check()
        if found is None and wait > 0:
            raise TooManyAttempts(wait)
        if found is None:
            self._note(place)
        return found

    def _wait(self, place: str) -> float:
        """Seconds until `place` may guess again."""
        recent = [at for at in self._wrong.get(place, ()) if at > self._monotonic() - ATTEMPT_WINDOW]
        return recent[0] + ATTEMPT_WINDOW - self._monotonic() if len(recent) >= MAX_WRONG_ATTEMPTS else 0.0

    def _note(self, place: str) -> None:
        self._wrong[place] = [*self._wrong.get(place, ()), self._monotonic()][-MAX_WRONG_ATTEMPTS:]


def network_of(remote: str | None) -> str:
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


CODE_LIFETIME = 3600.0
MAX_CODES = 16
COOKIE_LIFETIME = 30 * 24 * 3600
MAX_REVOKED = 1024
MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Wall time for what outlives the process; monotonic for what does not, so that no clock jump revives it."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Auth:
    """Knows the token. `guesses` counts the wrong attempts of everybody who has to pass here.

    Cookies are not kept, only made and read. Those that were revoked are remembered until they expire, but in memory
    only: after a restart, just a new token ends a cookie that somebody has copied before its owner signed out.
    """

    def __init__(self, token: Secret, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._token_digest = _digest(token.reveal())
        self._cookie_key = hmac.digest(token.reveal().encode(), b"gatehouse cookie v1", "sha256")
        self._codes = BoundedDict[bytes, float](MAX_CODES)
        self._revoked: dict[str, int] = {}
        self.on_revoked: Callable[[str], None] | None = None
        """Told of each cookie that has just been revoked."""
        self.guesses = AuthRateLimiter(self._clock.monotonic)

    def is_token(self, candidate: str) -> bool:
        # Digests have one length, so that not even the token's length shows in the timing.
        return hmac.compare_digest(_digest(candidate), self._token_digest)

    def mint_code(self) -> str:
        """Make a code that is good for one `redeem` within the hour. The oldest goes when there are too many."""
        code = secrets.token_urlsafe(24)
        self._drop_expired_codes()
        self._codes[_digest(code)] = self._clock.monotonic() + CODE_LIFETIME
        return code

    def redeem(self, code: str) -> str | None:
        """Use up `code` and return the value of a new cookie."""
        self._drop_expired_codes()
        digest = _digest(code)
        known = [kept for kept in self._codes if hmac.compare_digest(kept, digest)]
        if not known:
            return None
        del self._codes[known[0]]
        return self._make_cookie()

    def is_cookie(self, value: str) -> bool:
        """Tell whether we made this cookie with this token. It may be over; see `is_over`."""
        signed, _, signature = value.rpartition(".")
        return hmac.compare_digest(_digest(signature), _digest(self._sign(signed)))

    def is_over(self, cookie: str) -> bool:
        """Tell whether a cookie that `is_cookie` has found to be ours has expired or was revoked."""
        return _end(cookie) <= self._clock.wall() or cookie in self._revoked

    def revoke(self, cookie: str) -> None:
        """Let `cookie` be good for nothing from now on. Of too many, the one that expires first is forgotten."""
        if not self.is_cookie(cookie) or self.is_over(cookie):
            return
        self._revoked[cookie] = _end(cookie)
        if len(self._revoked) > MAX_REVOKED:
            del self._revoked[min(self._revoked, key=self._revoked.__getitem__)]
        if self.on_revoked is not None:
            self.on_revoked(cookie)

    def _make_cookie(self) -> str:
        signed = f"v1.{int(self._clock.wall()) + COOKIE_LIFETIME}.{secrets.token_urlsafe(16)}"
        return f"{signed}.{self._sign(signed)}"

    def _sign(self, signed: str) -> str:
        return hmac.digest(self._cookie_key, signed.encode(errors="replace"), "sha256").hex()

    def _drop_expired_codes(self) -> None:
        now = self._clock.monotonic()
        for code in [code for code, until in self._codes.items() if until <= now]:
            del self._codes[code]


def _end(cookie: str) -> int:
    """Read when a cookie of ours expires."""
    return int(cookie.split(".")[1])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def load_or_make_token(data_dir: Path, configured: Secret | None) -> Secret:
    """Return the configured token, or the one in `<data_dir>/http.token`, which is made on the first run."""
    if configured is not None:
        return _long_enough(configured.reveal(), "http.token in the config")
    path = data_dir / "http.token"
    try:
        return _long_enough(path.read_text("utf-8").strip(), str(path))
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"The token file {path} cannot be read ({error}); delete it to get a new one.") from error
    for leftover in data_dir.glob(f".{path.name}.*"):  # A start was cut while it made one.
        leftover.unlink()
    write_atomically(path, f"{token}\n".encode())
    return Secret(token)


def _long_enough(token: str, where: str) -> Secret:
    if len(token) < MIN_TOKEN_LENGTH:
        raise CannotStart(
            f"The token in {where} is shorter than {MIN_TOKEN_LENGTH} characters and could be guessed; "
            "use a longer one, or remove it to have one made."
        )
    return Secret(token)
