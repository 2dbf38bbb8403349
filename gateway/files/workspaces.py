"""Workspaces: the folder in which the tools of a session work, private to one scope or shared."""

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from config import Settings, WorkspaceMode
from config.types import PRIVATE_WORKSPACES
from gateway.files.store import folder_of


class AgentWorkspace(Struct, frozen=True, kw_only=True):
    path: Path
    name: str
    """The name that the model knows. It contains no ids of people."""
    is_private: bool = False
    """It belongs to one scope. Gatehouse creates it when a tool needs it first."""


@lru_cache(maxsize=4096)  # Each turn needs it.
def workspace_of(root: Path, agent: str, mode: WorkspaceMode, scope: str) -> AgentWorkspace:
    """Return the workspace of an agent in a scope.

    A private one is named after the scope, like a transcript: readable, and unique by its hash. It depends on the agent
    as well, so that a session that another agent takes over does not hand it the files of the first one.
    """
    if mode is WorkspaceMode.SHARED:
        return AgentWorkspace(path=shared_folder(root, agent), name=agent)
    return AgentWorkspace(path=private_folders(root, agent) / folder_of(scope), name=agent, is_private=True)


def shared_folder(root: Path, agent: str) -> Path:
    """Return the workspace that everyone who talks to the agent shares, if the settings say so."""
    return root / agent


def unreachable_folders(settings: Settings) -> list[tuple[str, Path]]:
    """Return the agents whose workspaces are private, although their shared folder has files. Reads the disk."""
    root = settings.gateway.workspace_root
    private = [name for name, agent in settings.agents.items() if agent.workspace is WorkspaceMode.PRIVATE]
    found = []
    for folder in (shared_folder(root, name) for name in private):
        with suppress(OSError), os.scandir(folder) as files:
            if next(files, None) is not None:
                found.append((folder.name, folder))
    return found


def private_folders(root: Path, agent: str) -> Path:
    """Return the folder of an agent's private workspaces.

    It is outside of the shared workspace, whose tools must not reach it.
    """
    return root / f"{agent}{PRIVATE_WORKSPACES}"
