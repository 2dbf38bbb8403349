"""API tokens in a whole gateway."""

import dataclasses
from pathlib import Path

from config import Settings
from gateway.access.tokens import NewToken
from gateway.admin.client import ControlClient
from gateway.contract import Sender, TokenScope, Verdict
from gateway.conversation import Json
from gateway.daemon import Daemon
from tests.daemon.harness import Slow, gateway, settings
from tests.polling import until


def house(folder: Path) -> Settings:
    return settings(folder)


async def create(daemon: Daemon, *scopes: TokenScope) -> tuple[Sender, str]:
    token, secret = await daemon.tokens.create(NewToken(name="ci", scopes=frozenset(scopes)))
    return Sender(id=token.id, name=token.name, token=token.id), secret


async def test_a_revocation_stops_the_work_of_the_program(tmp_path: Path) -> None:
    provider = Slow()

    def installed(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda main: dataclasses.replace(main, provider=provider))

    async with gateway(house(tmp_path), installed) as (daemon, chat):
        program, _ = await create(daemon, TokenScope.PROMPT)
        assert await chat.say("hello", peer=program.id, sender=program) is Verdict.ACCEPTED
        await provider.is_asked.wait()
        async with ControlClient(tmp_path / "data") as control:
            answer = await control.post("/tokens/revoke", {"id": program.id})
        assert answer["revoked"]

        async def is_settled() -> bool:
            return not (await daemon.spool.stats()).inbox

        await until(is_settled)
        assert await chat.say("hello?", peer=program.id, sender=program) is Verdict.REFUSED


async def test_tokens_and_their_last_use_survive_a_restart(tmp_path: Path) -> None:
    async with gateway(house(tmp_path)) as (daemon, _):
        program, secret = await create(daemon, TokenScope.READ)
        revoked, old = await create(daemon, TokenScope.READ)
        assert daemon.live.token_book.identify(secret) is not None
        await daemon.tokens.revoke(revoked.id)
    async with gateway(house(tmp_path)) as (daemon, _):
        [token] = daemon.live.token_book.tokens.values()
        assert token.id == program.id
        assert token.last_used_at is not None
        caller = daemon.live.token_book.identify(secret)
        assert caller is not None
        assert caller.scopes == {TokenScope.READ}
        assert daemon.live.token_book.identify(old) is None


async def test_tokens_are_managed_through_the_control_socket(tmp_path: Path) -> None:
    async with gateway(house(tmp_path)) as (daemon, _), ControlClient(tmp_path / "data") as control:
        wanted: dict[str, Json] = {"name": "ci", "scopes": ["prompt", "read"], "agent": "main", "expires_in": 60}
        made = await control.post("/tokens/create", wanted)
        [token] = daemon.live.token_book.tokens.values()
        shown = {
            "id": token.id,
            "name": "ci",
            "scopes": ["read", "prompt"],
            "agent": "main",
            "repo": None,
            "session": None,
            "role": "member",
            "created_at": token.created_at.isoformat(),
            "expires_at": token.expires_at.isoformat() if token.expires_at else "",
            "last_used_at": None,
            "is_expired": False,
        }
        assert made["created"] == shown
        assert daemon.live.token_book.identify(str(made["secret"])) is not None
        used_at = daemon.live.token_book.tokens[token.id].last_used_at
        assert used_at is not None
        assert await control.get("/tokens") == {"tokens": [{**shown, "last_used_at": used_at.isoformat()}]}
