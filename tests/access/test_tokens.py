"""API tokens: creating, recognising, expiring, revoking and storing them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import Settings
from gateway.access.guests import Person
from gateway.access.rules import Live, is_owner, is_shared, may_talk
from gateway.access.tokens import MAX_TOKENS, TOKEN_FACTS, ApiToken, NewToken, TokenBook, TokenIssuer
from gateway.contract import Address, Caller, PeerKind, Sender, TokenScope
from gateway.database.connection import Connection
from gateway.errors import Refused
from gateway.spool import Operation, SetFact, Spool

READ, PROMPT, ADMIN = TokenScope.READ, TokenScope.PROMPT, TokenScope.ADMIN
START = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Settings.model_validate(
    {"agents": {"helper": {}}, "repos": [{"name": "website", "path": "/srv/website"}], "session": {"dm_scope": "main"}}
)


@dataclass
class Desk:
    """An issuer with a clock that the test sets."""

    spool: Spool
    now: datetime = START
    ended: list[str] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = TokenBook(lambda: self.now)
        self.issuer = TokenIssuer(
            self.book,
            self.spool,
            settings=lambda: SETTINGS,
            now=lambda: self.now,
            on_ended=self.ended.append,
            also_ends=self.also_ends,
        )

    def also_ends(self, people: object) -> list[SetFact]:
        assert isinstance(people, list)
        self.people += people
        return []

    async def create(self, *scopes: TokenScope, **more: object) -> tuple[ApiToken, str]:
        new = {"name": "ci", "scopes": frozenset(scopes or {READ}), **more}
        return await self.issuer.create(NewToken(**new))  # type: ignore[arg-type]  # The values that tests choose.

    async def stored(self) -> dict[str, ApiToken]:
        """Return the tokens that a restart would find."""
        book = TokenBook()
        book.read(await self.spool.facts(TOKEN_FACTS))
        return book.tokens


@asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[Desk]:
    async with await Spool.open(folder) as spool:
        yield Desk(spool)


async def test_a_token_is_recognised_by_its_secret(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create(READ, PROMPT, name="  ci\x1b[31m \n bot ")
        assert token.name == "ci[31m bot"
        assert secret.startswith(f"gh_{token.id}_")
        assert given.book.identify(secret) == Caller(
            name="ci[31m bot", token=token.id, scopes=frozenset({READ, PROMPT})
        )
        assert (await given.stored()).keys() == {token.id}


async def test_no_other_text_is_recognised(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create()
        _, other = await given.create()
        wrong = [
            "",
            "gh",
            "gh_",
            "gh__",
            token.id,
            token.digest,
            f"gh_{token.id}",
            f"gh_{token.id}_",
            f"gh_{token.id}_{token.digest}",
            secret[:-1],
            f"{secret}x",
            f" {secret}",
            secret.upper(),
            secret.removeprefix("gh_"),
            f"gh_{token.id}_{other.split('_', 2)[2]}",
            f"x{secret[1:]}",
            f"{secret}\udcff",
        ]
        assert [text for text in wrong if given.book.identify(text) is not None] == []


def files_with(text: str, folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_file() and text.encode() in file.read_bytes()]


async def test_the_secret_is_stored_and_logged_nowhere(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with desk(tmp_path) as given:
            token, secret = await given.create()
            given.book.identify(secret)
            await given.issuer.save_last_uses()
            await given.issuer.revoke(token.id)
    random = secret.split("_", 2)[2]
    assert random not in str(logs)
    assert [entry["event"] for entry in logs] == ["token_created", "token_revoked"]
    assert not files_with(random, tmp_path)


async def test_an_expired_token_is_anonymous_and_no_guess(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create(expires_in=3600.0)
        given.now += timedelta(seconds=3599)
        assert given.book.find(token.id) is not None
        assert given.book.identify(secret) != Caller()
        given.now += timedelta(seconds=1)
        assert given.book.find(token.id) is None
        assert given.book.identify(secret) == Caller()
        assert given.book.identify(f"{secret}x") is None


async def test_a_revoked_token_is_invalid_at_once_and_stays_so(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create()
        await given.issuer.revoke(token.id)
        assert given.ended == [token.id]
        assert given.book.find(token.id) is None
        assert given.book.identify(secret) == Caller()
        assert await given.stored() == {}
        with pytest.raises(Refused, match="No token has this id"):
            await given.issuer.revoke(token.id)
        assert {(person.channel, person.sender) for person in given.people} == {
            ("api", token.id),
            ("openai", token.id),
        }


async def test_storing_the_last_use_never_restores_a_revoked_token(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create()
        given.book.identify(secret)
        await asyncio.gather(
            given.issuer.save_last_uses(), given.issuer.revoke(token.id), given.issuer.save_last_uses()
        )
        assert await given.stored() == {}


async def test_the_last_use_is_stored_when_asked(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, secret = await given.create()
        _, unused = await given.create()
        given.now += timedelta(minutes=5)
        given.book.identify(secret)
        given.book.identify(f"{unused}x")
        before = given.spool.transactions
        assert (await given.stored())[token.id].last_used_at is None
        await given.issuer.save_last_uses()
        assert {each.last_used_at for each in (await given.stored()).values()} == {given.now, None}
        count = given.spool.transactions
        await given.issuer.save_last_uses()
        assert given.spool.transactions == count > before


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"name": " \n"}, "needs a name"),
        ({"scopes": frozenset()}, "at least one of these scopes: read, prompt, manage, admin"),
        ({"agent": "nobody"}, "no agent called `nobody`.* There are: helper, main"),
        ({"repo": "nowhere"}, "no repository called `nowhere`.* There are: website"),
        ({"session": ""}, "name of a session"),
        ({"session": "a\nb"}, "name of a session"),
        ({"session": "x" * 65}, "name of a session"),
        ({"expires_in": 0.0}, "up to 100 years"),
        ({"expires_in": -5.0}, "up to 100 years"),
        ({"expires_in": float("inf")}, "up to 100 years"),
        ({"expires_in": float("nan")}, "up to 100 years"),
    ],
)
async def test_an_impossible_token_is_refused(tmp_path: Path, wanted: dict[str, object], sentence: str) -> None:
    async with desk(tmp_path) as given:
        with pytest.raises(Refused, match=sentence):
            await given.create(**wanted)
        assert given.book.tokens == {}


async def test_a_token_may_be_bound(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        for agent in ("main", "helper"):
            token, _ = await given.create(agent=agent, repo="website", session="trip-to-lisbon")
            assert (token.agent, token.repo, token.session) == (agent, "website", "trip-to-lisbon")
            assert (await given.stored())[token.id] == token


async def test_there_is_a_limit_to_the_number_of_tokens(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        token, _ = await given.create()
        given.book.tokens.update({str(number): token for number in range(MAX_TOKENS - 1)})
        with pytest.raises(Refused, match="Revoke those that are no longer used"):
            await given.create()


async def test_a_revocation_that_is_not_stored_is_reported(tmp_path: Path) -> None:
    """The token would be valid again after a restart, so it stays in the list."""

    class FullDisk(Operation, frozen=True):
        def apply(self, _: Connection) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    async with desk(tmp_path) as given:
        token, secret = await given.create()
        issuer = TokenIssuer(
            given.book,
            given.spool,
            settings=lambda: SETTINGS,
            now=lambda: given.now,
            also_ends=lambda _: [FullDisk()],
        )
        with capture_logs(), pytest.raises(Refused, match="disk is full"):
            await issuer.revoke(token.id)
        assert list(given.book.tokens) == [token.id]
        caller = given.book.identify(secret)
        assert caller is not None
        assert caller.token == token.id


def test_an_unreadable_token_gives_no_access() -> None:
    book = TokenBook()
    with capture_logs() as logs:
        book.read({"token:x": "{}", "token:y": "nonsense"})
    assert book.tokens == {}
    assert [entry["event"] for entry in logs] == ["token_unreadable"] * 2


DIRECT = Address(channel="api", kind=PeerKind.DIRECT, peer="s1")


async def test_a_program_has_access_while_its_token_is_valid(tmp_path: Path) -> None:
    async with desk(tmp_path) as given:
        live = Live(SETTINGS, token_book=given.book)
        token, _ = await given.create(expires_in=60.0)
        admin, _ = await given.create(ADMIN)
        program, ruler = Sender(id=token.id, token=token.id), Sender(id=admin.id, token=admin.id)
        assert may_talk(live, DIRECT, program)
        assert not is_owner(live, DIRECT, program)
        assert is_owner(live, DIRECT, ruler)
        # The channel cannot make a program an owner, and ids of people in the settings do not count for it.
        assert not is_owner(live, DIRECT, Sender(id=token.id, token=token.id, is_owner=True))
        given.now += timedelta(seconds=60)
        assert not may_talk(live, DIRECT, program)
        await given.issuer.revoke(admin.id)
        assert not may_talk(live, DIRECT, ruler)
        assert not may_talk(live, DIRECT, Sender(id="x", token="unknown", is_owner=True))


def test_a_session_of_a_program_is_not_shared() -> None:
    live = Live(SETTINGS)
    assert is_shared(live, Address(channel="telegram", kind=PeerKind.DIRECT, peer="1"), Sender(id="1"))
    assert not is_shared(live, DIRECT, Sender(id="1"))


async def test_tokens_end_when_they_expire(tmp_path: Path) -> None:
    async with desk(tmp_path) as given, asyncio.timeout(60):
        await given.create(expires_in=1.0)
        given.now += timedelta(seconds=1)  # It expires before the start, so nothing is left to end.
        token, _ = await given.create(expires_in=60.0)
        has_ended = asyncio.Event()

        def note_end(id_: str) -> None:
            given.ended.append(id_)
            has_ended.set()

        issuer = TokenIssuer(
            given.book,
            given.spool,
            settings=lambda: SETTINGS,
            now=lambda: given.now,
            on_ended=note_end,
        )
        running = asyncio.create_task(issuer.run())
        await asyncio.sleep(0)
        given.now += timedelta(seconds=60)
        await has_ended.wait()
        running.cancel()
        await asyncio.wait([running])
        assert given.ended == [token.id]
