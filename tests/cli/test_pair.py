import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

from gateway.access.guests import Applicant, Guest, Person, save_fact
from gateway.spool import OutboxState, Spool
from gateway.turns.grants import Grant, save
from tests.daemon_process import DEFAULTS, gatehouse, running, write_config


def applicant(number: int) -> Applicant:
    return Applicant(
        person=Person(channel="telegram", account="default", sender=f"{number}"),
        name="Ada\x1b[31m",
        peer=f"{number}",
        code=f"ABCD-EFG{number}",
        asked_at=datetime.now(UTC),
    )


async def leave_applicants(data: Path) -> None:
    async with await Spool.open(data) as spool:
        await spool.commit(*(save_fact(applicant(number)) for number in (2, 3, 4)))


async def welcomed(data: Path) -> list[tuple[str, OutboxState]]:
    async with await Spool.open(data) as spool:
        return [(row.message.address.peer, row.state) for row in (await spool.listing()).outbox]


def test_access_is_decided_with_and_without_a_running_daemon(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    asyncio.run(leave_applicants(tmp_path / "data"))
    listed = gatehouse("pair", home=tmp_path).stdout
    assert "ABCD-EFG2  telegram:2  Ada" in listed
    assert "\x1b" not in listed
    approved = gatehouse("pair", "approve", "abcdefg2", "--owner", home=tmp_path)
    assert "now has access as owner" in approved.stdout
    assert asyncio.run(welcomed(tmp_path / "data")) == [("2", OutboxState.PENDING)]
    with running(tmp_path):
        approved = gatehouse("pair", "approve", "ABCD-EFG3", "--role", "guest", home=tmp_path)
        assert "now has access as guest" in approved.stdout
        assert "was denied" in gatehouse("pair", "deny", "ABCD-EFG4", home=tmp_path).stdout
        wrong = gatehouse("pair", "approve", "ABCD-EFG4", home=tmp_path)
        assert (wrong.returncode, "was denied already" in wrong.stderr) == (1, True)
        wrong = gatehouse("pair", "approve", "ABCD-EFG9", home=tmp_path)
        assert (wrong.returncode, "That code is unknown" in wrong.stderr) == (1, True)
        found = json.loads(gatehouse("pair", "--json", home=tmp_path).stdout)
        assert [(each["id"], each["role"]) for each in found["guests"]] == [
            ("telegram:2", "owner"),
            ("telegram:3", "guest"),
        ]
        assert found["waiting"] == []
        changed = gatehouse("pair", "role", "telegram:3", "owner", home=tmp_path)
        assert "has the role owner from now on" in changed.stdout
        wrong = gatehouse("pair", "role", "telegram:3", "boss", home=tmp_path)
        assert (wrong.returncode, "no role boss" in wrong.stderr) == (1, True)
    assert "has the role member" in gatehouse("pair", "role", "telegram:3", "member", home=tmp_path).stdout
    wrong = gatehouse("pair", "role", "telegram:3", home=tmp_path)
    assert (wrong.returncode, "pair role ID ROLE" in wrong.stderr) == (2, True)
    named = '[channels.telegram]\nenabled = false\n[roles.kids]\npeople = ["telegram:3"]\n'
    write_config(tmp_path, f"{DEFAULTS}\n{named}")
    wrong = gatehouse("pair", "role", "telegram:3", "member", home=tmp_path)
    assert (wrong.returncode, "the role kids. Change it there." in wrong.stderr) == (1, True)
    assert "  kids\n" in gatehouse("pair", "list", home=tmp_path).stdout
    write_config(tmp_path, f"{DEFAULTS}\n[roles.kids]\n")
    assert "has the role kids" in gatehouse("pair", "role", "telegram:3", "kids", home=tmp_path).stdout
    write_config(tmp_path)
    assert "  kids, which no longer exists\n" in gatehouse("pair", "list", home=tmp_path).stdout
    assert "no longer has access" in gatehouse("pair", "revoke", "telegram:3", home=tmp_path).stdout
    revoked = json.loads(gatehouse("pair", "revoke", "telegram:2", "--json", home=tmp_path).stdout)
    assert revoked["revoked"]["id"] == "telegram:2"
    assert "telegram:3" in gatehouse("pair", "list", home=tmp_path).stdout.partition("Revoked:")[2]


def test_revoking_without_a_daemon_also_ends_what_the_person_has_allowed(tmp_path: Path) -> None:
    write_config(tmp_path)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    ada, bob = (applicant(number).person for number in (2, 3))
    grants = [
        Grant(
            id=f"{number}",
            tool="shell",
            arguments={"command": "ls"},
            patterns={},
            agent="main",
            workspace="/w",
            scope="s",
            person=person,
            by=person,
            at=datetime.now(UTC),
        )
        for number, person in enumerate((ada, bob))
    ]

    async def prepare() -> None:
        guest = Guest(person=ada, name="Ada", peer="2", since=datetime.now(UTC))
        async with await Spool.open(data) as spool:
            await spool.commit(save_fact(guest), *map(save, grants))

    async def left() -> list[str]:
        async with await Spool.open(data) as spool:
            return list(await spool.facts("grants/"))

    asyncio.run(prepare())
    assert "no longer has access" in gatehouse("pair", "revoke", "telegram:2", home=tmp_path).stdout
    assert asyncio.run(left()) == [grants[1].fact]


def test_approve_and_deny_need_a_code(tmp_path: Path) -> None:
    write_config(tmp_path)
    assert gatehouse("pair", "approve", home=tmp_path).returncode == 2
    assert gatehouse("pair", "deny", "X", "--owner", home=tmp_path).returncode == 2
