"""Tests of the tools that talk to the chat. The test plays the part of the chat."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.agent.toolbox import current_time, send_file
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.errors import Refused


def context(workspace: Path, sent: list[tuple[str, bytes]] | None) -> ToolContext:
    async def send(descriptor: int, name: str) -> str:
        if sent is None:
            raise Refused("10 files are the most that can go with one answer")
        sent.append((name, os.pread(descriptor, 100, 0)))
        return name

    return ToolContext(
        workspace=workspace, memory=workspace.parent / "memory", now=lambda: datetime.now(UTC), send_file=send
    )


async def test_a_file_is_sent_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_bytes(b"hello")
    sent: list[tuple[str, bytes]] = []
    told = await send_file.run(context(tmp_path, sent), {"path": "out/a.txt"})
    assert told == "a.txt goes to the person with your answer."
    assert sent == [("a.txt", b"hello")]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("..", "outside the workspace"), ("link", "outside the workspace"), ("none", "There is no"), (".", "not a file")],
)
async def test_only_files_of_the_workspace_are_sent(tmp_path: Path, path: str, sentence: str) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("x")
    (workspace / "link").symlink_to(tmp_path / "secret")
    sent: list[tuple[str, bytes]] = []
    with pytest.raises(ToolFailed, match=sentence):
        await send_file.run(context(workspace, sent), {"path": path})
    assert sent == []


async def test_the_model_is_told_about_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    with pytest.raises(ToolFailed, match="was not sent: 10 files are the most"):
        await send_file.run(context(tmp_path, None), {"path": "a.txt"})


async def test_the_model_is_told_if_files_cannot_be_sent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    bare = ToolContext(workspace=tmp_path, memory=tmp_path / "memory", now=lambda: datetime.now(UTC))
    with pytest.raises(ToolFailed, match="files cannot be sent here"):
        await send_file.run(bare, {"path": "a.txt"})


async def test_the_current_time_is_the_time_of_the_context(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 11, 0, 5, tzinfo=UTC)
    here = ToolContext(workspace=tmp_path, memory=tmp_path / "memory", now=lambda: moment)
    assert await current_time.run(here, {}) == "Sunday, 01 March 2026, 11:00:05 UTC"
