"""Backups are made under load, restored elsewhere, and contain exactly the messages accepted before them."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.admin.archive import receive_stream
from gateway.admin.client import ControlClient
from gateway.agent.providers.offline import OfflineProvider
from gateway.backup.create import Backup
from gateway.backup.restore import Restored, restore_backup
from gateway.build import open_daemon
from gateway.daemon import Daemon
from gateway.errors import CannotStart, Refused
from tests.daemon.harness import gateway, settings

MIDWAY = 12
ROUNDS = 15
NOW = datetime(2026, 3, 1, tzinfo=UTC)


async def taken(daemon: Daemon, path: Path, *, has_secrets: bool = False, config: Path | None = None) -> Path:
    directory = daemon.live.settings.gateway.data_dir
    backup = Backup(directory, spool=daemon.spool, sessions=daemon.sessions, now=daemon.now, config=config)
    blocks = [block async for block in backup.blocks(has_secrets=has_secrets)]
    return written(path, gzip.compress(b"".join(blocks)))


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def restored(archive: Path, folder: Path, *, replaces: bool = False) -> Restored:
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    return restore_backup(archive, data, replaces=replaces, now=NOW)


def quick(daemon: Daemon) -> None:
    """Make the offline responder answer at once."""
    daemon.agents.replace("main", lambda main: replace(main, provider=OfflineProvider(word_delay=0.0)))


async def talk(chat: LoopbackChannel, peer: str, accepted: list[str], midway: asyncio.Event) -> None:
    for number in range(15):
        said = f"{peer} says {number}."
        await chat.say(said, peer=peer)
        accepted.append(said)
        if len(accepted) > MIDWAY:
            midway.set()


def said_in(data: Path) -> set[str]:
    found = [file.read_text() for file in (data / "sessions/transcripts").glob("*.jsonl")]
    return set(re.findall(r'"content":"(\w+ says \d+\.)', "\n".join(found)))


async def test_backup_under_load_contains_all_messages_accepted_before_it(tmp_path: Path) -> None:
    """The restored gateway answers the messages that were not answered yet, and none of them twice."""
    accepted: list[str] = []
    midway = asyncio.Event()
    async with gateway(settings(tmp_path / "old"), quick) as (daemon, chat), asyncio.TaskGroup() as tasks:
        for peer in ("ada", "bob", "eve"):
            tasks.create_task(talk(chat, peer, accepted, midway), name=f"talk:{peer}")
        await midway.wait()
        before = list(accepted)
        archive = await taken(daemon, tmp_path / "backup.tar.gz")
        after = list(accepted)
    restored(archive, tmp_path / "new")
    async with gateway(settings(tmp_path / "new"), quick):
        pass  # It ends when all turns have.
    found = said_in(tmp_path / "new/data")
    assert set(before) <= found
    assert len(found) <= len(after) + 3, "it contains messages accepted after it"
    for file in (tmp_path / "new/data/sessions/transcripts").glob("*.jsonl"):
        said = re.findall(r'"content":"\w+ says (\d+)\.', file.read_text())
        assert said == [str(number) for number in range(len(said))]


async def test_restored_gateway_remembers_the_conversation(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path / "old")) as (daemon, chat):
        await chat.say("my name is Ada")
        await chat.hear_message()
        await chat.say("remember that the key is under the mat")
        await chat.hear_message()
        archive = await taken(daemon, tmp_path / "backup.tar.gz")
    restored(archive, tmp_path / "new")
    async with gateway(settings(tmp_path / "new")) as (_, chat):
        await chat.say("what is my name?")
        assert "Ada" in (await chat.hear_message()).text
        await chat.say("what do you remember?")
        assert "under the mat" in (await chat.hear_message()).text


async def test_backup_contains_secrets_only_on_request(tmp_path: Path) -> None:
    config = tmp_path / "gatehouse.toml"
    config.write_text("# token")
    async with gateway(settings(tmp_path)) as (daemon, _):
        plain = await taken(daemon, tmp_path / "plain.tar.gz")
        whole = await taken(daemon, tmp_path / "whole.tar.gz", has_secrets=True, config=config)
    token = (tmp_path / "data/http.token").read_bytes()
    assert token.strip() not in gzip.decompress(plain.read_bytes())
    restored(whole, tmp_path / "new")
    assert (tmp_path / "new/data/http.token").read_bytes() == token
    assert (tmp_path / "new/data/gatehouse.toml").read_text() == "# token"


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    async with gateway(settings(tmp_path / "source")) as (daemon, chat):
        await chat.say("my name is Ada")
        await chat.hear_message()
        workspace = tmp_path / "source/data/workspace"
        workspace.mkdir(exist_ok=True)
        (workspace / "run.sh").write_text("true")
        (workspace / "run.sh").chmod(0o755)
        (workspace / "out").symlink_to("/etc/passwd")
        return await taken(daemon, tmp_path / "backup.tar.gz")


async def test_restored_files_are_private_and_complete(archive: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        result = restored(archive, tmp_path / "new")
    finally:
        os.umask(before)
    data = tmp_path / "new/data"
    assert not [path for path in data.rglob("*") if path.lstat().st_mode & 0o077]
    assert (data / "workspace/run.sh").stat().st_mode & 0o777 == 0o700
    assert result.manifest.skipped == ["workspace/out"]
    assert {path.name for path in data.iterdir()} <= {"spool.db", "sessions", "memory", "files", "workspace"}
    assert not list((tmp_path / "source/data").glob(".backup-*"))


async def test_present_files_are_moved_aside_only_with_replace(archive: Path, tmp_path: Path) -> None:
    data = tmp_path / "new/data"
    data.mkdir(parents=True)
    (data / "spool.db").write_text("old")
    with pytest.raises(Refused, match="--replace"):
        restored(archive, tmp_path / "new")
    assert (data / "spool.db").read_text() == "old"
    result = restored(archive, tmp_path / "new", replaces=True)
    assert result.set_aside is not None
    assert (result.set_aside / "spool.db").read_text() == "old"
    assert (data / "spool.db").read_bytes().startswith(b"SQLite")


async def test_gateway_does_not_start_after_an_interrupted_restore(archive: Path, tmp_path: Path) -> None:
    data = tmp_path / "new/data"
    (data / ".restoring-half/sessions").mkdir(parents=True)
    (data / "spool.db").touch()
    with pytest.raises(CannotStart, match="--replace"):
        async with open_daemon(settings(tmp_path / "new"), listen=False):
            pass
    restored(archive, tmp_path / "new", replaces=True)
    async with open_daemon(settings(tmp_path / "new"), listen=False):
        pass


def spoiled(archive: Path, spoil: Callable[[bytes], bytes]) -> Path:
    return written(archive.with_name("bad.tar.gz"), spoil(archive.read_bytes()))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    plain = gzip.decompress(data)
    assert b"my name is Ada" in plain
    return gzip.compress(plain.replace(b"my name is Ada", b"my name is Bob"))


def no_archive(_data: bytes) -> bytes:
    return b"hello"


def newer(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'"version":1,', b'"version":9,'))


def climbing(_data: bytes) -> bytes:
    return with_member("workspace/../../climbed")


def absolute(_data: bytes) -> bytes:
    return with_member("/tmp/climbed")  # noqa: S108 - never written


def linked(_data: bytes) -> bytes:
    return with_member("workspace/link", link="/etc/passwd")


def device(_data: bytes) -> bytes:
    return with_member("workspace/null", kind=tarfile.CHRTYPE)


def sparse(_data: bytes) -> bytes:
    return with_member("workspace/sparse", kind=tarfile.GNUTYPE_SPARSE)


def sparse_by_name(data: bytes) -> bytes:
    """GNU tar writes newer sparse files as regular ones, with the real size in an extended header."""
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
    return rewritten(data, {"workspace/run.sh": headers})


def undeclared(data: bytes) -> bytes:
    return rewritten(data, {}, {"http.token": b"a token of the attacker's choice"})


def undeclared_config(data: bytes) -> bytes:
    return rewritten(data, {}, {"gatehouse.toml": b"[mcp.x]\ncommand = ['true']"})


def bomb(_data: bytes) -> bytes:
    """Claim a size that no disk holds."""
    made = io.BytesIO()
    info = tarfile.TarInfo("workspace/bomb")
    info.size = 1 << 50
    made.write(info.tobuf(tarfile.PAX_FORMAT))
    made.write(bytes(1024 * 1024))
    return gzip.compress(made.getvalue())


def long_header(_data: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT))


def endless_headers(_data: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 11
    return gzip.compress((info.tobuf(tarfile.USTAR_FORMAT) + b"11 foo=bar\n".ljust(tarfile.BLOCKSIZE, b"\0")) * 5_000)


def deep_manifest(_data: bytes) -> bytes:
    return with_member("manifest.json", content=b"[" * 200_000)


def deep_folders(data: bytes) -> bytes:
    return rewritten(data, {}, {f"workspace/{'d/' * 1_900}file": b""})


def with_member(name: str, link: str = "", kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = (tarfile.SYMTYPE, link) if link else (kind, "")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def rewritten(data: bytes, headers: dict[str, dict[str, str]], added: dict[str, bytes] | None = None) -> bytes:
    """Give members extended headers, and add members with correct entries in the manifest."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as source,
        tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as target,
    ):
        for info in source:
            read = source.extractfile(info)
            assert read is not None
            content = read.read()
            if info.name == "manifest.json":
                manifest = json.loads(content)
                for name, text in (added or {}).items():
                    manifest["members"][name] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
                    extra = tarfile.TarInfo(name)
                    extra.size = len(text)
                    target.addfile(extra, io.BytesIO(text))
                content = json.dumps(manifest).encode()
                info.size = len(content)
            info.pax_headers = headers.get(info.name, {})
            target.addfile(info, io.BytesIO(content))
    return made.getvalue()


async def test_damaged_backup_changes_nothing(archive: Path, tmp_path: Path) -> None:
    for spoil in (cut, changed, no_archive, newer, climbing, absolute, linked, device, sparse, sparse_by_name):
        bad = spoiled(archive, spoil)
        with pytest.raises(Refused, match=r"Nothing was changed\."):
            restored(bad, tmp_path / "new")
        assert not list((tmp_path / "new/data").iterdir())
    assert not (tmp_path / "climbed").exists()


async def test_archive_that_is_nested_too_deeply_changes_nothing(archive: Path, tmp_path: Path) -> None:
    for spoil in (endless_headers, deep_manifest, deep_folders):
        with pytest.raises(Refused, match=r"Nothing was changed\."):
            restored(spoiled(archive, spoil), tmp_path / "new")
        assert not list((tmp_path / "new/data").iterdir())


async def test_unknown_parts_of_a_manifest_take_no_memory(archive: Path, tmp_path: Path) -> None:
    """A manifest of the allowed size could become twenty times as large in memory, and is tiny when compressed."""
    claim = b'{"format":"gatehouse-backup","version":1,"x":[' + b"[]," * 2_000_000 + b"[]]}"
    bad = spoiled(archive, lambda _: with_member("manifest.json", content=claim))
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="truncated or damaged"):
            restored(bad, tmp_path / "new")
        assert tracemalloc.get_traced_memory()[1] < 5 * len(claim)
    finally:
        tracemalloc.stop()


async def test_file_names_that_are_not_unicode_are_backed_up_and_restored(tmp_path: Path) -> None:
    """An agent chooses the names in its workspace. None of them may prevent a backup."""
    name = os.fsdecode(b"workspace/main/\xff\xfe.txt")
    async with gateway(settings(tmp_path)) as (daemon, _):
        (tmp_path / "data/workspace/main").mkdir(parents=True)
        (tmp_path / "data" / name).write_text("strange")
        archive = await taken(daemon, tmp_path / "backup.tar.gz")
    assert restored(archive, tmp_path / "new").manifest.skipped == []
    assert (tmp_path / "new/data" / name).read_text() == "strange"


async def test_other_kinds_of_files_with_our_temporary_names_prevent_nothing(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, _):
        (tmp_path / "data/.backup-x").mkdir()
        archive = await taken(daemon, tmp_path / "backup.tar.gz")
    (tmp_path / "new/data").mkdir(parents=True)
    (tmp_path / "new/data/.restoring-file").write_text("x")
    (tmp_path / "new/data/.restoring-link").symlink_to(tmp_path)
    restored(archive, tmp_path / "new")


async def test_secrets_that_the_manifest_does_not_declare_are_refused(archive: Path, tmp_path: Path) -> None:
    for spoil in (undeclared, undeclared_config):
        with pytest.raises(Refused, match="contains secrets, although"):
            restored(spoiled(archive, spoil), tmp_path / "new")
        assert not list((tmp_path / "new/data").iterdir())
    restored(spoiled(archive, lambda data: rewritten(data, {})), tmp_path / "new")


async def test_sizes_are_checked_before_anything_is_written(archive: Path, tmp_path: Path) -> None:
    for spoil, reason in ((bomb, "are free on this disk"), (long_header, "other than files")):
        with pytest.raises(Refused, match=reason):
            restored(spoiled(archive, spoil), tmp_path / "new")


async def test_backup_never_follows_a_folder_that_is_swapped_for_a_link(tmp_path: Path) -> None:
    """The kernel's atomic exchange swaps the folder of the agent and a link to the secret all the time."""
    secret = tmp_path / "home/.ssh"
    secret.mkdir(parents=True)
    workspace = tmp_path / "data/workspace/main"
    async with gateway(settings(tmp_path)) as (daemon, _):
        for number in range(20):
            # Many files before the folder: the walk has listed it long before it opens it.
            (workspace / f"a{number:02}").mkdir(parents=True)
            (workspace / f"a{number:02}/x").write_bytes(bytes(20_000))
        (workspace / "keys").mkdir()
        for name in ("id_1", "id_2", "id_3"):
            (workspace / "keys" / name).write_text("harmless")
            (secret / name).write_text("the secret key")
        (workspace / "link").symlink_to(secret)
        swapper = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SWAP, str(workspace), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert swapper.stdout is not None
            assert await swapper.stdout.readline() == b"swapping\n"
            archives = [await taken(daemon, tmp_path / f"{number}.tar.gz") for number in range(ROUNDS)]
        finally:
            swapper.kill()
            await swapper.wait()
    for made in archives:
        assert b"the secret key" not in gzip.decompress(made.read_bytes())


_SWAP = """
import ctypes, os, sys
os.chdir(sys.argv[1])
rename = ctypes.CDLL(None).renameat2
print("swapping", flush=True)
while True:
    rename(-100, b"keys", -100, b"link", 2)  # AT_FDCWD, RENAME_EXCHANGE
"""


async def test_folders_that_are_nested_too_deeply_are_left_out(tmp_path: Path) -> None:
    """Each level takes a file descriptor, and the agent decides how many levels there are."""
    async with gateway(settings(tmp_path)) as (daemon, _):
        deep = tmp_path / "data/workspace/main" / "/".join(["d"] * 100)
        deep.mkdir(parents=True)
        (deep / "file").write_text("x")
        archive = await taken(daemon, tmp_path / "backup.tar.gz")
    (left_out,) = restored(archive, tmp_path / "new").manifest.skipped
    assert left_out.count("/d") == 64


async def test_the_daemon_makes_one_backup_at_a_time(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    folder = configured.gateway.data_dir / "memory"
    folder.mkdir(parents=True, mode=0o700)
    with (folder / "large").open("wb") as file:
        file.truncate(64 * 1024 * 1024)  # More than the connection buffers, so the first backup cannot finish.
    async with gateway(configured), ControlClient(configured.gateway.data_dir) as control, AsyncExitStack() as first:
        blocks = await first.enter_async_context(aclosing(receive_stream(control, "/backup")))
        assert await anext(blocks)
        with pytest.raises(Refused, match="Another backup"):
            async for _ in receive_stream(control, "/backup"):
                pass


async def test_archived_sessions_are_in_the_backup(tmp_path: Path) -> None:
    small = {"backlog_limit": 1}
    async with gateway(settings(tmp_path / "old", session=small), quick) as (daemon, chat):
        for text in ("about trains", "/new", "about boats"):
            await chat.say(text)
            await chat.hear_message()
        await chat.say("/new")
        assert "Session 1 (about trains) is in the archive now." in (await chat.hear_message()).text
        path = await taken(daemon, tmp_path / "backup")
    restored(path, tmp_path / "new")
    async with gateway(settings(tmp_path / "new", session=small), quick) as (_, chat):
        await chat.say("/session restore 1")
        assert "about trains is back" in (await chat.hear_message()).text
