"""What doctor says about people and tokens whose role is gone."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

from gateway.access.guests import Guest, Person, save_fact
from gateway.spool import Spool
from tests.daemon_process import DEFAULTS, gatehouse, write_config


async def approve(data: Path, *roles: str) -> None:
    people = [Person(channel="telegram", account="default", sender=role) for role in roles]
    guests = [Guest(person=each, name="Ada", peer="7", since=datetime.now(UTC), role=each.sender) for each in people]
    async with await Spool.open(data) as spool:
        await spool.commit(*map(save_fact, guests))


def test_roles_that_do_not_exist_are_warnings(tmp_path: Path) -> None:
    write_config(tmp_path, f"{DEFAULTS}\n[roles.ci]\n[roles.kids]\n")
    (tmp_path / "data").mkdir(mode=0o700)
    asyncio.run(approve(tmp_path / "data", "member", "kids"))
    token = json.loads(
        gatehouse("token", "create", "build", "--scope=read", "--role=ci", "--json", home=tmp_path).stdout
    )
    found = json.loads(gatehouse("doctor", "--local", "--json", home=tmp_path).stdout)["findings"]
    assert [each for each in found if each["about"] == "roles"] == []
    write_config(tmp_path)
    found = json.loads(gatehouse("doctor", "--local", "--json", home=tmp_path).stdout)["findings"]
    assert [(each["message"], each["fix"]) for each in found if each["about"] == "roles"] == [
        (
            "telegram:kids has the role kids, which does not exist: no tools run for it.",
            "Add the table [roles.kids], or give another one: gatehouse pair role telegram:kids ROLE",
        ),
        (
            f"The token build ({token['created']['id']}) has the role ci, which does not exist: no tools run for it.",
            "Add the table [roles.ci], or replace the token by one with another role",
        ),
    ]
