"""API tokens: what each allows, how it is recognised, created, revoked and stored. A token belongs to a program."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from config import MEMBER_ROLE, OWNER_ROLE, Settings
from config.types import PROGRAM_CHANNELS
from gateway.access.guests import Person
from gateway.bounded import BoundedDict
from gateway.contract import Caller, TokenScope
from gateway.database.connection import Connection
from gateway.errors import Refused
from gateway.spool import Operation, SetFact, Spool, SpoolUnavailable
from gateway.text import excerpt, printable

log = structlog.get_logger()

TOKEN_FACTS = "token:"  # noqa: S105 - the prefix of facts.
SECRET_PREFIX = "gh"  # noqa: S105 - not secret.
MAX_TOKENS = 1_000
MAX_LIFETIME = timedelta(days=100 * 365)
CHECK_INTERVAL = 1.0
"""Seconds between two checks for tokens that have expired."""
SAVE_INTERVAL = 60.0
"""Seconds between two commits of the last uses."""

_NAME_WIDTH = 64
_ID_BYTES = 5
_SECRET_BYTES = 32


class ApiToken(Struct, frozen=True, kw_only=True):
    """A token without its secret, of which only the SHA-256 digest is stored.

    A token with an `agent` or a `repo` works only with that one.
    """

    id: str
    name: str
    digest: str
    scopes: frozenset[TokenScope]
    agent: str | None = None
    repo: str | None = None
    session: str | None = None
    """The name of the session that the requests of the program belong to if they name no other."""
    role: str = ""
    """The name of its role. Empty: `member`. A token with the scope `admin` is an owner."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None

    @property
    def shown_role(self) -> str:
        return OWNER_ROLE if TokenScope.ADMIN in self.scopes else self.role or MEMBER_ROLE

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def save_fact(self) -> SetFact:
        """Return the operation that stores the token."""
        return SetFact(name=f"{TOKEN_FACTS}{self.id}", value=msgspec.json.encode(self).decode())

    def delete_fact(self) -> SetFact:
        """Return the operation that deletes the token."""
        return SetFact(name=f"{TOKEN_FACTS}{self.id}", value=None)


class StoreLastUse(Operation, frozen=True, kw_only=True):
    """Store when a token was used, unless it was revoked, or used later at another node of the cluster."""

    id: str
    at: datetime

    def apply(self, connection: Connection) -> None:
        name = f"{TOKEN_FACTS}{self.id}"
        found = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        if found is None:
            return
        try:
            token = msgspec.json.decode(found[0], type=ApiToken)
        except msgspec.DecodeError:  # Written by a newer version.
            return
        if token.last_used_at is None or token.last_used_at < self.at:
            # Only if no other node has changed it since the query.
            connection.execute(
                "UPDATE facts SET value = ? WHERE name = ? AND value = ?",
                (msgspec.json.encode(replace(token, last_used_at=self.at)).decode(), name, found[0]),
            )


class TokenBook:
    """The tokens, in memory."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.tokens: dict[str, ApiToken] = {}
        self.used: set[str] = set()
        """The ids of tokens whose last use is not stored yet."""
        self.revoked = BoundedDict[str, None](MAX_TOKENS)
        """The digests of revoked tokens. A program that still sends one guesses nothing."""
        self._now = now

    def read(self, facts: Mapping[str, str]) -> list[ApiToken]:
        """Load the facts that the spool has kept. Return the tokens that are gone since the last call."""
        before, found = self.tokens, dict[str, ApiToken]()
        for name, value in facts.items():
            try:
                token = msgspec.json.decode(value, type=ApiToken)
            except msgspec.DecodeError:  # Written by a newer version. An unreadable token gives no access.
                log.warning("token_unreadable", name=name)
                continue
            if token.digest in self.revoked:  # Its revocation is being committed.
                continue
            known = before.get(token.id)
            if token.id in self.used and known is not None:
                token = replace(token, last_used_at=known.last_used_at)
            found[token.id] = token
        self.tokens = found
        gone = [token for token in before.values() if token.id not in found]
        self.revoked.update({token.digest: None for token in gone})
        return gone

    def find(self, id_: str) -> ApiToken | None:
        """Return the token with this id if it is valid."""
        token = self.tokens.get(id_)
        return None if token is None or token.is_expired(self._now()) else token

    def identify(self, secret: str) -> Caller | None:
        """Return the program that has this secret, and note that it has used its token.

        Returns None for a wrong secret, and an anonymous caller for one that was valid once.
        """
        # The id is not secret. It only says which digest to compare with.
        prefix, _, rest = secret.partition("_")
        token = self.tokens.get(rest.partition("_")[0]) if prefix == SECRET_PREFIX else None
        digest = _digest(secret)
        if token is None:
            return Caller() if digest in self.revoked else None
        if not hmac.compare_digest(digest, token.digest):
            return None
        now = self._now()
        if token.is_expired(now):
            return Caller()
        self.tokens[token.id] = replace(token, last_used_at=now)
        self.used.add(token.id)
        return Caller(name=token.name, token=token.id, scopes=token.scopes)

    def expired(self) -> set[str]:
        """Return the ids of the tokens that have expired."""
        now = self._now()
        return {token.id for token in self.tokens.values() if token.is_expired(now)}


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The token that an owner wants. `expires_in` are seconds."""

    name: str
    scopes: frozenset[TokenScope]
    agent: str | None = None
    repo: str | None = None
    session: str | None = None
    role: str | None = None
    expires_in: float | None = None


class TokenIssuer:
    """Creates and revokes tokens, ends them when they expire, and stores their last use. Each change is one commit.

    `on_ended` cuts the connections and stops the work of a token that has just become invalid. `also_ends` returns
    more changes that are committed with a revocation.
    """

    def __init__(
        self,
        book: TokenBook,
        spool: Spool,
        *,
        settings: Callable[[], Settings],
        now: Callable[[], datetime],
        on_ended: Callable[[str], None] = lambda _: None,
        also_ends: Callable[[Collection[Person]], Sequence[Operation]] = lambda _: (),
    ) -> None:
        self.book = book
        self._spool = spool
        self._settings = settings
        self._now = now
        self._on_ended = on_ended
        self._also_ends = also_ends

    def read(self, facts: Mapping[str, str]) -> None:
        """Load the facts that the spool has kept, and end the tokens that another node of the cluster has revoked."""
        for token in self.book.read(facts):
            log.info("token_ended", token=token.id, reason="another node has revoked it")
            self._on_ended(token.id)

    async def create(self, new: NewToken) -> tuple[ApiToken, str]:
        """Create a token, and return it with its secret, which no one can find out again. Raises `Refused`."""
        token, secret = self._make(new)

        def add(error: BaseException | None) -> None:
            if error is None:
                self.book.tokens[token.id] = token

        await self._commit(token.save_fact(), on_done=add)
        log.info("token_created", token=token.id, name=token.name, scopes=sorted(token.scopes))
        return token, secret

    def _make(self, new: NewToken) -> tuple[ApiToken, str]:
        name, session = _cleaned(new.name), _cleaned(new.session or "")
        if len(self.book.tokens) >= MAX_TOKENS:
            raise Refused(f"There are {MAX_TOKENS:,} tokens already. Revoke those that are no longer used.")
        if not name:
            raise Refused("A token needs a name, such as the name of the program that will use it.")
        if not new.scopes:
            raise Refused(f"A token needs at least one of these scopes: {', '.join(TokenScope)}.")
        if session != (new.session or "") or new.session == "":
            raise Refused(f"The name of a session is one line of at most {_NAME_WIDTH} characters.")
        settings = self._settings()
        _require_known("agent", new.agent, {"main", *settings.agents})
        _require_known("repository", new.repo, {repo.id for repo in settings.repos})
        _require_known("role", new.role, settings.roles)
        if new.role and TokenScope.ADMIN in new.scopes:
            raise Refused("A token with the scope admin is an owner, so it can have no other role.")
        if new.role == OWNER_ROLE:
            raise Refused("Only a token with the scope admin is an owner.")
        expires_at = None
        if new.expires_in is not None:
            if not 0 < new.expires_in <= MAX_LIFETIME.total_seconds():
                raise Refused("A token can be valid for any time up to 100 years.")
            expires_at = self._now() + timedelta(seconds=new.expires_in)
        id_ = secrets.token_hex(_ID_BYTES)
        while id_ in self.book.tokens:
            id_ = secrets.token_hex(_ID_BYTES)
        secret = f"{SECRET_PREFIX}_{id_}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        token = ApiToken(
            id=id_,
            name=name,
            digest=_digest(secret),
            scopes=new.scopes,
            agent=new.agent,
            repo=new.repo,
            session=session or None,
            role=new.role or "",
            created_at=self._now(),
            expires_at=expires_at,
        )
        return token, secret

    async def revoke(self, id_: str) -> ApiToken:
        """Make a token invalid at once, cut its connections and stop its work. Raises `Refused` if there is none."""
        # It leaves the book before the commit, so that no commit of its last use can follow and restore it.
        token = self.book.tokens.pop(id_, None)
        if token is None:
            raise Refused("No token has this id. `gatehouse token list` shows the ids.")
        self.book.revoked[token.digest] = None

        def restore(error: BaseException | None) -> None:
            if error is not None:  # It would be valid again after a restart, so it has to be in the list.
                self.book.tokens[token.id] = token
                self.book.revoked.pop(token.digest, None)

        people = [Person(channel=channel, account="default", sender=id_) for channel in sorted(PROGRAM_CHANNELS)]
        self._on_ended(token.id)
        await self._commit(token.delete_fact(), *self._also_ends(people), on_done=restore)
        log.info("token_revoked", token=token.id, name=token.name)
        return token

    async def _commit(self, *operations: Operation, on_done: Callable[[BaseException | None], None]) -> None:
        try:
            await self._spool.commit(*operations, on_done=on_done)
        except SpoolUnavailable as error:
            raise Refused(str(error)) from error

    async def run(self) -> None:
        """End tokens when they expire, and store last uses once a minute, until cancelled."""
        loop = asyncio.get_running_loop()
        ended, saved_at = self.book.expired(), loop.time()
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            expired = self.book.expired()
            for id_ in expired - ended:
                log.info("token_expired", token=id_)
                self._on_ended(id_)
            ended = expired
            if loop.time() - saved_at >= SAVE_INTERVAL:
                saved_at = loop.time()
                await self.save_last_uses()

    async def save_last_uses(self) -> None:
        """Store the last use of each token that was used since the last call. On a full disk, the next call does."""
        used, self.book.used = self.book.used, set()
        tokens = [self.book.tokens[id_] for id_ in used if id_ in self.book.tokens]
        uses = [StoreLastUse(id=token.id, at=token.last_used_at) for token in tokens if token.last_used_at is not None]
        if not uses:
            return
        try:
            await self._spool.commit(*uses)
        except SpoolUnavailable:
            self.book.used |= used


def _digest(secret: str) -> str:
    # The secret has 256 random bits, so it needs no slow hash.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _cleaned(name: str) -> str:
    return excerpt(printable(name).strip(), _NAME_WIDTH)


def _require_known(kind: str, name: str | None, known: Collection[str]) -> None:
    if name is not None and name not in known:
        listed = f" There are: {', '.join(sorted(known))}." if known else ""
        raise Refused(f"There is no {kind} called `{_cleaned(name)}` in the configuration.{listed}")
