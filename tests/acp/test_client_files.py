import asyncio
import ctypes
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.acp.client_files import ClientFiles
from gateway.errors import ClientRefused
from tests.disks import small_disk

SECRET = "hunter2"


@contextmanager
def trapped_workspace(folder: Path) -> Iterator[Path]:
    """Make a workspace with links that lead out of it. Check afterwards that nothing beside it has changed."""
    folder = folder.resolve()
    workspace, secret = folder / "repo", folder / "secret"
    for each in (workspace, secret, folder / "repo-2", workspace / "src", workspace / ".git"):
        each.mkdir()
    (secret / "key").write_text(SECRET)
    (folder / "repo-2" / "file").write_text(SECRET)
    (workspace / "src" / "main.py").write_text("print()\n")
    (workspace / ".git" / "config").write_text("[core]\n")
    (workspace / "file-link").symlink_to(secret / "key")
    (workspace / "folder-link").symlink_to("../secret")
    (workspace / "chain").symlink_to("folder-link")
    (workspace / "dangling").symlink_to(secret / "new")
    (workspace / "loop").symlink_to("loop")
    (workspace / "git-link").symlink_to(".git")
    (workspace / "inner-link").symlink_to("src/main.py")

    def beside() -> list[tuple[str, bytes]]:
        files = (file for other in (secret, folder / "repo-2", workspace / ".git") for file in other.rglob("*"))
        return sorted((str(file), file.read_bytes()) for file in files)

    before = beside()
    yield workspace
    assert beside() == before
    assert sorted(each.name for each in folder.iterdir()) == ["repo", "repo-2", "secret"]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "all"
    folder.mkdir()
    with trapped_workspace(folder) as workspace:
        yield workspace


@pytest.fixture
def files(workspace: Path) -> ClientFiles:
    return ClientFiles(workspace)


async def test_a_file_is_read_as_it_is(files: ClientFiles, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes("\ufeffOlá\r\nend".encode())
    assert await files.read_text_file(str(workspace / "a.txt")) == "\ufeffOlá\r\nend"
    assert await files.read_text_file(f"{workspace}/src/../a.txt") == "\ufeffOlá\r\nend"


@pytest.mark.parametrize(
    ("line", "limit", "text"),
    [
        (None, None, "1\n2\n3\n4"),
        (0, None, "1\n2\n3\n4"),
        (2, None, "2\n3\n4"),
        (2, 2, "2\n3\n"),
        (None, 1, "1\n"),
        (4, 9, "4"),
        (5, None, ""),
        (9, 9, ""),
        (1, 0, ""),
    ],
)
async def test_a_part_of_a_file_is_read_by_lines(
    files: ClientFiles, workspace: Path, line: int | None, limit: int | None, text: str
) -> None:
    (workspace / "a.txt").write_text("1\n2\n3\n4")
    assert await files.read_text_file(str(workspace / "a.txt"), line, limit) == text


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\0", codec="utf-8"))), line=st.integers(1, 9))
async def test_the_parts_of_a_file_join_to_the_whole(lines: list[str], line: int) -> None:
    text = "\n".join(lines)
    with TemporaryDirectory() as folder:
        file = os.path.realpath(folder) + "/a.txt"  # noqa: ASYNC240 - a test has the loop for itself.
        await asyncio.to_thread(Path(file).write_bytes, text.encode())
        files = ClientFiles(Path(file).parent)
        before = await files.read_text_file(file, 1, line - 1)
        assert before + await files.read_text_file(file, line) == text


@pytest.mark.parametrize("path", ["missing.txt", "no/such/folder/missing.txt"])
async def test_a_missing_file_reads_as_empty(files: ClientFiles, workspace: Path, path: str) -> None:
    """An agent like gemini reads each file before it creates it."""
    assert await files.read_text_file(str(workspace / path)) == ""


async def test_a_file_is_created_with_its_folders_and_closed_to_others(files: ClientFiles, workspace: Path) -> None:
    await files.write_text_file(str(workspace / "a/b/new.txt"), "Olá\r\n")
    file = workspace / "a/b/new.txt"
    assert file.read_bytes() == "Olá\r\n".encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o644, 0o400])
async def test_a_replaced_file_keeps_its_mode(files: ClientFiles, workspace: Path, mode: int) -> None:
    file = workspace / "run.sh"
    file.write_text("old")
    file.chmod(mode)
    await files.write_text_file(str(file), "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", mode)
    assert not list(workspace.glob(".*.tmp"))  # noqa: ASYNC240 - a test has the loop for itself.


async def test_a_write_replaces_the_file_so_that_no_reader_sees_half_of_it(files: ClientFiles, workspace: Path) -> None:
    """Another name of the file outside the workspace keeps the old content, for the same reason."""
    file, outside = workspace / "a.txt", workspace.parent / "secret" / "hard"
    file.write_text("old")
    outside.hardlink_to(file)
    try:
        await files.write_text_file(str(file), "new")
        assert (file.read_text(), outside.read_text()) == ("new", "old")
    finally:
        outside.unlink()


async def test_a_link_inside_the_workspace_is_followed(files: ClientFiles, workspace: Path) -> None:
    assert await files.read_text_file(str(workspace / "inner-link")) == "print()\n"
    await files.write_text_file(str(workspace / "inner-link"), "changed")
    assert (workspace / "inner-link").is_symlink()
    assert (workspace / "src/main.py").read_text() == "changed"


ESCAPES = [
    "..",
    "../secret/key",
    "../repo-2/file",
    "src/../../secret/key",
    "/etc/passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/dev/zero",
    "file-link",
    "folder-link/key",
    "folder-link/new/file",
    "chain/key",
    "chain",
    "dangling",
    "//etc/passwd",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_no_path_leads_out_of_the_workspace(files: ClientFiles, workspace: Path, path: str) -> None:
    given = path if path.startswith("/") else f"{workspace}/{path}"
    for attempt in (files.read_text_file(given), files.write_text_file(given, "overwritten")):
        with capture_logs() as logs, pytest.raises(ClientRefused, match="outside the workspace"):
            await attempt
        assert [(entry["event"], entry["security"]) for entry in logs] == [("workspace_escape_refused", True)]


async def test_a_relative_path_is_refused(files: ClientFiles) -> None:
    for path in ("src/main.py", "", "~/x"):
        with pytest.raises(ClientRefused, match="not an absolute path"):
            await files.read_text_file(path)


@pytest.mark.parametrize(
    "path", [".git", ".git/config", ".git/hooks/pre-commit", ".GIT/config", "git-link/config", "src/.git/x"]
)
async def test_git_folders_are_not_written(files: ClientFiles, workspace: Path, path: str) -> None:
    with pytest.raises(ClientRefused, match=r"\.git cannot be written"):
        await files.write_text_file(f"{workspace}/{path}", "[core]\nfsmonitor = evil")
    assert await files.read_text_file(str(workspace / ".git/config")) == "[core]\n"


async def test_a_pipe_or_a_folder_is_refused_at_once(files: ClientFiles, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    for path, reason in (("pipe", "named pipe"), ("src", "folder"), (".", "folder")):
        async with asyncio.timeout(10):
            with pytest.raises(ClientRefused, match=reason):
                await files.read_text_file(f"{workspace}/{path}")
            with pytest.raises(ClientRefused, match="not a file"):
                await files.write_text_file(f"{workspace}/{path}", "x")
    assert stat.S_ISFIFO((workspace / "pipe").stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file")
async def test_a_device_file_is_refused(files: ClientFiles, workspace: Path) -> None:
    device = workspace / "zero"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no device file can be made here")
    for attempt in (files.read_text_file(str(device)), files.write_text_file(str(device), "x")):
        with pytest.raises(ClientRefused, match=r"device|not a file"):
            await attempt


@pytest.mark.parametrize("path", ["loop", "src/main.py/below", "a\0b", "\udcff\ud800", "x" * 300])
async def test_unusable_paths_are_refused_with_a_sentence(files: ClientFiles, workspace: Path, path: str) -> None:
    for attempt in (files.read_text_file(f"{workspace}/{path}"), files.write_text_file(f"{workspace}/{path}", "x")):
        with pytest.raises(ClientRefused, match=r"cannot be used|not a file"):
            await attempt


async def test_files_that_are_not_text_are_refused(files: ClientFiles, workspace: Path) -> None:
    (workspace / "latin").write_bytes(b"Ol\xe1")
    (workspace / "binary").write_bytes(b"a\0b")
    with pytest.raises(ClientRefused, match="UTF-8"):
        await files.read_text_file(str(workspace / "latin"))
    with pytest.raises(ClientRefused, match="binary"):
        await files.read_text_file(str(workspace / "binary"))
    with pytest.raises(ClientRefused, match="cannot be used"):
        await files.write_text_file(str(workspace / "a.txt"), "lone \ud800 surrogate")


async def test_large_files_are_read_in_parts_only(workspace: Path) -> None:
    files = ClientFiles(workspace, max_file_bytes=1000)
    (workspace / "log").write_text("123456789\n" * 1000)
    path = str(workspace / "log")
    for line, limit in ((None, None), (2, None), (1, 101)):
        with pytest.raises(ClientRefused, match="Read fewer lines"):
            await files.read_text_file(path, line, limit)
    assert len(await files.read_text_file(path, 100, 100)) == 1000
    with pytest.raises(ClientRefused, match="first 5000 bytes"):
        await files.read_text_file(path, 900, 1)
    with pytest.raises(ClientRefused, match="too big"):
        await files.write_text_file(path, "x" * 1001)


async def test_a_sparse_file_does_not_fill_the_memory(files: ClientFiles, workspace: Path) -> None:
    with (workspace / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for line, limit in ((None, None), (1, 5), (2, None)):
        async with asyncio.timeout(30):
            with pytest.raises(ClientRefused):
                await files.read_text_file(str(workspace / "sparse"), line, limit)


async def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    with small_disk(tmp_path.resolve() / "disk", 1 << 20) as disk:  # noqa: ASYNC240 - a test has the loop for itself.
        (disk / "a.txt").write_text("old")
        with pytest.raises(ClientRefused, match="No space left on device"):
            await ClientFiles(disk).write_text_file(str(disk / "a.txt"), "x" * (2 << 20))
        assert {file.name: file.read_text() for file in disk.iterdir()} == {"a.txt": "old"}


async def test_attachments_are_readable_and_not_writable(workspace: Path) -> None:
    attachments = workspace.parent.parent / "attachments"
    attachments.mkdir()
    (attachments / "photo.txt").write_text("seen")
    (attachments / "link").symlink_to(workspace.parent / "secret/key")
    files = ClientFiles(workspace, attachments)
    assert await files.read_text_file("/attachments/photo.txt") == "seen"
    with pytest.raises(ClientRefused, match="cannot be changed"):
        await files.write_text_file("/attachments/photo.txt", "x")
    for path in ("/attachments/../secret/key", "/attachments/link"):
        with pytest.raises(ClientRefused, match="outside"):
            await files.read_text_file(path)


async def test_a_workspace_that_has_become_a_link_is_refused(files: ClientFiles, workspace: Path) -> None:
    moved = workspace.parent.parent / "moved"
    workspace.rename(moved)  # noqa: ASYNC240 - a test has the loop for itself.
    workspace.symlink_to(workspace.parent / "secret")  # noqa: ASYNC240 - a test has the loop for itself.
    try:
        with pytest.raises(ClientRefused):
            await files.read_text_file(str(workspace / "key"))
        with pytest.raises(ClientRefused):
            await files.write_text_file(str(workspace / "key"), "overwritten")
    finally:
        workspace.unlink()  # noqa: ASYNC240 - a test has the loop for itself.
        moved.rename(workspace)


async def test_links_that_are_swapped_meanwhile_lead_nowhere(files: ClientFiles, workspace: Path) -> None:
    """A folder and a link to the secret swap their names all the time, while the folder is read and written."""
    place, link = workspace / "swap", workspace / "secret-link"
    place.mkdir()
    (place / "key").write_text("inside")
    link.symlink_to("../secret")
    is_over = threading.Event()
    rename = ctypes.CDLL(None).renameat2
    swapping = asyncio.to_thread(swap_until, is_over, rename, place, link)
    reads = []
    async with asyncio.TaskGroup() as group:
        group.create_task(swapping)
        try:
            with capture_logs():
                for number in range(300):
                    with suppress(ClientRefused):
                        reads.append(await files.read_text_file(str(place / "key")))
                    with suppress(ClientRefused):
                        await files.write_text_file(str(place / ("key" if number % 2 else f"new-{number}")), "written")
        finally:
            is_over.set()
    assert reads
    assert set(reads) <= {"inside", "written"}


def swap_until(is_over: threading.Event, rename: Callable[..., int], first: Path, second: Path) -> None:
    exchange, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    while not is_over.is_set():
        assert rename(here, bytes(first), here, bytes(second), exchange) == 0


SEGMENTS = st.sampled_from(
    [
        *(
            "..",
            ".",
            "",
            "src",
            "main.py",
            "file-link",
            "folder-link",
            "chain",
            "loop",
            "key",
            "repo",
            "repo-2",
            "secret",
        ),
        *("dangling", "git-link", ".git", ".Git", "config", "new", "\0", "~", "proc", "self", "root", "etc", "passwd"),
    ]
)
PATHS = st.one_of(
    st.lists(st.one_of(SEGMENTS, st.text(max_size=8)), max_size=9).map("/".join),
    st.text(max_size=40),
)


@given(path=PATHS, is_absolute=st.booleans())
@example(path="../secret/key", is_absolute=False)
@example(path="folder-link/../secret/new", is_absolute=False)
async def test_every_path_is_served_inside_or_refused(path: str, is_absolute: bool) -> None:  # noqa: FBT001 - hypothesis names it.
    with TemporaryDirectory() as name, trapped_workspace(Path(name)) as workspace, capture_logs():
        files = ClientFiles(workspace)
        given = f"/{path}" if is_absolute else f"{workspace}/{path}"
        with suppress(ClientRefused):
            assert SECRET not in await files.read_text_file(given)
        with suppress(ClientRefused):
            await files.write_text_file(given, "written")
            assert await files.read_text_file(given) == "written"
