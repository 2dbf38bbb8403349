"""Where the program of a coding agent works: in the repository of its session, or in a worktree."""

from pathlib import Path

from gateway.sessions import SessionMeta
from gateway.sessions.manager import SessionManager
from tests.acp.harness import coder, git, needs_sandbox
from tests.daemon.harness import ask, gateway

pytestmark = needs_sandbox


def only(sessions: SessionManager, number: int) -> SessionMeta:
    (found,) = [each for scope in sessions.scopes() for each in sessions.list(scope) if each.number == number]
    return found


async def test_two_sessions_with_worktrees_do_not_see_each_other(tmp_path: Path) -> None:
    repo = tmp_path / "repos/app"
    async with gateway(coder(tmp_path, worktree=True)) as (daemon, chat):
        await ask(chat, "edit notes.txt first")
        await ask(chat, "/new")
        await ask(chat, "edit notes.txt second")
        one, two = (
            daemon.worktrees.path(only(daemon.sessions, each), daemon.live.settings.repos[0]) for each in (1, 2)
        )
        assert [(folder / "notes.txt").read_text().strip() for folder in (one, two)] == ["first", "second"]
        assert git(repo, "status", "--porcelain") == ""
        assert "+second" in await ask(chat, "/diff notes.txt")
        assert "+first" in await ask(chat, "/diff 1")


async def test_the_diff_has_the_commits_of_the_session(tmp_path: Path) -> None:
    repo = tmp_path / "repos/app"
    async with gateway(coder(tmp_path)) as (_, chat):
        await ask(chat, "edit notes.txt remember")
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "--message=More")
        assert "+remember" in await ask(chat, "/diff")
        assert "branch main, no changes" in await ask(chat, "/session info")


async def test_a_clean_worktree_goes_with_its_session_and_the_program(tmp_path: Path) -> None:
    repo = tmp_path / "repos/app"
    async with gateway(coder(tmp_path, worktree=True)) as (daemon, chat):
        assert await ask(chat, "say Hello.") == "Hello."
        folder = daemon.worktrees.path(only(daemon.sessions, 1), daemon.live.settings.repos[0])
        assert (folder / "README.md").exists()
        await ask(chat, "/session close")
        await daemon.worktrees.reconcile()
        assert not folder.exists()
        assert git(repo, "branch", "--list", "gatehouse/*") == ""
        # The next message starts another session, in the same repository.
        assert (await ask(chat, "say Again.")).endswith("Again.")
        assert only(daemon.sessions, 2).repo == "app"
