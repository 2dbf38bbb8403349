"""Workspaces: the folder in which the tools of a session work, private to one scope or shared."""

from pathlib import Path

from msgspec import Struct

from config import WorkspaceMode
from gateway.files.store import folder_of

_PRIVATE = ".private"
"""Ends the name of the folder with an agent's private workspaces. No agent's name contains a dot."""


class Workspace(Struct, frozen=True, kw_only=True):
    path: Path
    name: str
    """The name that the model knows. It contains no ids of people."""
    is_private: bool = False
    """It belongs to one scope. Gatehouse creates it when a tool needs it first."""


def workspace_of(root: Path, agent: str, mode: WorkspaceMode, scope: str) -> Workspace:
    """Return the workspace of an agent in a scope.

    A private one is named after the scope, like a transcript: readable, and unique by its hash. It depends on the agent
    as well, so that a session that another agent takes over does not hand it the files of the first one.
    """
    if mode is WorkspaceMode.SHARED:
        return Workspace(path=shared_folder(root, agent), name=agent)
    return Workspace(path=private_folders(root, agent) / folder_of(scope), name=agent, is_private=True)


def shared_folder(root: Path, agent: str) -> Path:
    """Return the workspace that everyone who talks to the agent shares, if the settings say so."""
    return root / agent


def private_folders(root: Path, agent: str) -> Path:
    """Return the folder of an agent's private workspaces.

    It is outside of the shared workspace, whose tools must not reach it.
    """
    return root / f"{agent}{_PRIVATE}"
