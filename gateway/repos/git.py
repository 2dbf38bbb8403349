"""Git, in a sandbox without network: an agent can write to `.git`, and git runs what stands there.

Hooks, filters, a file system monitor and external diffs are all code that a repository can bring along. What can be
turned off is turned off. The rest runs where it can read the repository and nothing else of this machine.
"""

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from config.errors import InvalidValue
from config.work_trees import find_git_folder
from gateway.access.rules import Live
from gateway.errors import Refused
from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable
from gateway.sandbox.program import SandboxedProgram, run_program
from gateway.text import excerpt, printable
from gateway.text.plain import without_code

MAX_DIFF_BYTES = 2_000_000
_STATE_TIMEOUT = 15.0
_DIFF_TIMEOUT = 60.0
_CHECKOUT_TIMEOUT = 300.0
_MAX_OUTPUT = 400_000
_MAX_REASON = 200
_LIMITS = SandboxLimits(memory_bytes=2 * 1024**3, processes=64)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_CONFIG = {
    "safe.directory": "*",  # The service may run as another user than the owner of the files.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "core.pager": "cat",
    "color.ui": "false",
    "diff.submodule": "short",
    "gc.auto": "0",
    "gc.worktreePruneExpire": "never",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
}
_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",  # The repository is read-only, and an agent may use it at the same time.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_AUTHOR_NAME": "Gatehouse",
    "GIT_AUTHOR_EMAIL": "gatehouse@localhost",
    "GIT_COMMITTER_NAME": "Gatehouse",
    "GIT_COMMITTER_EMAIL": "gatehouse@localhost",
    "GIT_CONFIG_COUNT": str(len(_CONFIG)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_CONFIG.values())},
}

# Errors come after the output, and only if the script fails: the output is parsed.
_WRAPPER = """
(
set -eu
%s
) 2>/tmp/errors || { code=$?; echo; cat /tmp/errors; exit $code; }
"""
_COMMAND = 'git "$@"'

# Untracked files are part of the diff if the index knows of them. So a copy of the index gets their names, and new
# objects go to a folder of the sandbox.
_DIFF = """
base=$1
shift
base=$(git rev-parse --verify --quiet "$base^{commit}" || git rev-parse --verify --quiet 'HEAD^{commit}' ||
    git hash-object -t tree /dev/null)
objects=$(cd "$(git rev-parse --git-common-dir)/objects" && pwd)
cp "$(git rev-parse --git-path index)" /tmp/index 2>/dev/null || :
mkdir /tmp/objects
export GIT_INDEX_FILE=/tmp/index GIT_OBJECT_DIRECTORY=/tmp/objects GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects"
git ls-files --others --exclude-standard -z | grep -zv '/$' >/tmp/new || :
if [ -s /tmp/new ]; then
    git add --intent-to-add --pathspec-from-file=/tmp/new --pathspec-file-nul || :
fi
git diff --patch-with-stat --no-ext-diff --no-textconv --no-color --find-renames "$base" -- "$@"
"""

# Says something if a worktree has changes, or if it or its branch has commits that are not in `base`.
_CHANGES = """
base=$1
branch=$2
git status --porcelain --untracked-files=normal
git rev-list --max-count=1 HEAD "^$base"
if git rev-parse --verify --quiet "refs/heads/$branch" >/dev/null; then
    git rev-list --max-count=1 "refs/heads/$branch" "^$base"
fi
"""

# The branch may be there from an attempt that was interrupted, or with commits of a worktree whose folder was deleted.
# The repository may know the path for the same reasons: that is what `--force` twice is for. The lock keeps git in the
# sandbox of another session, where this folder does not exist, from forgetting the worktree.
_ADD = """
path=$1
branch=$2
base=$3
set -- --quiet --force --force --lock --reason=Gatehouse
if git rev-parse --verify --quiet "refs/heads/$branch" >/dev/null; then
    git worktree add "$@" "$path" "$branch"
else
    git worktree add "$@" -b "$branch" "$path" "$base"
fi
"""

_REMOVE = """
path=$1
branch=$2
base=$3
git worktree remove --force --force "$path" 2>/dev/null || :
git update-ref -d "refs/heads/$branch" "$base" 2>/dev/null || :
"""


class ChangedFile(Struct, frozen=True):
    path: str
    status: str
    """A letter as in git: M modified, A added, D deleted, ? untracked, U in conflict."""


class RepoState(Struct, frozen=True, kw_only=True):
    branch: str
    """Its name, or the first digits of the commit that is checked out without a branch."""
    commit: str
    """Empty if there are no commits yet."""
    changed: tuple[ChangedFile, ...] = ()
    ahead: int = 0
    """Commits that the upstream branch does not have."""


class Git:
    """All methods raise `Refused` with a sentence if git cannot run, or fails."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.state_timeout = _STATE_TIMEOUT

    async def state(self, folder: Path) -> RepoState:
        arguments = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--no-renames")
        output = await self._run(_COMMAND, *arguments, folder=folder, seconds=self.state_timeout)
        return parse_status(output)

    async def head(self, folder: Path) -> str:
        """Return the commit that is checked out; empty if there are no commits yet."""
        output = await self._run(
            "git rev-parse --verify --quiet 'HEAD^{commit}' || :", folder=folder, seconds=_STATE_TIMEOUT
        )
        commit = output.strip()
        return commit if _COMMIT.fullmatch(commit) else ""

    async def diff(self, folder: Path, base: str | None = None, *, path: str = "") -> str:
        """Return what has changed since the commit `base`, or since the last commit, including untracked files.

        A summary comes first. `path` restricts it to one file or folder.
        """
        paths = [path] if path else []
        return await self._run(
            _DIFF, base or "HEAD", *paths, folder=folder, seconds=_DIFF_TIMEOUT, max_output=MAX_DIFF_BYTES
        )

    async def has_changes(self, worktree: Path, *, base: str, branch: str) -> bool:
        """Return whether a worktree has uncommitted or untracked changes, or commits since `base`."""
        output = await self._run(_CHANGES, base, branch, folder=worktree, seconds=_DIFF_TIMEOUT)
        return bool(output.strip())

    async def add_worktree(self, repo: Path, worktree: Path, *, branch: str, base: str) -> None:
        """Check out `branch` into the empty folder `worktree`. A new branch begins at the commit `base`."""
        git_folder = await _find_git_folder(repo)
        await self._run(
            _ADD,
            *(str(worktree), branch, base),
            folder=git_folder,
            writable=(git_folder, worktree),
            seconds=_CHECKOUT_TIMEOUT,
        )

    async def remove_worktree(self, repo: Path, worktree: Path, *, branch: str, base: str) -> None:
        """Make a repository forget a worktree whose folder is gone, and its branch if that is still at `base`.

        `git worktree prune` would forget all worktrees that the sandbox does not contain.
        """
        git_folder = await _find_git_folder(repo)
        await self._run(
            _REMOVE,
            *(str(worktree), branch, base),
            folder=git_folder,
            writable=(git_folder,),
            seconds=_STATE_TIMEOUT,
        )

    async def _run(
        self,
        script: str,
        *arguments: str,
        folder: Path,
        seconds: float,
        writable: tuple[Path, ...] = (),
        max_output: int = _MAX_OUTPUT,
    ) -> str:
        git = shutil.which("git")
        if git is None:
            raise Refused("git is not installed on this machine.")
        # For the repository itself, `.git` is in the folder. A worktree needs that of its repository as well.
        readable = () if writable else (folder, await _find_git_folder(folder))
        program = SandboxedProgram(
            argv=("/bin/sh", "-c", _WRAPPER % script, "git", *arguments),
            env={**_ENVIRONMENT, **({"GIT_DIR": str(folder)} if writable else {})},
            path=(str(Path(git).parent),),
            cwd=folder,
            writable=writable,
            readable=readable,
            hidden=(self._live.settings.gateway.data_dir,),
            limits=_LIMITS,
        )
        service = self._live.settings.tools.shell.sandbox_socket
        try:
            result = await run_program(program, seconds=seconds, max_output=max_output, service=service)
        except SandboxUnavailable as unavailable:
            raise Refused(f"I can't run git: {without_code(str(unavailable))}") from unavailable
        if result.stopped_for and result.output and max_output == MAX_DIFF_BYTES:
            return result.output
        if result.stopped_for:
            raise Refused(f"git was stopped, because {result.stopped_for}.")
        if result.exit_code != 0:
            reason = result.output.strip().rpartition("\n")[2].removeprefix("fatal: ").removeprefix("error: ")
            raise Refused(f"git failed: {excerpt(printable(reason), _MAX_REASON) or f'exit code {result.exit_code}'}.")
        return result.output


async def _find_git_folder(folder: Path) -> Path:
    try:
        return await asyncio.to_thread(find_git_folder, folder)
    except InvalidValue as error:
        raise Refused(f"This is not a git work tree: {error}.") from error


def parse_status(output: str) -> RepoState:
    """Read the output of `git status --porcelain=v2 --branch -z`. Lines of another form are left out."""
    facts: dict[str, str] = {}
    changed: list[ChangedFile] = []
    for line in output.split("\0"):
        if line.startswith("# branch."):
            name, _, value = line.removeprefix("# branch.").partition(" ")
            facts[name] = value
        else:
            changed += _changed_files(line)
    commit = facts.get("oid", "")
    commit = commit if _COMMIT.fullmatch(commit) else ""
    branch = facts.get("head", "")
    ahead = re.match(r"\+(\d+) ", facts.get("ab", ""))
    return RepoState(
        branch=commit[:12] if branch == "(detached)" else branch,
        commit=commit,
        changed=tuple(changed),
        ahead=int(ahead[1]) if ahead else 0,
    )


_CHANGED = re.compile(
    r"1 (?P<changed>[A-Z.]{2}) \S+ \d+ \d+ \d+ [0-9a-f]+ [0-9a-f]+ (?P<path>.+)"
    r"|u (?P<conflict>[A-Z]{2}) \S+ \d+ \d+ \d+ \d+ [0-9a-f]+ [0-9a-f]+ [0-9a-f]+ (?P<unmerged>.+)"
    r"|\? (?P<untracked>.+)",
    re.DOTALL,
)


def _changed_files(line: str) -> Iterator[ChangedFile]:
    found = _CHANGED.fullmatch(line)
    if found is None:
        return
    if found["path"]:
        in_index, in_work_tree = found["changed"][0], found["changed"][1]
        yield ChangedFile(found["path"], in_index if in_work_tree == "." else in_work_tree)
    elif found["unmerged"]:
        yield ChangedFile(found["unmerged"], "U")
    else:
        yield ChangedFile(found["untracked"], "?")
