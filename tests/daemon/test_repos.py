"""Sessions that are bound to a repository: how they start in a chat, who may use which, and what has changed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Sender
from gateway.daemon import Daemon
from gateway.sessions import SessionMeta, SessionStatus
from tests.daemon.harness import ask, gateway, say_and_hear
from tests.repos.harness import coding_settings, git, make_repo, needs_git, needs_sandbox

pytestmark = needs_git

SCOPE = "agent:main:loopback:direct:somebody"
BOB = Sender(id="bob", name="Bob")
BOBS = "agent:main:loopback:direct:bob"
OPEN = {"loopback": {"dm_policy": "open", "group_policy": "open"}, "web": {"enabled": False}}
ROUTED = [{"agent": "coder", "channel": "loopback"}]
"""The coding agent answers in all chats."""


@pytest.fixture
def repos(tmp_path: Path) -> tuple[Path, Path]:
    return make_repo(tmp_path / "app"), make_repo(tmp_path / "site")


def active(daemon: Daemon, scope: str = SCOPE) -> SessionMeta:
    found = daemon.sessions.active(scope)
    assert found is not None
    return found


async def begin(daemon: Daemon, session: SessionMeta) -> None:
    """Store where a session starts, as its first turn does."""
    await daemon.worktrees.open_workspace(session, daemon.live.settings.agents["coder"])


def choosable(folder: Path, *repos: Path, **coder: object) -> Settings:
    return coding_settings(folder, *repos, coder={"choosable": True, **coder}, channels=OPEN)


async def test_new_binds_a_session_to_a_repository(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    configured = coding_settings(tmp_path, *repos, bindings=ROUTED)
    async with gateway(configured) as (daemon, chat):
        answer = await ask(chat, "/new @site Fix the title")
        assert answer == "Started session 1 in site: Fix the title. Your next messages go there."
        session = active(daemon, SCOPE.replace("main", "coder"))
        assert (session.agent, session.repo, session.workspace) == ("coder", "site", "site")
        assert await ask(chat, "/new") == "Started session 2 in site. Your next messages go there."
        assert "no repository other that you can use here. Available: app, site." in await ask(chat, "/new @other")
        assert "Which repository? Add its id after the @" in await ask(chat, "/new @")
        repos[0].rename(tmp_path / "gone")
        assert "The repository app can't be used: the folder" in await ask(chat, "/new @app")
        assert daemon.sessions.next_number(SCOPE.replace("main", "coder")) == 3


async def test_without_a_default_the_first_message_is_refused_with_the_choices(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    configured = coding_settings(tmp_path, *repos, bindings=ROUTED)
    async with gateway(configured) as (daemon, chat):
        sentence = "Which repository? Send /new @app to choose one. Available: app, site."
        assert await ask(chat, "fix the bug") == sentence
        assert await ask(chat, "/new") == sentence
        assert daemon.sessions.active(SCOPE.replace("main", "coder")) is None
        assert "main now answers" not in await ask(chat, "/agent main"), "a command needs no repository"
        assert active(daemon, SCOPE.replace("main", "coder")).agent == "main"


async def test_a_first_message_starts_in_the_default_repository(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    configured = coding_settings(tmp_path, *repos, coder={"repos": ["site"]}, bindings=ROUTED)
    scope = SCOPE.replace("main", "coder")
    async with gateway(configured) as (daemon, chat):
        await chat.say("fix the bug", peer="somebody")
        assert (active(daemon, scope).repo, active(daemon, scope).workspace) == ("site", "site")


async def test_after_a_closed_session_the_next_one_keeps_agent_and_repository(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    async with gateway(coding_settings(tmp_path, *repos, coder={"repos": ["site"]})) as (daemon, chat):
        assert await ask(chat, "hello")
        assert await ask(chat, "/agent coder @app") == (
            "Started session 2 with coder in app. Your next messages go there."
        )
        await daemon.sessions.set_status(active(daemon).key, SessionStatus.COMPLETED)
        await chat.say("fix the bug", peer="somebody")
        session = active(daemon)
        assert (session.number, session.agent, session.repo) == (3, "coder", "app")


async def test_a_coding_agent_has_sessions_of_its_own(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos, coder={"repos": ["app"]})) as (daemon, chat):
        await ask(chat, "hello")
        first = active(daemon)
        assert "Started session 2 with coder in app." in await ask(chat, "/agent coder")
        assert (active(daemon).agent, active(daemon).repo) == ("coder", "app")
        assert daemon.sessions.find(first.key) == first, "the session before stays as it was"
        assert await ask(chat, "/agent coder") == "coder already answers in session 2. /new starts another one."
        assert "Started session 3 with coder in site." in await ask(chat, "/agent coder @site")
        assert "Started session 4." in await ask(chat, "/agent main")
        assert (active(daemon).agent, active(daemon).repo) == ("main", "")
        assert "There is no repository other" in await ask(chat, "/agent coder @other")
        assert active(daemon).number == 4


async def test_the_first_message_can_choose_a_coding_agent(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos, coder={"repos": ["app"]})) as (daemon, chat):
        assert "Started session 1 with coder in app." in await ask(chat, "/agent  coder")
        assert [each.agent for each in daemon.sessions.list(SCOPE)] == ["coder"]
        await ask(chat, "/session close")
        assert "Started session 2 with coder in app." in await ask(chat, "/agent coder"), "the one before is closed"
        assert "Add both names" in await ask(chat, "/agent @site")
        assert "Add both names" in await ask(chat, "/agent coder @")


async def test_a_message_right_behind_a_change_of_the_agent_goes_to_the_new_session(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    """The turn before may take an hour, so the command does not wait for it."""
    configured = coding_settings(tmp_path, *repos, coder={"repos": ["app"]})
    async with gateway(configured) as (daemon, chat):
        await chat.say("hello", peer="somebody")
        await chat.say("/agent coder", peer="somebody")
        await chat.say("fix the bug", peer="somebody")
        session = active(daemon)
        assert (session.number, session.agent) == (2, "coder")
        for _ in range(3):
            await chat.hear_message()
        assert (await daemon.sessions.lines(session.key, 10))[0].text == "fix the bug"


async def test_only_owners_use_any_repository(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(choosable(tmp_path, *repos, repos=["site"])) as (daemon, chat):
        await ask(chat, "hello", sender=BOB)
        refused = "There is no repository app that you can use here."
        assert refused in await ask(chat, "/new @app", sender=BOB)
        assert f"{refused} Available: site." in await ask(chat, "/agent coder @app", sender=BOB)
        assert "Started session 2 with coder in site." in await ask(chat, "/agent coder", sender=BOB)
        assert f"{refused} Available: site." in await ask(chat, "/new @app", sender=BOB)
        assert active(daemon, BOBS).repo == "site"
        # With any other agent, the repositories are the owner's folders.
        assert "Started session 3." in await ask(chat, "/agent main", sender=BOB)
        assert "An owner can use all" in await ask(chat, "/new @site", sender=BOB)
        assert "Started session 1 in site." in await ask(chat, "/new @site")


async def test_a_bound_session_never_changes_its_repository(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos)) as (daemon, chat):
        await ask(chat, "/new @app")
        for command in ("/workspace", "/workspace site", "/workspace default"):
            assert "Session 1 works in the repository app, for good." in await ask(chat, command)
        assert (active(daemon).repo, active(daemon).workspace) == ("app", "app")


async def test_a_session_whose_repository_is_gone_is_not_resumed(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    configured = coding_settings(tmp_path, *repos)
    async with gateway(configured) as (daemon, chat):
        await ask(chat, "/agent coder @app")
        await ask(chat, "/agent main")
        daemon.live.settings = configured.model_copy(update={"repos": configured.repos[1:]})
        assert await ask(chat, "/session resume 1") == "The repository app can't be used: it is not configured."
        assert active(daemon).number == 2
        assert "repository app, which is no longer configured" in await ask(chat, "/session info 1")


@needs_sandbox
async def test_repos_lists_branch_path_and_trouble(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    configured = choosable(tmp_path, *repos, plain, repos=["app", "plain"])
    (repos[0] / "new.txt").write_text("New.\n")
    git(repos[1], "checkout", "--quiet", "-b", "next")
    trouble = f"the folder {plain} is not a git work tree. To fix that, run git init there, or clone into it"
    async with gateway(configured) as (_, chat):
        await ask(chat, "/new @app")
        assert (await ask(chat, "/repos")).splitlines() == [
            "Repositories",
            f"▸ app · {repos[0]} · main, 1 changed file",
            f"  site · {repos[1]} · next",
            f"  plain · {plain} · unavailable: {trouble}",
            "/new @<repository> starts a session with one",
        ]
        assert await ask(chat, "/repos", sender=BOB) == "There are no repositories that you can use here."
        await ask(chat, "/agent coder", sender=BOB)
        listed = await ask(chat, "/repos", sender=BOB)
        assert listed.splitlines()[1:3] == ["▸ app · main, 1 changed file", "  plain · unavailable"]


@needs_sandbox
async def test_session_info_shows_branch_and_changed_files(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos, coder={"worktree": True})) as (daemon, chat):
        await ask(chat, "/agent coder @app")
        assert "repository app, branch main, no changes" in await ask(chat, "/session info")
        await begin(daemon, active(daemon))
        folder = daemon.worktrees.path(active(daemon), daemon.live.settings.repos[0])
        for number in range(7):
            (folder / f"new-{number}.txt").write_text("New.\n")
        info = await ask(chat, "/session info")
        branch = f"gatehouse/{active(daemon).id[:13]}"
        assert f"repository app, branch {branch}, 7 changed files: ? new-0.txt, ? new-1.txt" in info
        assert "? new-4.txt and 2 more" in info
        assert f"worktree {folder}" in info


@needs_sandbox
async def test_diff_shows_what_changed_since_the_session_started(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos)) as (daemon, chat):
        assert "There is no session here yet" in await ask(chat, "/diff")
        await ask(chat, "hello")
        assert "Session 1 works in no repository." in await ask(chat, "/diff")
        await ask(chat, "/agent coder @app")
        await begin(daemon, active(daemon))
        assert await ask(chat, "/diff") == "Nothing has changed in app since session 2 started."
        (repos[0] / "README.md").write_text("Changed.\n")
        git(repos[0], "commit", "--quiet", "--all", "--message=More")
        (repos[0] / "new.txt").write_text("New\u202e.\n")
        diff = await ask(chat, "/diff")
        assert all(line in diff for line in ("2 files changed", "-Hello.", "+Changed.", "+New."))
        assert "\u202e" not in diff
        assert "+Changed." not in await ask(chat, "/diff new.txt")
        await ask(chat, "/agent main")
        assert "+Changed." in await ask(chat, "/diff 2")
        assert "There is no session 7 here." in await ask(chat, "/diff 7")


@needs_sandbox
async def test_a_long_diff_is_sent_as_a_file(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos)) as (daemon, chat):
        await ask(chat, "/agent coder @app")
        await begin(daemon, active(daemon))
        (repos[0] / "new.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
        notice = await say_and_hear(chat, "/diff")
        assert notice.text.startswith("1 file changed, 20000 insertions(+) in app. That is too long for a chat (")
        sent = await sent_file(chat)
        assert sent.startswith(" new.txt | 20000 ")
        assert "\n+line 19999" in sent


async def sent_file(chat: LoopbackChannel) -> str:
    heard = await chat.hear()
    while heard.how != "file":
        heard = await chat.hear()
    assert heard.message is not None
    assert heard.message.file is not None
    assert heard.message.file.name == "session-1.diff"
    return heard.content.decode()


@needs_sandbox
async def test_worktrees_that_are_kept_are_shown_to_owners(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with gateway(coding_settings(tmp_path, *repos, coder={"worktree": True})) as (daemon, chat):
        await ask(chat, "/agent coder @app")
        session = active(daemon)
        await begin(daemon, session)
        (daemon.worktrees.path(session, daemon.live.settings.repos[0]) / "new.txt").write_text("New.\n")
        await ask(chat, "/session close")
        await daemon.worktrees.reconcile()
        listed = await ask(chat, "/repos")
        folder = tmp_path / "data/worktrees"
        assert f"Kept: 1 worktree of sessions that have ended, mostly with changes, in {folder}" in listed


@needs_sandbox
async def test_an_idle_session_of_a_coding_agent_is_completed_and_the_next_message_starts_another(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    clock = [datetime.now(UTC)]
    configured = coding_settings(tmp_path, *repos, coder={"idle_minutes": 30, "worktree": True})
    async with gateway(configured, now=lambda: clock[0]) as (daemon, chat):
        await ask(chat, "hello")
        await ask(chat, "/agent coder @app")
        session = active(daemon)
        await begin(daemon, session)
        clock[0] += timedelta(minutes=31)
        await daemon.housekeeping.sweep()
        ended = active(daemon)
        assert (ended.status, ended.status_by, ended.status_why) == (
            SessionStatus.COMPLETED,
            "gateway",
            "idle_timeout",
        )
        assert daemon.sessions.list(SCOPE)[1].status is SessionStatus.ACTIVE, "other agents have no such limit"
        await daemon.worktrees.reconcile()
        assert not daemon.worktrees.path(session, daemon.live.settings.repos[0]).exists()
        await chat.say("go on", peer="somebody")
        assert (active(daemon).number, active(daemon).agent, active(daemon).repo) == (3, "coder", "app")


async def test_without_a_sandbox_no_branch_is_shown_and_diff_says_why(
    tmp_path: Path, repos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with gateway(coding_settings(tmp_path, *repos)) as (_, chat):
        await ask(chat, "/new @app")
        assert (await ask(chat, "/repos")).splitlines()[1] == f"▸ app · {repos[0]}"
        assert "repository app\n" in await ask(chat, "/session info")
        assert await ask(chat, "/diff") == "git is not installed on this machine."
