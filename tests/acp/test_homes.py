"""The homes of coding agents are deleted with their sessions."""

import os
from pathlib import Path

from gateway.acp.homes import AgentHomes, AgentRecord

SESSION = "agent:coder:loopback:direct:ada:1"


def fill(home: Path, depth: int) -> None:
    """Make folders inside each other, as an agent could."""
    folder = os.open(home, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("folder", dir_fd=folder)
        above, folder = folder, os.open("folder", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)


def homes_in(root: Path) -> list[Path]:
    return list(root.glob("*/home"))


async def test_a_home_is_deleted_with_its_session_after_its_program(tmp_path: Path) -> None:
    homes, ended = AgentHomes(tmp_path), list[str]()

    async def end(session: str) -> None:
        ended.append(session)

    homes.before_removal = end
    fill(homes.prepare(SESSION), depth=2000)
    assert await homes.remove(SESSION)
    assert ended == [SESSION]
    assert not homes_in(tmp_path)
    assert await homes.remove(SESSION)


async def test_a_deep_home_of_a_deleted_session_does_not_keep_the_gateway_from_starting(tmp_path: Path) -> None:
    homes = AgentHomes(tmp_path)
    fill(homes.prepare(SESSION), depth=2000)
    kept = homes.prepare(f"{SESSION}2")
    await homes.remove_orphans([f"{SESSION}2"])
    assert homes_in(tmp_path) == [kept]


def test_a_record_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    homes = AgentHomes(tmp_path)
    home = homes.prepare(SESSION)
    assert homes.read(SESSION) is None
    record = AgentRecord(agent="coder", acp_session="x", since=3)
    homes.write(SESSION, record)
    assert homes.read(SESSION) == record
    (home.parent / "session.json").write_text("{")
    assert homes.read(SESSION) is None
