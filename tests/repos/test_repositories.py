"""Which repositories a person may use, and which of them can be used now."""

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import RoleSettings, Settings
from config.work_trees import find_git_folder
from gateway.access.role_table import Role
from gateway.access.rules import Live
from gateway.errors import Refused
from gateway.repos.repositories import Repositories
from gateway.text.plain import without_code
from tests.repos.harness import coding_settings, git, make_repo, needs_git

MEMBER, OWNER = (Role(name=name, settings=RoleSettings(), is_owner=name == "owner") for name in ("member", "owner"))


def repositories(configured: Settings) -> Repositories:
    return Repositories(Live(configured))


def rooted(configured: Settings, root: Path) -> Settings:
    return configured.model_copy(update={"gateway": configured.gateway.model_copy(update={"repo_root": root})})


async def refusal(repos: Repositories, repo: str, *, is_git: bool = True) -> str:
    """Return why a repository is refused. The log has the same as a security event."""
    with capture_logs() as logs, pytest.raises(Refused) as refused:
        await repos.check(repo, by="a test", is_git=is_git)
    (event,) = [each for each in logs if each["event"] == "repo_refused"]
    assert (event["security"], event["repo"], event["by"]) == (True, repo, "a test")
    assert without_code(event["reason"]) in str(refused.value)
    return str(refused.value)


def test_the_default_is_the_first_of_the_agent_or_the_only_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert repositories(coding_settings(tmp_path, one, two, coder={"repos": ["two", "one"]})).default("coder") == "two"
    assert repositories(coding_settings(tmp_path, one)).default("coder") == "one"
    assert repositories(coding_settings(tmp_path, one, two)).default("coder") is None


def test_people_use_the_repositories_of_the_agent_and_owners_all(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    repos = repositories(coding_settings(tmp_path, one, two, coder={"repos": ["two"]}))
    assert [repo.id for repo in repos.choices("coder", MEMBER)] == ["two"]
    assert [repo.id for repo in repos.choices("coder", OWNER)] == ["one", "two"]
    assert repos.choices("main", MEMBER) == []
    with pytest.raises(Refused, match=r"no repository one that you can use here\. Available: two"):
        repos.choose("coder", role=MEMBER, named="one")
    assert repos.choose("coder", role=OWNER, named="one") == "one"


def test_a_new_session_keeps_the_repository_if_the_person_still_may_use_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    repos = repositories(coding_settings(tmp_path, one, two, coder={"repos": ["two"]}))
    assert repos.choose("coder", role=OWNER, current="one") == "one"
    assert repos.choose("coder", role=MEMBER, current="one") == "two"
    assert repos.choose("main", role=OWNER, current="one") == ""
    without = repositories(coding_settings(tmp_path, one, two))
    with pytest.raises(Refused, match=r"Send /new @one to choose one\. Available: one, two"):
        without.choose("coder", role=OWNER)
    with pytest.raises(Refused, match="there is none that you can use"):
        without.choose("coder", role=MEMBER)


@needs_git
async def test_a_git_work_tree_inside_the_root_is_accepted(tmp_path: Path) -> None:
    app = make_repo(tmp_path / "src/app")
    repos = repositories(rooted(coding_settings(tmp_path, app), tmp_path / "src"))
    assert (await repos.check("app", by="a test", is_git=True)).path == app


async def test_what_is_missing_or_not_git_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    repos = repositories(coding_settings(tmp_path, plain, tmp_path / "gone"))
    assert "it is not configured" in await refusal(repos, "other")
    assert "does not exist" in await refusal(repos, "gone")
    assert "is not a git work tree. To fix that, run git init there" in await refusal(repos, "plain")
    assert (await repos.check("plain", by="a test", is_git=False)).id == "plain"


@needs_git
async def test_a_repository_that_became_a_link_is_refused(tmp_path: Path) -> None:
    app, other = make_repo(tmp_path / "app"), make_repo(tmp_path / "other")
    repos = repositories(coding_settings(tmp_path, app))
    app.rename(tmp_path / "moved")
    app.symlink_to(other)
    assert "was replaced by a link" in await refusal(repos, "app")


@needs_git
async def test_a_repository_outside_the_root_is_refused_even_behind_a_link(tmp_path: Path) -> None:
    make_repo(tmp_path / "elsewhere/app")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app").symlink_to(tmp_path / "elsewhere/app")
    repos = repositories(rooted(coding_settings(tmp_path, tmp_path / "src/../src/app"), tmp_path / "src"))
    assert "is outside" in await refusal(repos, "app")


@needs_git
async def test_a_git_folder_cannot_lead_to_another_repository(tmp_path: Path) -> None:
    """An agent can write to its repository, so it can put a link or a pointer in the place of `.git`."""
    app, other = make_repo(tmp_path / "app"), make_repo(tmp_path / "other")
    repos = repositories(coding_settings(tmp_path, app))
    (app / ".git").rename(tmp_path / "old.git")
    (app / ".git").symlink_to(other / ".git")
    assert ".git is a link" in await refusal(repos, "app")
    (app / ".git").unlink()
    (app / ".git").write_text(f"gitdir: {other}/.git\n")
    assert "does not lead to a repository that knows this work tree" in await refusal(repos, "app")
    git(other, "worktree", "add", "--quiet", str(tmp_path / "real"))
    (app / ".git").write_text((tmp_path / "real/.git").read_text())
    assert "does not lead to a repository that knows this work tree" in await refusal(repos, "app")


@needs_git
async def test_a_linked_worktree_is_accepted_if_its_history_is_inside_the_root(tmp_path: Path) -> None:
    main = make_repo(tmp_path / "main")
    linked = tmp_path / "src/linked"
    linked.parent.mkdir()
    git(main, "worktree", "add", "--quiet", str(linked))
    assert find_git_folder(linked) == main / ".git"
    configured = coding_settings(tmp_path, linked)
    await repositories(rooted(configured, tmp_path)).check("linked", by="a test", is_git=True)
    refused = await refusal(repositories(rooted(configured, tmp_path / "src")), "linked")
    assert f"the history of {linked} is outside {tmp_path}/src, in {main}/.git" in refused


@needs_git
async def test_a_linked_worktree_cannot_claim_the_history_of_another_repository(tmp_path: Path) -> None:
    """An agent in a linked worktree can write to its part of the main `.git`, which names the shared folder."""
    main, other, linked = make_repo(tmp_path / "main"), make_repo(tmp_path / "other"), tmp_path / "linked"
    git(main, "worktree", "add", "--quiet", str(linked))
    (main / ".git/worktrees/linked/commondir").write_text(f"{other}/.git\n")
    repos = repositories(coding_settings(tmp_path, linked))
    assert "does not lead to a repository that knows this work tree" in await refusal(repos, "linked")


@needs_git
@pytest.mark.parametrize("file", ["gitdir", "commondir"])
async def test_a_named_pipe_in_the_place_of_a_pointer_is_refused(tmp_path: Path, file: str) -> None:
    """Opening it would block one of the few worker threads for ever."""
    main, linked = make_repo(tmp_path / "main"), tmp_path / "linked"
    git(main, "worktree", "add", "--quiet", str(linked))
    pointer = main / ".git/worktrees/linked" / file
    pointer.unlink()
    os.mkfifo(pointer)
    async with asyncio.timeout(10):
        refused = await refusal(repositories(coding_settings(tmp_path, linked)), "linked")
    assert "does not lead to a repository that knows this work tree" in refused


async def test_a_pointer_that_no_path_can_be_is_refused(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / ".git").write_text(f"gitdir: {'x' * 300}\n")
    repos = repositories(coding_settings(tmp_path, app))
    assert "file name too long" in await refusal(repos, "app")
