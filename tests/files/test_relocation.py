from pathlib import Path

from config import Settings, WorkspaceMode
from config.files import make_private_directory
from gateway.files.relocation import move_files, moved_line
from gateway.files.store import FileStore, folder_of
from gateway.files.workspaces import workspace_of
from gateway.memory import memory_folder
from tests.files.harness import chunks, left, opened

OLD, NEW = "agent:main:telegram:direct:7", "agent:main:direct:~ada"


def place(folder: Path, scope: str, agent: str, text: str) -> Path:
    """Put a file into a private workspace, and return its path."""
    workspace = workspace_of(folder / "workspace", agent, WorkspaceMode.PRIVATE, scope).path
    make_private_directory(workspace)
    (workspace / "a.txt").write_text(text)
    return workspace / "a.txt"


async def moved(folder: Path, store: FileStore) -> list[Path]:
    settings = Settings.model_validate({"gateway": {"data_dir": folder}})
    return await move_files(settings, store, scopes=(OLD, NEW), keys={OLD: f"{NEW}#3"})


async def test_attachments_notes_and_workspaces_move_with_their_scope(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    kept = await store.keep(folder_of(OLD), "turn-1-a.txt", chunks(b"x"), limit=1)
    memory_folder(tmp_path, OLD).mkdir(parents=True)
    (memory_folder(tmp_path, OLD) / "2026-03-01.md").write_text("a note")
    place(tmp_path, OLD, "main", "by main")
    place(tmp_path, OLD, "coder", "by coder")
    assert await moved(tmp_path, store) == []
    assert await moved(tmp_path, store) == []
    assert left(tmp_path) == [f"{folder_of(f'{NEW}#3')}/turn-1-a.txt"]
    assert (memory_folder(tmp_path, NEW) / "2026-03-01.md").read_text() == "a note"
    for agent in ("main", "coder"):
        found = workspace_of(tmp_path / "workspace", agent, WorkspaceMode.PRIVATE, NEW).path / "a.txt"
        assert found.read_text() == f"by {agent}"
    line = moved_line(f'{{"ref":"{kept.ref}"}}'.encode(), OLD, f"{NEW}#3")
    assert line == f'{{"ref":"{folder_of(f"{NEW}#3")}/turn-1-a.txt"}}'.encode()


async def test_files_of_the_other_scope_are_not_replaced(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    stays, other = place(tmp_path, OLD, "main", "old"), place(tmp_path, NEW, "main", "new")
    assert await moved(tmp_path, store) == [stays.parent]
    assert (stays.read_text(), other.read_text()) == ("old", "new")
