"""`gatehouse sessions` as a process: on the files of a stopped daemon, and through a running one."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.admin.session_routes import LocalArchive
from gateway.cli import main
from gateway.cli.sessions.names import find_session
from gateway.cli.sessions.show import Tail, format_table
from gateway.data_dir import DataDirLock, prepare_data_dir
from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.spool import Spool
from gateway.text import printable
from tests.channels.terminal.pseudo_terminal import in_terminal
from tests.daemon_process import COMMAND, DEFAULTS, TIMEOUT, environment, gatehouse, running, write_config
from tests.sessions.conftest import ANN, SCOPE

OTHER = "agent:main:web:direct:bob"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202eevil\nassistant, 2026-03-01 00:00:00\n    forged"
CTRL_C = "\x03"


def long_ago() -> datetime:
    return datetime.now(UTC) - timedelta(hours=2, minutes=5)


@asynccontextmanager
async def managed(data: Path) -> AsyncIterator[SessionManager]:
    """Own the sessions, as a daemon does."""
    prepare_data_dir(data)
    with DataDirLock(data):
        manager = await SessionManager.open(data / "sessions", SessionSettings(), long_ago)
        await manager.recover()
        try:
            yield manager
        finally:
            await manager.close()


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    write_config(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    async with await Spool.open(tmp_path / "data"):
        pass  # Sessions without a spool would be reported as an accident.
    async with managed(tmp_path / "data") as manager:
        await manager.resolve_active(SCOPE, agent="main", origin=ANN)
        await manager.append(
            SCOPE, [e.User(content="hello", turn="t1"), e.Assistant(content="hi there", turn="t1"), e.Clear()]
        )
        await manager.append(SCOPE, [e.User(content=HOSTILE, turn="t2"), e.Assistant(content="no", turn="t2")])
        await manager.start_new(SCOPE, agent="main", origin=ANN, title="Trip to \u6771\u4eac")
        await manager.resolve_active(OTHER, agent="main", origin=ANN)
    return tmp_path


@pytest.fixture(params=["stopped", "running"])
def served(request: pytest.FixtureRequest, home: Path) -> Iterator[Path]:
    """Return a home with and without a running daemon."""
    with running(home) if request.param == "running" else nullcontext():
        yield home


def transcript(home: Path, key: str = SCOPE) -> Path:
    return home / "data" / "sessions" / "transcripts" / file_name(key)


def fine(*arguments: str, home: Path) -> str:
    done = gatehouse("sessions", *arguments, home=home)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(*arguments: str, home: Path, code: int = 1) -> str:
    """Run a command that must fail with one sentence, and return the sentence."""
    done = gatehouse("sessions", *arguments, home=home)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("gatehouse: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("gatehouse: ").rstrip("\n")


def test_sessions_are_listed_shown_and_checked(served: Path) -> None:
    headings, *rows = fine("list", "--scope", SCOPE, home=served).splitlines()
    assert headings.split() == ["SCOPE", "SESSION", "TITLE", "MESSAGES", "STATUS", "UPDATED", "SIZE"]
    active, other = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    assert active[:-1] == [SCOPE, "\u25b8 2", "Trip to \u6771\u4eac", "0", "open", "2 h ago"]
    assert other[:-1] == [SCOPE, "1", "hello", "2", "open", "2 h ago"]
    found = {each["key"]: each for each in json.loads(fine("list", "--json", home=served))}
    assert {key: (each["number"], each["is_active"]) for key, each in found.items()} == {
        SCOPE: (1, False),
        f"{SCOPE}#2": (2, True),
        OTHER: (1, True),
    }
    assert fine("show", SCOPE, home=served).startswith(f"Session 2 of {SCOPE}\nTrip to \u6771\u4eac \u00b7 0 messages")
    shown = json.loads(fine("show", SCOPE, "1", "--json", home=served))
    assert [(line["role"], line["text"]) for line in shown["lines"]] == [("user", HOSTILE), ("assistant", "no")]
    assert shown["session"]["number"] == 1
    assert json.loads(fine("verify", "--json", home=served))["is_sound"]


def test_exported_session_is_imported_byte_for_byte(served: Path) -> None:
    before = transcript(served).read_bytes()
    fine("export", SCOPE, "1", "--output", "one.jsonl", home=served)
    assert (served / "one.jsonl").read_bytes() == before
    assert (served / "one.jsonl").stat().st_mode & 0o777 == 0o600
    assert "Session 1 already exists" in refused("import", "one.jsonl", home=served)
    assert fine("delete", SCOPE, "1", "--yes", home=served) == f"Deleted session 1 of {SCOPE}.\n"
    assert not transcript(served).exists()
    told = json.loads(fine("import", "one.jsonl", "--json", home=served))
    assert told == [{"file": "one.jsonl", "key": SCOPE, "messages": 2}]
    assert transcript(served).read_bytes() == before
    assert fine("export", f"{SCOPE}", "1", home=served).encode() == before


def test_sessions_are_exported_as_json_and_markdown(served: Path) -> None:
    document = json.loads(fine("export", SCOPE, "1", "--json", home=served))
    assert document["session_id"] == "web_ann"
    assert [message["content"] for message in document["messages"]] == ["hello", "hi there", HOSTILE, "no"]
    text = fine("export", SCOPE, "1", "--format", "md", home=served)
    assert text.startswith("# hello\n")
    assert text == printable(text)


def test_unknown_session_is_refused_with_a_hint(served: Path) -> None:
    assert refused("show", SCOPE, "7", home=served) == f"`{SCOPE}` has no session 7. It has 2, 1."
    assert f"Did you mean `{OTHER}`?" in refused("list", "--scope", "bo", home=served)


@pytest.mark.parametrize(
    ("name", "number", "found"),
    [
        (SCOPE, None, 2),
        (SCOPE, 1, 1),
        (f"{SCOPE}#2", None, 2),
        (f"{SCOPE}#2", 2, 2),
        (OTHER, None, 1),
        ("web:ann", None, 2),
        ("web:ann", 1, 1),
        ("web:ann#1", None, 1),
        ("web:ann#2", None, 2),
        ("main:Ann", None, 2),
        ("bob", None, 1),
    ],
)
async def test_session_is_found_by_scope_number_or_key(home: Path, name: str, number: int | None, found: int) -> None:
    async with managed(home / "data") as manager:
        assert (await find_session(LocalArchive(manager), name, number)).meta.number == found


@pytest.mark.parametrize(
    ("name", "number", "sentence"),
    [
        (f"{SCOPE}#7", None, f"`{SCOPE}` has no session 7. It has 2, 1."),
        (f"{SCOPE}#2", 1, f"`{SCOPE}#2` names session 2, not session 1."),
        (f"{SCOPE}#two", None, f"`{SCOPE}#two` is not a session key. Run `gatehouse sessions list` to see them."),
        (f"{SCOPE[:-1]}m", 1, f"There is no scope `{SCOPE[:-1]}m`. Did you mean `{SCOPE}` or `{OTHER}`?"),
        ("\x1b[2J\udcff", 1, "There is no scope `[2J\ufffd`. Run `gatehouse sessions list` to see all scopes."),
        ("", None, f"There is no scope ``. Did you mean `{SCOPE}` or `{OTHER}`?"),
        ("web:ann#7", None, f"`{SCOPE}` has no session 7. It has 2, 1."),
        ("ann:web", None, "There is no scope `ann:web`. Run `gatehouse sessions list` to see all scopes."),
        ("telegram:ann", None, "There is no scope `telegram:ann`. Run `gatehouse sessions list` to see all scopes."),
    ],
)
async def test_wrong_name_is_refused_with_suggestions(home: Path, name: str, number: int | None, sentence: str) -> None:
    async with managed(home / "data") as manager:
        with pytest.raises(Refused) as refusal:
            await find_session(LocalArchive(manager), name, number)
    assert str(refusal.value) == sentence


async def test_an_ambiguous_name_is_refused_with_its_meanings(home: Path) -> None:
    twins = [f"agent:main:{channel}:direct:bob" for channel in ("discord", "telegram")]
    async with managed(home / "data") as manager:
        for scope in twins:
            await manager.resolve_active(scope, agent="main", origin=ANN)
        assert (await find_session(LocalArchive(manager), "telegram:bob", None)).meta.scope == twins[1]
        with pytest.raises(Refused) as refusal:
            await find_session(LocalArchive(manager), "bob", None)
    meanings = f"`{twins[0]}`, `{twins[1]}` or `{OTHER}`"
    assert str(refusal.value) == f"`bob` can mean {meanings}. Add a word to say which one."


def test_hostile_text_is_neutralized_and_cannot_imitate_another_message(home: Path) -> None:
    text = fine("show", SCOPE, "1", home=home)
    assert text == printable(text)
    assert [line for line in text.splitlines() if line.startswith("assistant, ")] == [
        line for line in text.splitlines() if "assistant" in line and "    " not in line
    ]
    assert "    assistant, 2026-03-01 00:00:00\n        forged\n" in text


def test_all_sessions_are_exported_to_a_folder_and_imported_elsewhere(home: Path, tmp_path: Path) -> None:
    assert fine("export", "--all", "--output", "all", home=home) == "Exported 3 sessions to all.\n"
    files = sorted((home / "all").iterdir())
    assert {file.name: file.read_bytes() for file in files} == {
        file.name: file.read_bytes() for file in (home / "data" / "sessions" / "transcripts").glob("*.jsonl")
    }
    assert (home / "all").stat().st_mode & 0o777 == 0o700
    assert gatehouse("sessions", "export", "--all", "--output", "all", home=home).returncode == 1
    fine("export", "--all", "--output", "all", "--force", home=home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_config(elsewhere)
    fine("import", *map(str, files), home=elsewhere)
    for key in (SCOPE, f"{SCOPE}#2", OTHER):
        assert transcript(elsewhere, key).read_bytes() == transcript(home, key).read_bytes()


def test_import_continues_after_a_refused_file(home: Path) -> None:
    fine("export", OTHER, "--output", "bob.jsonl", home=home)
    fine("delete", f"{OTHER}", "1", "--yes", home=home)
    (home / "nonsense").write_text("nonsense")
    done = gatehouse("sessions", "import", "missing", "nonsense", "bob.jsonl", home=home)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "gatehouse: missing: Can't read it: No such file or directory.",
        "gatehouse: nonsense: This is not an exported session: its first line is not a header. Export it again.",
    ]
    assert done.stdout == f"bob.jsonl: imported as session 1 of {OTHER}, 0 messages.\n"


def test_file_is_overwritten_only_with_force(home: Path) -> None:
    (home / "out").write_text("mine")
    assert "out already exists" in refused("export", SCOPE, "--output", "out", home=home)
    assert (home / "out").read_text() == "mine"
    fine("export", SCOPE, "1", "--output", "out", "--force", home=home)
    assert (home / "out").read_bytes() == transcript(home).read_bytes()
    assert (home / "out").stat().st_mode & 0o777 == 0o600
    assert "Can't write no/such/folder" in refused("export", SCOPE, "--output", "no/such/folder", home=home)
    assert not list(home.glob(".gatehouse-*"))


def test_verify_reports_damage_with_advice_and_repairs_nothing(home: Path) -> None:
    with transcript(home).open("ab") as file:
        file.write(b"\x1b[2J damaged\n")
    (home / "data" / "sessions" / "index.json").write_text("{")
    before = transcript(home).read_bytes()
    done = gatehouse("sessions", "verify", home=home)
    assert (done.returncode, done.stderr) == (1, "")
    assert "damaged line (1)\n" in done.stdout
    assert "bad index (1)\n" in done.stdout
    assert "the next start sets it aside" in done.stdout
    assert done.stdout == printable(done.stdout)
    assert transcript(home).read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["show"],
        ["show", SCOPE, "zero"],
        ["show", SCOPE, "0"],
        ["show", SCOPE, "--lines", "0"],
        ["export"],
        ["export", "--all"],
        ["export", "--all", "--output", "x", "--format", "md"],
        ["export", SCOPE, "--format", "pdf"],
        ["import"],
        ["delete", SCOPE, "--yes"],
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gatehouse: ")
    assert "`gatehouse sessions" in said
    assert said.endswith(" --help` for usage.\n")


def test_delete_needs_yes_without_a_terminal(home: Path) -> None:
    assert "Add --yes" in refused("delete", SCOPE, "1", home=home, code=2)
    assert transcript(home).exists()


@pytest.mark.parametrize(("answer", "code", "left"), [("y\r", 0, 0), ("\r", 1, 1), (CTRL_C, 130, 1)])
async def test_delete_asks_for_confirmation(home: Path, answer: str, code: int, left: int) -> None:
    async with in_terminal("sessions", "delete", SCOPE, "1", home=home) as terminal:
        await terminal.shows(f"Delete session 1 of {SCOPE} (hello, 2 messages) permanently? [y/N]")
        terminal.type(answer)
        if answer == CTRL_C:
            # Python may take the signal just before it waits for the keyboard, and then heeds it at the next key.
            terminal.type("\r")
        assert await terminal.ended() == code
    assert transcript(home).exists() == bool(left)


async def test_follow_prints_new_messages_until_ctrl_c_and_takes_no_lock(home: Path) -> None:
    async with in_terminal("sessions", "show", SCOPE, "1", "--lines", "1", "--follow", home=home) as terminal:
        await terminal.shows("    no")
        async with managed(home / "data") as manager:
            await manager.append(SCOPE, [e.User(content="are you\x1b[2J there"), e.Assistant(content="")])
            await terminal.shows("    are you[2J there")
            await manager.append(SCOPE, [e.Undo(undone="t2", first=5, messages=2)])
            await terminal.shows("The last turn was undone.")
        terminal.type(CTRL_C)
        assert await terminal.ended() == 130
    assert terminal.screen.count("are you") == 1
    assert "Traceback" not in terminal.screen


async def test_follow_prints_messages_of_a_running_daemon(tmp_path: Path) -> None:
    with running(tmp_path):
        await asyncio.to_thread(gatehouse, "chat", "--once", "hello", home=tmp_path)
        scope = json.loads(fine("list", "--json", home=tmp_path))[0]["scope"]
        async with in_terminal("sessions", "show", scope, "--follow", "--json", home=tmp_path) as terminal:
            await terminal.shows('{"role": "assistant"')
            await asyncio.to_thread(gatehouse, "chat", "--once", "say it works", home=tmp_path)
            await terminal.shows('"text": "say it works"')
            await terminal.shows('{"role": "assistant"')
            await asyncio.to_thread(gatehouse, "sessions", "delete", scope, "1", "--yes", home=tmp_path)
            await terminal.shows("The session has been deleted.")
            assert await terminal.ended() == 1


def test_list_without_sessions(tmp_path: Path) -> None:
    write_config(tmp_path)
    assert fine("list", home=tmp_path) == "No sessions yet.\n"
    assert json.loads(fine("list", "--json", home=tmp_path)) == []


def test_locked_data_directory_is_refused(home: Path) -> None:
    with DataDirLock(home / "data"):
        assert f"in use by process {os.getpid()}" in refused("list", home=home, code=78)


def test_mistake_in_the_config_is_reported(tmp_path: Path) -> None:
    write_config(tmp_path, DEFAULTS + "\n[gatway]\n")
    done = gatehouse("sessions", "list", home=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "gatway" in done.stderr


@contextmanager
def piped(home: Path, *arguments: str, stdout: int | None = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [COMMAND, "sessions", *arguments], cwd=home, env=environment(home), stdout=stdout, stderr=subprocess.PIPE
    ) as process:
        yield process


async def test_broken_pipe_prints_nothing(home: Path) -> None:
    async with managed(home / "data") as manager:
        await manager.append(OTHER, [e.User(content="x" * 100_000) for _ in range(20)])
    with piped(home, "export", OTHER) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert (process.wait(TIMEOUT), process.stderr.read()) == (1, b"")


def test_full_disk_is_reported(home: Path) -> None:
    with Path("/dev/full").open("wb") as full, piped(home, "list", stdout=full.fileno()) as process:
        assert process.stderr is not None
        assert process.wait(TIMEOUT) == 1
        message = process.stderr.read()
        assert message.startswith(b"gatehouse: System error: No space left on device (")
        assert message.count(b"\n") == 1


def test_closed_outputs_do_no_harm(home: Path) -> None:
    line = f'"{COMMAND}" sessions list >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", line], cwd=home, env=environment(home), timeout=TIMEOUT, check=False)
    assert done.returncode == 0


def test_sigterm_leaves_the_files_sound(home: Path) -> None:
    with piped(home, "show", SCOPE, "1", "--follow") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
    assert fine("verify", home=home).endswith("No problems found.\n")


def test_tail_returns_complete_lines_after_truncation_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "transcript"
    path.write_bytes(b"old\nbegun")
    tail = Tail(path)
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b" and ended\nnext")
    assert tail.read() == [b"begun and ended\n"]
    other = tmp_path / "other"
    other.write_bytes(b"old\nbegun and ended\nnew\n")
    other.replace(path)
    assert tail.read() == [b"new\n"]
    path.write_bytes(b"old\n")
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b"x" * 300_000 + b"\n" + b"y" * 300_000 + b"\n")
    assert [len(line) for line in [*tail.read(), *tail.read(), *tail.read()]] == [300_001, 300_001]
    path.unlink()
    with pytest.raises(Refused, match="deleted"):
        tail.read()


def test_config_option_may_follow_the_subcommand(tmp_path: Path) -> None:
    path = write_config(tmp_path).rename(tmp_path / "other.toml")
    done = gatehouse("sessions", "verify", "--config", str(path), home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_columns_are_aligned_with_wide_and_combining_characters() -> None:
    assert format_table([("a\x1b[2J", "b"), ("\u6771\u4eac\n", "c"), ("e\u0301", "d")]) == (
        "a[2J   b\n\u6771\u4eac   c\ne\u0301      d"
    )


def with_settings(home: Path, text: str) -> None:
    path = home / "gatehouse.toml"
    path.write_text(path.read_text() + text)


def test_hidden_sessions_are_counted_and_moved(home: Path) -> None:
    """As a process, with the daemon stopped and running. ANN has started all sessions of the home."""
    with_settings(home, '\n[session]\ndm_scope = "main"\n')
    check = gatehouse("config", "check", home=home)
    assert "3 sessions are hidden in 2 scopes" in check.stdout + check.stderr
    refused = gatehouse("sessions", "move", home=home)
    assert refused.returncode == 2
    assert refused.stdout.splitlines() == [
        f"{SCOPE}: 2 sessions to agent:main:main",
        f"{OTHER}: 1 session to agent:main:main",
    ]
    assert refused.stderr.endswith("Nothing was moved. Add --yes to move them.\n")
    done = gatehouse("sessions", "move", "--yes", home=home)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Moved 3 sessions."), done
    listed = json.loads(fine("list", "--json", home=home))
    assert sorted(each["key"] for each in listed) == ["agent:main:main", "agent:main:main#2", "agent:main:main#3"]
    assert "hidden" not in gatehouse("config", "check", home=home).stderr
    assert fine("verify", home=home).endswith("No problems found.\n")
    assert fine("move", home=home) == "No session has to be moved.\n"
    assert "no" in fine("show", "agent:main:main", "1", home=home)


def test_a_scope_is_moved_through_the_running_daemon_and_by_the_files(served: Path) -> None:
    target = "agent:main:web:direct:somebody"
    before = json.loads(fine("export", SCOPE, "1", "--format", "json", home=served))
    moved = json.loads(fine("move", SCOPE, target, "--yes", "--json", home=served))
    assert moved == [{"from": SCOPE, "to": target}, {"from": f"{SCOPE}#2", "to": f"{target}#2"}]
    after = json.loads(fine("export", target, "1", "--format", "json", home=served))
    assert after["messages"] == before["messages"]
    listed = {each["key"]: each for each in json.loads(fine("list", "--json", home=served))}
    assert set(listed) == {target, f"{target}#2", OTHER}
    assert listed[f"{target}#2"]["is_active"], "the active session stays the active one"
    assert not transcript(served).exists()
    assert fine("verify", home=served).endswith("No problems found.\n")
    into = fine("move", OTHER, target, "--yes", home=served)
    assert into.endswith("Moved 1 session.\n")
    assert f"{target}#3" in fine("list", "--json", home=served), "numbers do not collide"


async def test_the_session_with_the_newest_message_is_active_where_sessions_meet(home: Path) -> None:
    """An interrupted move has activated the first session that it moved. The next move must find the right one."""
    target = "agent:main:main"
    async with managed(home / "data") as manager:
        await manager.start_new(target, agent="main", origin=ANN)
        for key in (target, f"{SCOPE}#2", OTHER):
            await manager.append(key, [e.User(content=f"to {key}")])
    fine("move", SCOPE, target, "--yes", home=home)
    listed = {
        each["title"]: each["is_active"] for each in json.loads(fine("list", "--scope", target, "--json", home=home))
    }
    assert [title for title, is_active in listed.items() if is_active] == ["Trip to \u6771\u4eac"]
    async with managed(home / "data") as manager:
        await manager.append(f"{target}#3", [e.User(content="the newest")])
    fine("move", OTHER, target, "--yes", home=home)
    listed = {
        each["title"]: each["is_active"] for each in json.loads(fine("list", "--scope", target, "--json", home=home))
    }
    assert [title for title, is_active in listed.items() if is_active] == ["Trip to \u6771\u4eac"]


@pytest.mark.parametrize("arguments", [["a"], [SCOPE, "nonsense"], ["agent:x:y", SCOPE], [SCOPE, SCOPE]])
def test_a_wrong_move_is_refused(home: Path, arguments: list[str]) -> None:
    done = gatehouse("sessions", "move", *arguments, "--yes", home=home)
    assert done.returncode in {1, 2}
    assert "Moved" not in done.stdout


async def test_an_archived_session_is_listed_and_restored(home: Path) -> None:
    async with managed(home / "data") as manager:
        await manager.append(f"{SCOPE}#2", [e.User(content="one more")])
        await manager.start_new(SCOPE, agent="main", origin=ANN)
        await manager.prune(SCOPE, 1)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return gatehouse("sessions", *arguments, home=home)

    listed = await asyncio.to_thread(run, "list", "--archived", "--json")
    assert [(each["key"], each["is_archived"]) for each in json.loads(listed.stdout)] == [(SCOPE, True)]
    assert "Restored session 1" in (await asyncio.to_thread(run, "restore", SCOPE, "1")).stdout
    assert (await asyncio.to_thread(run, "list", "--archived", "--scope", OTHER)).stdout == "No archived sessions.\n"
    refused = await asyncio.to_thread(run, "restore", SCOPE, "1")
    assert (refused.returncode, refused.stderr) == (1, "gatehouse: Session 1 is not in the archive.\n")
