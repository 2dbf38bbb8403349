"""Which commands a person sees."""

from pathlib import Path

import pytest

from config import DmScope, SessionSettings
from gateway.access.rules import Live
from gateway.commands.registry import COMMANDS, usable_commands
from gateway.contract import Address, PeerKind, Sender
from tests.daemon.harness import ask, gateway, settings

OWNER, GUEST = Sender(id="1", is_owner=True), Sender(id="2")
FOR_OWNERS = {"pair", "pair approve", "pair deny", "pair revoke", "pair role", "restart", "workspace"} | {
    f"schedule {action}" for action in ("add", "delete", "history", "list", "pause", "resume", "run", "show")
}
UNSHARED = {"session delete", "clear", "memory forget", "memory edit"}


def address(kind: PeerKind) -> Address:
    return Address(channel="loopback", kind=kind, peer="7")


def hidden(folder: Path, kind: PeerKind, sender: Sender, dm_scope: DmScope = DmScope.PER_CHANNEL_PEER) -> set[str]:
    live = Live(settings(folder, session=SessionSettings(dm_scope=dm_scope)))
    return {each.name for each in COMMANDS} - {each.name for each in usable_commands(live, address(kind), sender)}


@pytest.mark.parametrize("kind", PeerKind)
def test_an_owner_sees_all_commands(tmp_path: Path, kind: PeerKind) -> None:
    assert hidden(tmp_path, kind, OWNER) == set()


def test_other_people_see_only_what_they_may_use(tmp_path: Path) -> None:
    assert hidden(tmp_path, PeerKind.DIRECT, GUEST) == FOR_OWNERS
    assert hidden(tmp_path, PeerKind.GROUP, GUEST) == FOR_OWNERS | UNSHARED
    assert hidden(tmp_path, PeerKind.DIRECT, GUEST, DmScope.MAIN) == FOR_OWNERS | UNSHARED


async def test_help_lists_only_commands_that_the_person_may_use(tmp_path: Path) -> None:
    configured = settings(
        tmp_path,
        channels={"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"dm_policy": "open"}},
    )
    async with gateway(configured) as (_, chat):
        assert "(owner)" not in await ask(chat, "/help", sender=GUEST)
        assert "/pair approve" in await ask(chat, "/help", sender=OWNER)
