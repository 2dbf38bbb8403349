from pathlib import Path

from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.verify import verify
from tests.sessions.conftest import ANN, SCOPE
from tests.sessions.samples import encoded, header


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


async def kinds(manager: SessionManager) -> set[str]:
    return {problem.kind for problem in (await manager.verify()).problems}


async def begun(manager: SessionManager, directory: Path) -> Path:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content=text) for text in "abc"])
    await manager.flush()
    return directory / "transcripts" / file_name(SCOPE)


async def test_our_own_files_pass_the_check(manager: SessionManager, directory: Path) -> None:
    await begun(manager, directory)
    report = await manager.verify()
    assert report.is_sound, report.problems
    assert (report.scopes, report.transcripts, report.entries) == (1, 1, 5)


async def test_each_kind_of_damage_is_reported_and_nothing_is_changed(manager: SessionManager, directory: Path) -> None:
    path = await begun(manager, directory)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0\0\n", lines[4], b'{"torn']))
    path.chmod(0o644)
    orphan = path.with_name(file_name(f"{SCOPE}#2"))
    orphan.write_bytes(encoded([header(key=f"{SCOPE}#2", number=2)]))
    path.with_name(file_name(f"{SCOPE}#3")).write_bytes(b"nonsense\n")
    path.with_name(file_name(f"{SCOPE}#4")).write_bytes(encoded([header(key=f"{SCOPE}#4", number=4, version=2)]))
    path.with_name(f"{path.name}.corrupt").write_bytes(b"x")
    before = content(directory)
    assert await kinds(manager) == {
        "damaged_line",
        "newer_version",
        "not_a_transcript",
        "open_to_others",
        "orphan",
        "seq_gap",
        "set_aside",
        "stale_index",
    }
    assert content(directory) == before


async def test_listed_sessions_without_files_are_reported(manager: SessionManager, directory: Path) -> None:
    (await begun(manager, directory)).unlink()
    assert await kinds(manager) == {"missing_transcript"}


def test_an_empty_folder_passes_the_check(tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir()
    tmp_path.chmod(0o700)
    (tmp_path / "transcripts").chmod(0o700)
    report = verify(tmp_path / "index.json", tmp_path / "transcripts")
    assert report.is_sound, report.problems


async def test_a_missing_index_is_reported_if_there_are_transcripts(manager: SessionManager, directory: Path) -> None:
    await begun(manager, directory)
    (directory / "index.json").unlink()
    assert await kinds(manager) == {"no_index", "orphan"}


async def test_a_folder_in_place_of_the_index_is_reported(manager: SessionManager, directory: Path) -> None:
    await begun(manager, directory)
    (directory / "index.json").unlink()
    (directory / "index.json").mkdir(mode=0o700)
    assert await kinds(manager) == {"bad_index", "orphan"}
    (directory / "index.json").rmdir()
