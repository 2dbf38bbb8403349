"""Git in the sandbox, with real repositories."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.rules import Live
from gateway.errors import Refused
from gateway.repos.git import ChangedFile, Git, parse_status
from tests.daemon.harness import settings
from tests.repos.harness import git, make_repo, needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture
def runner(tmp_path: Path) -> Git:
    return Git(Live(settings(tmp_path)))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repo(tmp_path / "app", kept_txt="one\n", old_txt="two\n", _gitignore="*.log\n")


async def test_the_state_has_the_branch_and_the_changed_files(runner: Git, repo: Path) -> None:
    state = await runner.state(repo)
    assert (state.branch, state.commit, state.changed) == ("main", git(repo, "rev-parse", "HEAD"), ())
    (repo / "kept.txt").write_text("changed\n")
    (repo / "old.txt").unlink()
    (repo / "added.txt").write_text("new\n")
    git(repo, "add", "added.txt")
    (repo / "a \n strange name").write_text("new\n")
    (repo / "ignored.log").write_text("new\n")
    state = await runner.state(repo)
    assert {(each.status, each.path) for each in state.changed} == {
        ("M", "kept.txt"),
        ("D", "old.txt"),
        ("A", "added.txt"),
        ("?", "a \n strange name"),
    }
    git(repo, "checkout", "--quiet", "--detach")
    assert (await runner.state(repo)).branch == state.commit[:12]


async def test_the_state_counts_commits_that_upstream_does_not_have(runner: Git, repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(repo), "clone")
    clone = tmp_path / "clone"
    git(clone, "commit", "--quiet", "--allow-empty", "--message=More")
    assert (await runner.state(clone)).ahead == 1


async def test_the_diff_has_tracked_and_untracked_changes_and_commits(runner: Git, repo: Path) -> None:
    base = await runner.head(repo)
    assert await runner.diff(repo, base) == ""
    (repo / "kept.txt").write_text("changed\n")
    git(repo, "commit", "--quiet", "--all", "--message=More")
    (repo / "old.txt").write_text("two\nthree\n")
    (repo / "sub").mkdir()
    (repo / "sub/new.txt").write_text("four\n")
    (repo / "ignored.log").write_text("five\n")
    before = git(repo, "status", "--porcelain")
    diff = await runner.diff(repo, base)
    assert "3 files changed, 3 insertions(+), 1 deletion(-)" in diff
    assert all(line in diff for line in ("-one", "+changed", "+three", "+four"))
    assert "five" not in diff
    since_head = await runner.diff(repo)
    assert "+changed" not in since_head
    assert "+three" in since_head
    only = await runner.diff(repo, base, path="sub/new.txt")
    assert "+four" in only
    assert "+three" not in only
    assert git(repo, "status", "--porcelain") == before, "nothing was added to the index"


async def test_a_base_that_is_gone_is_replaced_by_the_last_commit(runner: Git, repo: Path) -> None:
    (repo / "kept.txt").write_text("changed\n")
    assert "+changed" in await runner.diff(repo, "0" * 40)


async def test_a_repository_without_commits_has_a_state_and_a_diff(runner: Git, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet", "--initial-branch=main")
    (empty / "new.txt").write_text("hello\n")
    assert await runner.head(empty) == ""
    assert (await runner.state(empty)).branch == "main"
    assert "+hello" in await runner.diff(empty)


async def test_names_that_look_like_options_or_lead_out_are_harmless(runner: Git, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret\n")
    (repo / "kept.txt").write_text("changed\n")
    assert await runner.diff(repo, path="--output=/tmp/x") == ""
    assert await runner.diff(repo, path=":(exclude)old.txt") == ""
    with pytest.raises(Refused, match="outside repository"):
        await runner.diff(repo, path="../secret.txt")


HOSTILE = """#!/bin/sh
echo ran >>{repo}/ran
cat {secret} >>{repo}/ran
exit 0
"""


async def test_code_in_the_repository_does_not_run_or_cannot_leave_the_sandbox(
    runner: Git, repo: Path, tmp_path: Path
) -> None:
    """An agent can write hooks, filters, a monitor and external diffs into `.git`."""
    secret, script = tmp_path / "secret", repo / "evil.sh"
    secret.write_text("secret")
    script.write_text(HOSTILE.format(repo=repo, secret=secret))
    script.chmod(0o755)
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        shutil.copy(script, repo / ".git/hooks" / name)
    for key in ("core.fsmonitor", "diff.external", "diff.evil.command", "diff.evil.textconv", "core.pager"):
        git(repo, "config", key, str(script))
    git(repo, "config", "filter.evil.clean", str(script))
    git(repo, "config", "filter.evil.smudge", str(script))
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("* diff=evil filter=evil\n")
    (repo / "kept.txt").write_text("changed\n")
    await runner.state(repo)
    assert "secret" not in await runner.diff(repo)
    base = await runner.head(repo)
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    await runner.add_worktree(repo, worktree, branch="gatehouse/x", base=base)
    await runner.has_changes(worktree, base=base, branch="gatehouse/x")
    shutil.rmtree(worktree)
    await runner.remove_worktree(repo, worktree, branch="gatehouse/x", base=base)
    # Only filters are left, and they see nothing but the repository. It is read-only, except for worktrees.
    assert not (repo / "ran").exists()
    assert secret.read_text() == "secret"


async def test_a_filter_that_never_ends_is_stopped(runner: Git, repo: Path) -> None:
    git(repo, "config", "filter.evil.clean", "sleep 1000")
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("* filter=evil\n")
    # Of the same size as before: otherwise git knows without a look at the content that it has changed.
    (repo / "kept.txt").write_text("two\n")
    os.utime(repo / "kept.txt", (0, 0))
    runner.state_timeout = 0.5
    with pytest.raises(Refused, match="git was stopped, because it took longer than"):
        await runner.state(repo)


async def test_a_huge_diff_is_shortened(runner: Git, repo: Path) -> None:
    (repo / "huge.txt").write_text("x" * 79 + "\n")
    with (repo / "huge.txt").open("a") as file:
        file.writelines(f"{number:079}\n" for number in range(60_000))
    diff = await runner.diff(repo)
    assert "1 file changed, 60001 insertions(+)" in diff
    assert "bytes left out" in diff
    assert len(diff) < 2_100_000


async def test_a_folder_that_is_no_work_tree_is_refused(runner: Git, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a git work tree"):
        await runner.state(tmp_path)


async def test_without_a_sandbox_git_says_why_it_cannot_run(
    runner: Git, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "prlimit"):
        (programs / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(Refused, match=r"^I can't run git: .* sandbox, and this machine has none"):
        await runner.diff(repo)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="git is not installed"):
        await runner.state(repo)


@given(st.text(alphabet="\0 ?1uMAD.#abc0/\n\ufffd"))
def test_any_status_is_parsed(output: str) -> None:
    assert all(isinstance(each, ChangedFile) for each in parse_status(output).changed)
