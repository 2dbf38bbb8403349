"""Faults around a coding agent: its program, its repository, its sandbox or the disk goes away, and comes back."""

import gzip
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.backup.create import Backup
from gateway.backup.restore import restore_backup
from gateway.sessions import SessionStatus, entries
from tests.acp.harness import SCOPE, SCRIPTED_AGENT, coder, effects, needs_sandbox
from tests.daemon.harness import MARK, ask, gateway, traces
from tests.disks import fill, small_disk
from tests.polling import until
from tests.sandbox.harness import service

pytestmark = needs_sandbox


@pytest.mark.parametrize("fault", ["gone", "replaced"])
async def test_a_repository_that_goes_away_is_named_and_can_come_back(tmp_path: Path, fault: str) -> None:
    repo, moved = tmp_path / "repos/app", tmp_path / "repos/moved"
    async with gateway(coder(tmp_path)) as (_, chat):
        assert "One." in await ask(chat, "write a one ;; say One.")
        repo.rename(moved)
        if fault == "replaced":
            repo.mkdir()
        answer = await ask(chat, "write b two ;; say Two.")
        assert "The repository app can't be used" in answer
        if fault == "replaced":
            repo.rmdir()
        moved.rename(repo)
        assert "Two." in await ask(chat, "write b two ;; say Two.")
        assert effects(tmp_path) == ["write a one", "write b two"]


async def test_a_repository_that_was_cloned_again_gets_a_new_program(tmp_path: Path) -> None:
    repo, moved = tmp_path / "repos/app", tmp_path / "repos/moved"
    async with gateway(coder(tmp_path)) as (_, chat):
        assert "One." in await ask(chat, "write a one ;; say One.")
        repo.rename(moved)
        shutil.copytree(moved, repo)
        assert "Two." in await ask(chat, "write b two ;; say Two.")
        assert (repo / "b").exists()
        assert not (moved / "b").exists()


async def test_a_program_that_was_uninstalled_is_named_and_can_come_back(tmp_path: Path) -> None:
    program = tmp_path / "bin/agent"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec /usr/bin/python3 -I {SCRIPTED_AGENT}\n")
    program.chmod(0o755)
    sandbox = {"readable": (program, SCRIPTED_AGENT)}
    async with gateway(coder(tmp_path, command=(str(program),), sandbox=sandbox)) as (daemon, chat):
        assert "One." in await ask(chat, "say One.")
        program.rename(tmp_path / "away")
        await daemon.coding_agents.end(SCOPE)
        answer = await ask(chat, "say Two.")
        assert "bin/agent" in answer
        assert "wrong on my side" not in answer
        (tmp_path / "away").rename(program)
        assert "Three." in await ask(chat, "say Three.")


async def test_a_sandbox_service_that_goes_away_is_named_and_can_come_back(tmp_path: Path) -> None:
    configured = coder(tmp_path)
    socket = tmp_path / "socket"
    tools = configured.tools.model_copy(
        update={"shell": configured.tools.shell.model_copy(update={"sandbox_socket": socket})}
    )
    async with gateway(configured.model_copy(update={"tools": tools})) as (daemon, chat):
        async with service(socket, has_network=True):
            assert "One." in await ask(chat, "write a one ;; say One.")
            await daemon.coding_agents.end(SCOPE)
        socket.unlink()
        assert "gatehouse-sandbox" in await ask(chat, "say Two.")
        session = daemon.sessions.active(SCOPE)
        assert session is not None
        async with service(socket, has_network=True):
            assert "Three." in await ask(chat, "say Three.")
            await daemon.coding_agents.end(SCOPE)


async def test_a_full_disk_delays_the_turn_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    configured = coder(tmp_path, sandbox={"readable": (SCRIPTED_AGENT,), "home": tmp_path / "home"})
    with small_disk(tmp_path / "data", 24_000_000):
        async with gateway(configured) as (_, chat):
            assert "One." in await ask(chat, "say One.")
            await chat.say("append a one ;; wait gate ;; tool read README.md ;; edit b two ;; say Two.")
            await until(lambda: effects(tmp_path) == ["append a one"])
            fill(tmp_path / "data/ballast")
            (tmp_path / "repos/app/gate").touch()
            await until(lambda: len(effects(tmp_path)) == 2)
            (tmp_path / "data/ballast").unlink()
            assert (await chat.hear_message()).text.endswith("Two.")
            assert effects(tmp_path) == ["append a one", "edit b two"]
            assert "Three." in await ask(chat, "say Three.")


async def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    async with gateway(coder(tmp_path)) as (_, chat):
        (tmp_path / "data/agents").write_text("in the way")
        assert "its folder can't be made" in await ask(chat, "say One.")
        (tmp_path / "data/agents").unlink()
        assert "Two." in await ask(chat, "say Two.")


async def test_a_program_that_dies_ends_its_session_and_the_next_goes_on(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (daemon, chat):
        answer = await ask(chat, "append a one ;; say Half. ;; kill ;; append a two")
        assert "Half." in answer
        assert "The agent coder failed" in answer
        first = next(each for each in daemon.sessions.list(SCOPE) if each.number == 1)
        assert first.status is SessionStatus.ERROR
        assert "Next." in await ask(chat, "append a three ;; say Next.")
        assert effects(tmp_path) == ["append a one", "append a three"]
        second = daemon.sessions.active(SCOPE)
        assert second is not None
        assert (second.number, second.repo) == (2, "app")
        assert any(isinstance(each, entries.Status) for each in (await daemon.sessions.load(first.key)).entries)


async def test_no_byte_of_a_deleted_session_is_left_in_its_home_and_its_clean_worktree(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, worktree=True)) as (daemon, chat):
        await ask(chat, f"say {MARK} ;; run echo {MARK} >$HOME/.history; rm effects.log")
        await ask(chat, "/new")
        assert "Two." in await ask(chat, "say Two.")
        assert traces(tmp_path)
        await ask(chat, "/session delete 1 yes")
        await daemon.worktrees.reconcile()
        await daemon.flusher.flush()
        assert traces(tmp_path) == {}
        assert len(list((tmp_path / "data/worktrees/app").iterdir())) == 1
        assert len(list((tmp_path / "data/agents").iterdir())) == 1
        assert "Three." in await ask(chat, "say Three.")


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_completed_session_can_be_resumed_with_its_worktree(tmp_path: Path, is_clean: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    async with gateway(coder(tmp_path, worktree=True)) as (daemon, chat):
        await ask(chat, "run rm effects.log ;; say One." if is_clean else "write a one ;; say One.")
        await ask(chat, "/session close")
        await daemon.worktrees.reconcile()
        assert bool(list((tmp_path / "data/worktrees/app").iterdir())) is not is_clean
        await ask(chat, "/session resume 1")
        answer = await ask(chat, "run cat a README.md")
        assert "A test." in answer
        assert ("No such file" in answer) is is_clean


@pytest.mark.parametrize("has_worktrees", [True, False])
async def test_a_restored_backup_goes_on_with_the_transcript(tmp_path: Path, has_worktrees: bool) -> None:  # noqa: FBT001 - as above.
    """Homes and worktrees are not in a backup. The history of the repository is not in the data directory."""
    configured = coder(tmp_path, worktree=has_worktrees)
    commit = "git add a; git -c user.name=A -c user.email=a@example.org commit -q -m More"
    async with gateway(configured) as (daemon, chat):
        await ask(chat, f"write a one ;; run {commit} ;; say One.")
        backup = Backup(
            configured.gateway.data_dir, spool=daemon.spool, sessions=daemon.sessions, now=daemon.now, config=None
        )
        blocks = [block async for block in backup.blocks(has_secrets=False)]
    (tmp_path / "backup").write_bytes(gzip.compress(b"".join(blocks)))
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").mkdir(mode=0o700)
    restore_backup(tmp_path / "backup", tmp_path / "data", replaces=False, now=datetime.now(UTC))
    async with gateway(configured) as (daemon, chat):
        answer = await ask(chat, "run cat a ;; say Two.")
        assert "coder has no record of this session, so I gave it the transcript." in answer
        assert "one" in answer
        assert "+one" in await ask(chat, "/diff a")


async def test_a_crash_of_our_own_is_not_called_a_stop(tmp_path: Path) -> None:
    configured = coder(tmp_path)
    broken = configured.agents["coder"].model_copy(update={"start_timeout": "soon"})  # A value that crashes the start.
    async with gateway(configured.model_copy(update={"agents": {"coder": broken}})) as (_daemon, chat):
        assert "something went wrong on my side" in await ask(chat, "say Hello.")
