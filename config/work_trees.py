"""Git work trees, as far as files tell: which folder has the history of one. Runs no git, and trusts no pointer."""

import os
import stat
from pathlib import Path

from config.errors import InvalidValue
from config.types import resolve_links

_MAX_POINTER_BYTES = 8192
_ROOT_SETTING = "gateway.repo_root ($AGENT_WORKSPACE_ROOT overrides it)"


def find_git_folder(work_tree: Path) -> Path:
    """Return the folder with the history of a work tree: its `.git`, or that of the main work tree of a linked one.

    An agent can write to its repository. So a pointer counts only if the other side confirms it: otherwise an agent
    could lead the next one to the history of another repository. Raises `InvalidValue` with the reason, as part of a
    sentence, and with what to do.
    """
    git = work_tree / ".git"
    try:
        if resolve_links(git) != git:
            raise InvalidValue(f"{git} is a link", "replace the link by the folder itself")
        if git.is_dir():
            if not (git / "HEAD").is_file():
                raise InvalidValue(f"{git} has no HEAD, so it is not a git repository", "restore it, or run `git init`")
            return git
        if not git.is_file():
            raise InvalidValue(
                f"the folder {work_tree} is not a git work tree", "run `git init` there, or clone into it"
            )
        admin = _read_pointer(git, "gitdir: ")
        if admin is not None and (admin / "HEAD").is_file() and _read_pointer(admin / "gitdir") == git:
            shared = _read_pointer(admin / "commondir")
            # git keeps the files of a linked work tree in .git/worktrees/<name> of the main one.
            if shared is not None and admin.parent == shared / "worktrees" and (shared / "HEAD").is_file():
                return shared
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise InvalidValue(f"{git} cannot be used: {reason}", "check its permissions, or restore it") from error
    hint = "use the main work tree, or run `git worktree repair` there"
    raise InvalidValue(f"{git} does not lead to a repository that knows this work tree", hint)


def _read_pointer(file: Path, prefix: str = "") -> Path | None:
    """Return the path in a file, without links. None if there is none."""
    try:
        # Without waiting: an agent may have put a named pipe in its place.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            text = os.fsdecode(opened.read(_MAX_POINTER_BYTES)).removesuffix("\n")
    except OSError:
        return None
    if not text.startswith(prefix) or text == prefix or "\0" in text:
        return None
    return resolve_links(file.parent / text.removeprefix(prefix))


def check_repo_place(folder: Path, root: Path | None, *, is_git: bool) -> None:
    """Check that the folder of a repo lies in `root`, and that it is a git work tree if it has to be. Reads the disk.

    Without a root, it may lie anywhere. Raises `InvalidValue` as `find_git_folder` does.
    """
    if root is not None and not resolve_links(folder).is_relative_to(resolve_links(root)):
        raise InvalidValue(f"the folder {folder} is outside {root}", f"move it there, or change {_ROOT_SETTING}")
    if is_git:
        git_folder = find_git_folder(folder)
        # A linked work tree has its history in another folder, which a coding agent writes to as well.
        if root is not None and not git_folder.is_relative_to(resolve_links(root)):
            message = f"the history of {folder} is outside {root}, in {git_folder}"
            raise InvalidValue(message, f"use the main work tree, or change {_ROOT_SETTING}")
