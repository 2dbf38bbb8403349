"""Workspaces of sessions: the repository, or a worktree that survives crashes and goes away when it is clean."""

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace as dataclass_replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import AgentSettings, Settings
from gateway.errors import Refused
from gateway.repos.worktrees import WORKSPACE_FACTS
from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram, run_program
from gateway.sessions import SessionStatus
from tests.polling import until
from tests.repos.harness import SCOPE, Killed, coding_settings, desk, git, make_repo, needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repo(tmp_path / "app")


@pytest.fixture
def configured(tmp_path: Path, repo: Path) -> Settings:
    return coding_settings(tmp_path, repo, coder={"worktree": True})


def worktree_list(repo: Path) -> list[str]:
    """Return the folders of the worktrees that git knows, besides the repository itself."""
    lines = git(repo, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")][1:]


def branches(repo: Path) -> list[str]:
    return git(repo, "branch", "--format=%(refname:short)", "--list", "gatehouse/*").splitlines()


async def test_without_worktrees_a_session_works_in_the_repository(tmp_path: Path, repo: Path) -> None:
    configured, first = coding_settings(tmp_path, repo), git(repo, "rev-parse", "HEAD")
    async with desk(configured) as here:
        session = await here.start()
        opened = await here.worktrees.open_workspace(session, AgentSettings())
        assert (opened.folder, opened.writable, opened.repo.id, opened.base) == (repo, (repo,), "app", first)
        git(repo, "commit", "--quiet", "--allow-empty", "--message=More")
    async with desk(configured) as here:
        assert (await here.worktrees.open_workspace(session, AgentSettings())).base == first
        other = await here.start()
        assert (await here.worktrees.open_workspace(other, AgentSettings())).base == git(repo, "rev-parse", "HEAD")


async def test_two_sessions_have_two_worktrees_and_the_repository_stays_as_it_is(
    configured: Settings, repo: Path
) -> None:
    async with desk(configured) as here:
        one, two = await here.start(), await here.start()
        agent = configured.agents["coder"]
        opened = [await here.worktrees.open_workspace(each, agent) for each in (one, two)]
        folders = [each.folder for each in opened]
        assert len(set(folders)) == 2
        assert all(folder.is_relative_to(configured.gateway.data_dir / "worktrees/app") for folder in folders)
        assert all(each.writable == (each.folder, repo / ".git") for each in opened)
        (folders[0] / "README.md").write_text("Changed.\n")
        assert (folders[1] / "README.md").read_text() == (repo / "README.md").read_text() == "Hello.\n"
        assert git(folders[0], "rev-parse", "--abbrev-ref", "HEAD") == f"gatehouse/{one.id[:13]}"
        assert await here.open(one) == folders[0]
        assert (folders[0] / "README.md").read_text() == "Changed.\n"


async def test_a_linked_worktree_can_have_worktrees_too(tmp_path: Path, repo: Path) -> None:
    git(repo, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    configured = coding_settings(tmp_path, tmp_path / "linked", coder={"worktree": True})
    async with desk(configured) as here:
        session = await here.start("linked")
        opened = await here.worktrees.open_workspace(session, configured.agents["coder"])
        assert opened.writable == (opened.folder, repo / ".git")
        await here.end(session)
        await here.worktrees.reconcile()
        assert worktree_list(repo) == [str(tmp_path / "linked")]


async def test_a_session_keeps_its_kind_of_workspace_when_the_settings_change(configured: Settings, repo: Path) -> None:
    async with desk(configured) as here:
        session = await here.start()
        opened = await here.worktrees.open_workspace(session, AgentSettings())
        assert opened.folder == repo
        assert await here.open(session) == repo
        other = await here.start()
        folder = await here.open(other)
        assert (await here.worktrees.open_workspace(other, AgentSettings())).folder == folder != repo


@pytest.mark.parametrize("status", [SessionStatus.COMPLETED, SessionStatus.CANCELLED, SessionStatus.ERROR])
async def test_the_clean_worktree_of_an_ended_session_is_removed(
    configured: Settings, repo: Path, status: SessionStatus
) -> None:
    async with desk(configured) as here:
        session, active = await here.start(), await here.start()
        folder, other = await here.open(session), await here.open(active)
        (folder / ".gitignore").write_text("")
        (folder / ".gitignore").unlink()
        await here.worktrees.reconcile()
        assert folder.exists()
        await here.end(session, status)
        await here.worktrees.reconcile()
        assert not folder.exists()
        assert worktree_list(repo) == [str(other)]
        assert branches(repo) == [f"gatehouse/{active.id[:13]}"]
        assert len(await here.spool.facts(WORKSPACE_FACTS)) == 1


async def test_a_resumed_session_gets_a_new_worktree(configured: Settings, repo: Path) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        await here.end(session)
        await here.worktrees.reconcile()
        assert not folder.exists()
        git(repo, "commit", "--quiet", "--allow-empty", "--message=More")
        await here.sessions.resume(SCOPE, 1)
        opened = await here.worktrees.open_workspace(session, configured.agents["coder"])
        assert (opened.folder, opened.base) == (folder, git(repo, "rev-parse", "HEAD"))


@pytest.mark.parametrize("change", ["modified", "untracked", "committed", "elsewhere"])
async def test_a_worktree_with_changes_is_kept_and_logged_once(configured: Settings, repo: Path, change: str) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        match change:
            case "modified":
                (folder / "README.md").write_text("Changed.\n")
            case "untracked":
                (folder / "new.txt").write_text("New.\n")
            case "committed":
                git(folder, "commit", "--quiet", "--allow-empty", "--message=More")
            case _:
                git(folder, "commit", "--quiet", "--allow-empty", "--message=More")
                git(folder, "checkout", "--quiet", "--detach", "HEAD~1")
        await here.end(session)
        with capture_logs() as logs:
            await here.worktrees.reconcile()
            await here.worktrees.reconcile()
        assert [each["reason"] for each in logs if each["event"] == "worktree_kept"] == ["it has changes"]
        assert here.worktrees.kept == {str(folder): "it has changes"}
        # Once it is resumed and clean, it is looked at again.
        await here.sessions.resume(SCOPE, 1)
        assert await here.open(session) == folder
        git(folder, "checkout", "--quiet", f"gatehouse/{session.id[:13]}")
        git(folder, "reset", "--quiet", "--hard", "main")
        (folder / "new.txt").unlink(missing_ok=True)
        await here.end(session)
        await here.worktrees.reconcile()
        assert not folder.exists()
        assert not here.worktrees.kept
        assert worktree_list(repo) == branches(repo) == []


async def test_the_worktree_of_a_deleted_session_is_removed_if_it_is_clean(configured: Settings) -> None:
    async with desk(configured) as here:
        one, two = await here.start(), await here.start()
        folders = [await here.open(one), await here.open(two)]
        (folders[1] / "new.txt").write_text("New.\n")
        await here.sessions.delete(one.key)
        await here.sessions.delete(two.key)
        await here.worktrees.reconcile()
        assert [folder.exists() for folder in folders] == [False, True]
        assert list(here.worktrees.kept) == [str(folders[1])]


async def test_the_worktree_of_a_session_with_a_turn_stays(configured: Settings) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        here.busy.add(session.key)
        await here.end(session)
        await here.worktrees.reconcile()
        assert folder.exists()


async def test_the_program_of_a_session_ends_before_its_worktree_is_looked_at(configured: Settings) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)

        async def end(key: str) -> None:
            assert key == session.key
            (folder / "last.txt").write_text("The last words of the program.\n")

        here.worktrees.before_removal = end
        await here.end(session)
        await here.worktrees.reconcile()
        assert (folder / "last.txt").exists()
        assert list(here.worktrees.kept) == [str(folder)]


async def test_a_session_that_is_resumed_while_its_worktree_is_removed_gets_a_new_one(
    configured: Settings, repo: Path
) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        await here.end(session)
        async with asyncio.TaskGroup() as tasks:

            async def resume(_key: str) -> None:
                await here.sessions.resume(SCOPE, 1)
                tasks.create_task(here.open(session), name="turn")
                await asyncio.sleep(0)

            here.worktrees.before_removal = resume
            tasks.create_task(here.worktrees.reconcile(), name="reconcile")
        assert (folder / "README.md").exists()
        assert worktree_list(repo) == [str(folder)]
        assert len(await here.spool.facts(WORKSPACE_FACTS)) == 1


async def test_git_of_the_agent_keeps_worktrees_that_its_sandbox_does_not_contain(
    configured: Settings, repo: Path, tmp_path: Path
) -> None:
    git(repo, "worktree", "add", "--quiet", str(tmp_path / "own"))
    for file in ("gitdir", "index", "HEAD"):
        os.utime(repo / ".git/worktrees/own" / file, (1_000_000_000, 1_000_000_000))
    async with desk(configured) as here:
        opened = await here.worktrees.open_workspace(await here.start(), configured.agents["coder"])
        program = SandboxedProgram(
            argv=("/usr/bin/git", "gc", "--quiet"),
            env=opened.env,
            cwd=opened.folder,
            writable=opened.writable,
            limits=SandboxLimits(memory_bytes=1024**3, processes=64),
        )
        assert (await run_program(program, seconds=60, max_output=1000)).exit_code == 0
        assert str(tmp_path / "own") in worktree_list(repo)
        without = dataclass_replace(program, env={})
        assert (await run_program(without, seconds=60, max_output=1000)).exit_code == 0
        assert worktree_list(repo) == [str(opened.folder)], "ours is locked"


@pytest.mark.parametrize("point", ["before", "half", "after"])
@pytest.mark.parametrize("then", ["continues", "ends"])
async def test_a_crash_while_a_worktree_is_made_is_repaired(
    configured: Settings, repo: Path, point: str, then: str
) -> None:
    async with desk(configured) as here:
        session = await here.start()
        here.git.dies_at = point
        with pytest.raises(Killed):
            await here.open(session)
    async with desk(configured) as here:
        if then == "continues":
            folder = await here.open(session)
            assert (folder / "README.md").read_text() == "Hello.\n"
            assert git(folder, "status", "--porcelain") == ""
            assert worktree_list(repo) == [str(folder)]
        else:
            await here.end(session)
            await here.worktrees.reconcile()
            assert not here.worktrees.kept
            assert worktree_list(repo) == branches(repo) == []
            assert not list((configured.gateway.data_dir / "worktrees/app").iterdir())


async def test_a_worktree_survives_kill_9_in_the_middle_of_git(
    configured: Settings, repo: Path, tmp_path: Path
) -> None:
    """Git inside the sandbox ends with the process that is killed."""
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("README.md filter=slow\n")
    git(repo, "config", "filter.slow.smudge", f"exec sleep {SLEEP}")
    async with desk(configured) as here:
        session = await here.start()
    arguments = [str(tmp_path), str(repo), session.key]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", OPENER, *arguments)
    try:
        await until(is_sleeping)
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not is_sleeping())
    assert worktree_list(repo), "git was in the middle of it"
    git(repo, "config", "filter.slow.smudge", "cat")
    async with desk(configured) as here:
        folder = await here.open(session)
        assert (folder / "README.md").read_text() == "Hello.\n"
        assert git(folder, "status", "--porcelain") == ""
        assert worktree_list(repo) == [str(folder)]


SLEEP = f"{os.getpid()}71"
"""A number that no other process has as its argument."""
OPENER = """
import asyncio, sys
from pathlib import Path
from tests.repos.harness import coding_settings, desk

async def main():
    configured = coding_settings(Path(sys.argv[1]), Path(sys.argv[2]), coder={"worktree": True})
    async with desk(configured) as here:
        await here.open(here.sessions.find(sys.argv[3]))

asyncio.run(main())
"""


def is_sleeping() -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if process.read_bytes() == f"sleep\0{SLEEP}\0".encode():
                return True
    return False


async def test_a_crash_while_a_worktree_is_removed_is_repaired(configured: Settings, repo: Path) -> None:
    async with desk(configured) as here:
        session = await here.start()
        await here.open(session)
        await here.end(session)
        here.git.dies_at = "removal"
        with pytest.raises(Killed):
            await here.worktrees.reconcile()
        assert worktree_list(repo)
    async with desk(configured) as here:
        await here.worktrees.reconcile()
        assert worktree_list(repo) == branches(repo) == []
        assert not await here.spool.facts(WORKSPACE_FACTS)


async def test_a_crash_while_the_folder_of_a_worktree_is_deleted_is_repaired(configured: Settings, repo: Path) -> None:
    """The files that are left must not look like the changes of an agent."""
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        (folder / "one").write_text("1")
        git(folder, "add", "--all")
        await here.end(session)
        removed = here.worktrees.root / ".removed" / session.id
        removed.parent.mkdir()
        folder.rename(removed)
        (removed / "README.md").unlink()
    async with desk(configured) as here:
        await here.worktrees.tidy_up()
        assert not here.worktrees.kept
        assert not removed.exists()
        assert worktree_list(repo) == branches(repo) == []


async def test_a_worktree_that_was_deleted_by_hand_comes_back_with_its_commits(configured: Settings) -> None:
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        (folder / "new.txt").write_text("New.\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message=More")
        shutil.rmtree(folder)
        assert await here.open(session) == folder
        assert (folder / "new.txt").read_text() == "New.\n"


async def test_a_worktree_cannot_lead_to_another_repository(configured: Settings, tmp_path: Path) -> None:
    """The agent can write to its worktree, and to `.git` of the repository."""
    other = make_repo(tmp_path / "other")
    git(other, "worktree", "add", "--quiet", str(tmp_path / "real"))
    async with desk(configured) as here:
        session = await here.start()
        folder = await here.open(session)
        (folder / ".git").write_text((tmp_path / "real/.git").read_text())
        with pytest.raises(Refused, match=r"can't be used: .* does not lead to a repository"):
            await here.open(session)
        assert (folder / "README.md").exists(), "nothing is deleted"
        await here.end(session)
        await here.worktrees.reconcile()
        assert list(here.worktrees.kept) == [str(folder)]


async def test_the_worktrees_of_the_owner_are_left_alone(configured: Settings, repo: Path, tmp_path: Path) -> None:
    """The sandbox does not contain them, and git forgets worktrees that are not there."""
    git(repo, "worktree", "add", "--quiet", str(tmp_path / "own"))
    async with desk(configured) as here:
        session = await here.start()
        await here.open(session)
        await here.end(session)
        await here.worktrees.reconcile()
    assert worktree_list(repo) == [str(tmp_path / "own")]


async def test_a_worktree_without_a_fact_is_reported_and_kept(configured: Settings, tmp_path: Path) -> None:
    async with desk(configured) as here:
        folder = await here.open(await here.start())
    shutil.rmtree(tmp_path / "data/sessions")
    for file in (tmp_path / "data").glob("spool.db*"):
        file.unlink()
    async with desk(configured) as here:
        await here.worktrees.tidy_up()
        assert here.worktrees.kept == {str(folder): "its session is not known"}
        assert folder.exists()


async def test_a_session_without_a_usable_repository_is_refused_with_a_sentence(configured: Settings) -> None:
    agent = configured.agents["coder"]
    async with desk(configured) as here:
        without = await here.start("")
        with pytest.raises(Refused, match="Session 1 has no repository"):
            await here.worktrees.open_workspace(without, agent)
        session = await here.start()
        here.live.settings = configured.model_copy(update={"repos": ()})
        with pytest.raises(Refused, match="app can't be used: it is not configured"):
            await here.worktrees.open_workspace(session, agent)


async def test_a_repository_without_commits_cannot_have_worktrees(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    configured = coding_settings(tmp_path, empty, coder={"worktree": True})
    async with desk(configured) as here:
        session = await here.start("empty")
        with pytest.raises(Refused, match="has no commits yet"):
            await here.open(session)
        opened = await here.worktrees.open_workspace(session, AgentSettings())
        assert (opened.folder, opened.base) == (empty, "")
