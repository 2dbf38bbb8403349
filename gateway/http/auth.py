"""Authentication of the owner: the token, cookies signed with it, single-use codes, and a rate limit for guesses."""

import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from config import Secret
from config.files import write_atomically
from gateway.bounded import BoundedDict
from gateway.errors import CannotStart
from gateway.http.responses import HttpError
from gateway.private_files import read_private

MIN_TOKEN_LENGTH = 16
COOKIE_LIFETIME = 30 * 24 * 3600
MAX_REVOKED = 1024
CODE_LIFETIME = 3600.0
MAX_CODES = 16
ATTEMPT_WINDOW = 60.0
MAX_WRONG_ATTEMPTS = 10
"""Wrong credentials that one network may send within `ATTEMPT_WINDOW` seconds."""
MAX_NETWORKS = 4096

Found = TypeVar("Found")


class Clock(Struct, frozen=True, kw_only=True):
    """`wall` dates cookies, which survive a restart. All else uses `monotonic`, which no clock change affects."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class TooManyAttempts(HttpError):
    def __init__(self, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many wrong attempts. Try again in {seconds} seconds.",
            headers={"Retry-After": str(seconds)},
        )


class AuthRateLimiter:
    """Limits wrong credentials per network. Remembers the `MAX_NETWORKS` networks with the latest wrong attempts."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wrong = BoundedDict[str, list[float]](MAX_NETWORKS)

    def attempt(
        self, remote: str | None, check: Callable[[], Found | None], *, is_proxied: bool = False
    ) -> Found | None:
        """Return the result of `check`, and count None as a wrong attempt. Raises `TooManyAttempts` at the limit.

        At the limit, `check` does not even run for other machines. It does run for this machine, so that no local
        program can lock the owner out. Requests through a local proxy count as other machines, because anyone may be
        behind the proxy.
        """
        source = f"behind {network_of(remote)}" if is_proxied else network_of(remote)
        now = self._monotonic()
        recent = [at for at in self._wrong.get(source, ()) if at > now - ATTEMPT_WINDOW]
        wait = recent[0] + ATTEMPT_WINDOW - now if len(recent) >= MAX_WRONG_ATTEMPTS else 0.0
        if wait > 0 and (is_proxied or not is_loopback(remote)):
            raise TooManyAttempts(wait)
        found = check()
        if found is None and wait > 0:
            raise TooManyAttempts(wait)
        if found is None:
            self._wrong[source] = [*recent, now][-MAX_WRONG_ATTEMPTS:]
        return found


def network_of(remote: str | None) -> str:
    """Return the range of addresses that one person may have: an IPv4 address, or the /64 of an IPv6 address."""
    address = _address(remote)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def is_loopback(remote: str | None) -> bool:
    """Return True if `remote` is this machine. Connections of the control socket have no address, and are local."""
    address = _address(remote)
    return address is None or address.is_loopback


@lru_cache(maxsize=1024)  # Each request of a program asks for it.
def _address(remote: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if not remote:
        return None
    address = ipaddress.ip_address(remote.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


class Auth:
    """Checks tokens, codes and cookies.

    Cookies are signed and not stored. Revoked cookies are remembered until they expire, but only in memory: after a
    restart, only a new token ends a cookie that was copied before its owner signed out.

    In a cluster, `is_shared` is True: then all nodes accept the same codes and cookies. Codes are signed as well, and
    `SharedSignIns` stores which codes were used and which cookies were revoked.
    """

    def __init__(self, token: Secret, clock: Clock | None = None, *, is_shared: bool = False) -> None:
        self.clock = clock or Clock()
        self.is_shared = is_shared
        self._codes = BoundedDict[bytes, float](MAX_CODES)
        self._revoked: dict[str, int] = {}
        """When revoked cookies expire, by their ids."""
        self.rate_limiter = AuthRateLimiter(self.clock.monotonic)
        self._set_token(token)

    def _set_token(self, token: Secret) -> None:
        self.token = token
        self._token_digest = _digest(token.reveal())
        self._cookie_key = hmac.digest(token.reveal().encode(), b"gatehouse cookie v1", "sha256")
        self.shared_label = hmac.digest(self._cookie_key, b"name", "sha256").hex()[:8] if self.is_shared else ""
        """In a cluster, a name for it that all of its nodes know. Otherwise empty."""

    def replace_token(self, token: Secret) -> bool:
        """Accept `token` from now on, and none of the old token, its cookies and its codes. False if it is the same.

        The caller cuts the connections that were authenticated before.
        """
        if self.is_token(token.reveal()):
            return False
        self._codes.clear()
        self._revoked.clear()
        self._set_token(token)
        return True

    def is_token(self, candidate: str) -> bool:
        # All digests have the same length, so the timing does not reveal the length of the token.
        return hmac.compare_digest(_digest(candidate), self._token_digest)

    def mint_code(self) -> str:
        """Return a new code for one `redeem` within the hour. Beyond `MAX_CODES` codes, the oldest is dropped."""
        if self.is_shared:
            return self._signed("c1", CODE_LIFETIME)
        code = secrets.token_urlsafe(24)
        self._drop_expired_codes()
        self._codes[_digest(code)] = self.clock.monotonic() + CODE_LIFETIME
        return code

    def redeem(self, code: str) -> str | None:
        """Use up `code`, and return the value of a new cookie. Returns None if the code is wrong.

        In a cluster, the caller has to check that no node has accepted the code before.
        """
        if self.is_shared:
            if not code.startswith("c1.") or not self._has_signature(code) or _expiry(code) <= self.clock.wall():
                return None
            return self._signed("v1", COOKIE_LIFETIME)
        self._drop_expired_codes()
        digest = _digest(code)
        known = [kept for kept in self._codes if hmac.compare_digest(kept, digest)]
        if not known:
            return None
        del self._codes[known[0]]
        return self._signed("v1", COOKIE_LIFETIME)

    def is_signed(self, cookie: str) -> bool:
        """Return True if this cookie was made with this token. It may have expired; see `is_expired`."""
        return cookie.startswith("v1.") and self._has_signature(cookie)

    def is_expired(self, cookie: str) -> bool:
        """Return True if a cookie for which `is_signed` holds has expired or was revoked."""
        return _expiry(cookie) <= self.clock.wall() or (bool(self._revoked) and cookie_id(cookie) in self._revoked)

    def revoke(self, cookie: str) -> bool:
        """Make `cookie` invalid. Returns False if it was not valid before.

        Beyond `MAX_REVOKED` revoked cookies, the one that expires first is forgotten.
        """
        if not self.is_signed(cookie) or self.is_expired(cookie):
            return False  # Only valid cookies are stored, so that made-up ones cannot fill the memory.
        self._note_revoked(cookie_id(cookie), _expiry(cookie))
        return True

    def add_revoked(self, revoked: Mapping[str, int]) -> set[str]:
        """Make cookies invalid that another node has revoked. Takes and returns their ids: those that were new here."""
        now = self.clock.wall()
        new = {found: until for found, until in revoked.items() if until > now and found not in self._revoked}
        for found, until in new.items():
            self._note_revoked(found, until)
        return set(new)

    def _note_revoked(self, found: str, until: int) -> None:
        self._revoked[found] = until
        if len(self._revoked) > MAX_REVOKED:
            del self._revoked[min(self._revoked, key=self._revoked.__getitem__)]

    def _signed(self, kind: str, lifetime: float) -> str:
        signed = f"{kind}.{int(self.clock.wall() + lifetime)}.{secrets.token_urlsafe(16)}"
        return f"{signed}.{self._sign(signed)}"

    def _has_signature(self, value: str) -> bool:
        signed, _, signature = value.rpartition(".")
        return hmac.compare_digest(_digest(signature), _digest(self._sign(signed)))

    def _sign(self, signed: str) -> str:
        return hmac.digest(self._cookie_key, signed.encode(errors="replace"), "sha256").hex()

    def _drop_expired_codes(self) -> None:
        now = self.clock.monotonic()
        for code in [code for code, until in self._codes.items() if until <= now]:
            del self._codes[code]


def cookie_id(cookie: str) -> str:
    """Return a name for a cookie that is no secret."""
    return _digest(cookie).hex()


def _expiry(signed: str) -> int:
    return int(signed.split(".")[1])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def load_or_make_token(data_dir: Path, configured: Secret | None) -> Secret:
    """Return the configured token, or the one in `<data_dir>/http.token`, which the first start creates."""
    if configured is not None:
        return _require_length(configured.reveal(), "http.token in the config")
    path = data_dir / "http.token"
    try:
        return _require_length(read_private(path).decode().strip(), str(path))
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CannotStart(f"Can't read the token file {path} ({reason}). Delete it to get a new one.") from error
    for leftover in data_dir.glob(f".{path.name}.*"):  # A crash interrupted an earlier start while it wrote one.
        leftover.unlink()
    write_atomically(path, f"{token}\n".encode())
    return Secret(token)


def _require_length(token: str, source: str) -> Secret:
    if len(token) < MIN_TOKEN_LENGTH:
        raise CannotStart(
            f"The token in {source} is shorter than {MIN_TOKEN_LENGTH} characters, so it could be guessed. "
            "Use a longer one, or remove it so that Gatehouse creates one."
        )
    return Secret(token)
