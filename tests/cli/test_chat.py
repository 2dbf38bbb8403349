"""`gatehouse chat` as a process: in pipes and a real terminal, with its own daemon and a running one."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.data_dir import DataDirLock
from tests.channels.terminal.pseudo_terminal import in_terminal
from tests.daemon_process import (
    COMMAND,
    DEFAULTS,
    TIMEOUT,
    DaemonProcess,
    environment,
    gatehouse,
    running,
    write_config,
)

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
LONG = " ".join(f"word{number}" for number in range(250))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_config(tmp_path)
    return tmp_path


def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        time.sleep(0.001)


def has_words(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def test_message_from_a_pipe_prints_only_the_answer(home: Path) -> None:
    done = gatehouse("chat", "--once", home=home, stdin="it\nworks\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("You said:\n\n> it works\n")
    assert done.stdout.endswith(".\n")


def test_a_message_from_the_command_line_is_answered(home: Path) -> None:
    done = gatehouse("chat", "--once", "it", "works", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "> it works\n" in done.stdout


def test_text_from_a_pipe_follows_the_message_from_the_command_line(home: Path) -> None:
    done = gatehouse("chat", "--once", "summarise", "this", home=home, stdin="it\nworks\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search("> summarise this &#91;Text from standard input&#93; it works$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("stdin", ["", " \n"])
def test_an_empty_pipe_adds_nothing_to_the_message(home: Path, stdin: str) -> None:
    done = gatehouse("chat", "--once", "it works", home=home, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    assert "> it works\n" in done.stdout
    assert "standard input" not in done.stdout


def test_a_closed_stdin_adds_nothing_to_the_message(home: Path) -> None:
    done = _in_shell(home, '"$GATEHOUSE" chat --once it works <&-')
    assert (done.returncode, done.stderr) == (0, "")
    assert "> it works\n" in done.stdout


async def test_a_terminal_as_stdin_adds_nothing_to_the_message(home: Path) -> None:
    async with in_terminal("chat", "--once", "it works", home=home) as terminal:
        assert await terminal.ended() == 0
        await terminal.shows("> it works")


def test_a_pipe_that_stays_open_is_reported(home: Path) -> None:
    with _started(home, "--once", "--timeout", "5", "it works") as chat:
        assert chat.stderr is not None
        assert b"Waiting for the end of the standard input" in chat.stderr.readline()
        assert b"didn't end within 5 seconds" in chat.stderr.readline()
        assert chat.wait(TIMEOUT) == 1


def test_a_long_text_from_a_pipe_is_sent_as_a_file(home: Path) -> None:
    done = gatehouse("chat", "--once", "summarise this", home=home, stdin="long line\n" * 40_000)
    assert (done.returncode, done.stderr) == (0, "")
    assert "> summarise this &#91;file: stdin.txt, text/plain, 400 kB" in done.stdout


def test_an_empty_pipe_adds_no_file_to_a_long_message(home: Path) -> None:
    done = gatehouse("chat", "--once", "long " * 6_399, home=home, stdin="\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(home.rglob("*stdin.txt"))


def test_files_are_sent_with_the_first_message(home: Path) -> None:
    (home / "notes.txt").write_text("buy milk")
    (home / "more notes.txt").write_text("buy bread")
    files = ["--file", "notes.txt", "--file", str(home / "more notes.txt")]
    done = gatehouse("chat", *files, home=home, stdin="/whoami\nwhat is this?\n/history\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "You: what is this?\n[file: notes.txt]\n[file: more_notes.txt]" in done.stdout


async def test_a_file_can_be_sent_without_a_message(home: Path) -> None:
    (home / "notes.txt").write_text("buy milk")
    async with in_terminal("chat", "--once", "--file", "notes.txt", home=home) as terminal:
        assert await terminal.ended() == 0
        await terminal.shows("notes.txt")


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_file_that_cannot_be_read_is_reported(home: Path, name: str) -> None:
    done = gatehouse("chat", "--once", "--file", name, "hi", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gatehouse: Can't read {name}: ")


MODEL = """
[providers.fake]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
patience = 0.1

[agents.main]
provider = "fake"
model = "small"
fallbacks = ["fake/big"]
"""


def test_a_model_is_chosen_for_the_session(tmp_path: Path) -> None:
    write_config(tmp_path, DEFAULTS + MODEL)
    done = gatehouse("chat", "--model", "fake/big", "--once", "/status", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "big" in done.stdout
    assert "now answers" not in done.stdout


def test_a_model_that_is_refused_ends_the_chat(home: Path) -> None:
    done = gatehouse("chat", "--model", "big", "--once", "hi", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Name the model as provider/model" in done.stderr


def test_several_lines_are_answered_in_order_within_one_conversation(home: Path) -> None:
    done = gatehouse("chat", home=home, stdin="my name is Ada\n\nwhat is my name\n/whoami\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rindex("Ada") < done.stdout.index("You are ")
    assert done.stdout.count("Ada") >= 2


def test_next_chat_continues_the_conversation(home: Path) -> None:
    gatehouse("chat", "--once", "my name is Ada", home=home)
    assert "Ada" in gatehouse("chat", "--once", "what is my name", home=home).stdout


def test_connects_to_the_running_gateway(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        done = gatehouse("chat", "--once", "what time is it", home=tmp_path)
        daemon.wait_for("message_handled", channel="terminal")
    assert (done.returncode, done.stderr) == (0, "")
    assert "It is" in done.stdout
    assert not (tmp_path / "data" / "chat.log").exists()


def test_waits_for_a_gateway_that_is_just_starting(home: Path) -> None:
    with DaemonProcess(home) as daemon, ThreadPoolExecutor() as pool:
        until(lambda: has_words(daemon.data / "gatehouse.lock"))
        daemon.signal(signal.SIGSTOP)
        chat = pool.submit(gatehouse, "chat", "--once", "what time is it", home=home)
        until(lambda: (daemon.data / "chat.log").exists() or (daemon.data / "control.sock").exists())
        daemon.signal(signal.SIGCONT)
        done = chat.result()
        daemon.wait_for("message_handled", channel="terminal")
    assert (done.returncode, done.stderr) == (0, "")
    assert "It is" in done.stdout


def test_all_files_of_its_own_gateway_are_private(home: Path) -> None:
    before = os.umask(0)
    try:
        gatehouse("chat", "--once", "hi", home=home)
    finally:
        os.umask(before)
    assert (home / "data" / "chat.log").stat().st_size > 0
    assert [path for path in (home / "data").rglob("*") if path.stat().st_mode & 0o077] == []


def test_long_log_is_emptied(home: Path) -> None:
    (home / "data").mkdir(mode=0o700)
    (home / "data" / "chat.log").write_bytes(b"x" * 1_100_000)
    gatehouse("chat", "--once", "hi", home=home)
    assert 0 < (home / "data" / "chat.log").stat().st_size < 100_000


def test_bytes_that_are_not_utf8_are_replaced(home: Path) -> None:
    done = subprocess.run(
        [COMMAND, "chat", "--once"],
        cwd=home,
        env=environment(home),
        input=b"say caf\xe9 \xff\n",
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "caf\ufffd".encode() in done.stdout


def test_terminal_without_utf8_gets_question_marks(home: Path) -> None:
    done = subprocess.run(
        [COMMAND, "chat", "--once", "gr\u00fc\u00dfe \u2713"],
        cwd=home,
        env={**environment(home), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "gr\u00fc\u00dfe ?".encode("latin-1") in done.stdout


@pytest.mark.parametrize(("arguments", "stdin"), [(["--once"], ""), ([], "\n \n")])
def test_empty_input_is_wrong_usage(home: Path, arguments: list[str], stdin: str) -> None:
    done = gatehouse("chat", *arguments, home=home, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gatehouse: There was nothing to send: the input is empty.\n"


@pytest.mark.parametrize("arguments", [["hello"], ["--once", "--timeout", "0"], ["--once", "--timeout", "inf"]])
def test_wrong_usage_is_explained(home: Path, arguments: list[str]) -> None:
    done = gatehouse("chat", *arguments, home=home)
    assert done.returncode == 2
    assert done.stderr.startswith("gatehouse: ")
    assert done.stderr.endswith("Run `gatehouse chat --help` for usage.\n")
    assert done.stderr.count("\n") == 1


def test_refused_message_is_reported_on_stderr(home: Path) -> None:
    done = gatehouse("chat", "--once", home=home, stdin="x" * 40_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert "40,000 characters" in done.stderr


def test_too_long_input_is_refused(home: Path) -> None:
    done = gatehouse("chat", "--once", home=home, stdin="x" * 300_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gatehouse: A message of the input is longer than 250 kB. Send it in parts.\n"


@pytest.mark.parametrize("timeout", ["1000000", "1e300"])
def test_timeout_may_be_very_long(home: Path, timeout: str) -> None:
    done = gatehouse("chat", "--once", "--timeout", timeout, "What time is it?", home=home)
    assert (done.returncode, done.stderr) == (0, "")


def test_timeout_limits_the_wait(home: Path) -> None:
    done = gatehouse("chat", "--once", "--timeout", "0.2", LONG, home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No answer came within 0.2 seconds" in done.stderr


def test_mistake_in_the_config_is_reported(tmp_path: Path) -> None:
    write_config(tmp_path, DEFAULTS + "\n[gatway]\n")
    done = gatehouse("chat", "--once", "hi", home=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "gatway" in done.stderr
    assert "Traceback" not in done.stderr


def test_disabled_channel_is_reported(tmp_path: Path) -> None:
    write_config(tmp_path, DEFAULTS + "\n[channels.terminal]\nenabled = false\n")
    done = gatehouse("chat", "--once", "hi", home=tmp_path)
    assert done.returncode == 78
    assert "gatehouse config set channels.terminal.enabled true" in done.stderr


def test_locked_data_directory_is_refused(home: Path) -> None:
    (home / "data").mkdir(mode=0o700)
    with DataDirLock(home / "data"):
        done = gatehouse("chat", "--timeout", "0.5", "--once", "hi", home=home)
    assert (done.returncode, done.stdout) == (78, "")
    assert f"in use by process {os.getpid()}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_unusable_data_directory_is_reported(home: Path) -> None:
    (home / "data").write_text("in the way")
    done = gatehouse("chat", "--once", "hi", home=home)
    assert done.returncode == 78
    assert str(home / "data") in done.stderr
    assert "Traceback" not in done.stderr


def _started(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [COMMAND, "chat", *arguments],
        cwd=home,
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_broken_pipe_prints_nothing(home: Path) -> None:
    with _started(home) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        assert chat.stderr is not None
        chat.stdin.write(b"/whoami\n")
        chat.stdin.flush()
        assert chat.stdout.readline().startswith(b"You are")
        chat.stdout.close()
        chat.stdin.write(b"/whoami\n")
        chat.stdin.flush()
        assert chat.wait(TIMEOUT) == 1
        assert chat.stderr.read() == b""


def _in_shell(home: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=home,
        env={**environment(home), "GATEHOUSE": str(COMMAND)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_a_closed_stdin_is_an_empty_one(home: Path) -> None:
    done = _in_shell(home, '"$GATEHOUSE" chat <&-')
    assert (done.returncode, done.stderr) == (2, "gatehouse: There was nothing to send: the input is empty.\n")


def test_closed_outputs_do_no_harm(home: Path) -> None:
    done = _in_shell(home, '"$GATEHOUSE" chat --once /whoami >&- 2>&-')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_full_disk_is_reported(home: Path) -> None:
    done = _in_shell(home, '"$GATEHOUSE" chat --once /whoami > /dev/full')
    assert done.returncode == 1
    assert done.stderr == "gatehouse: The answer couldn't be written: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_signal_shuts_down_in_order(home: Path, number: signal.Signals, code: int) -> None:
    with _started(home) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        assert chat.stderr is not None
        chat.stdin.write(b"/whoami\n")
        chat.stdin.flush()
        chat.stdout.readline()
        chat.send_signal(number)
        assert chat.wait(TIMEOUT) == code
        assert chat.stderr.read() == b""
    assert "shutdown_finished" in (home / "data" / "chat.log").read_text()
    assert not (home / "data" / "control.sock").exists()


async def test_interactive_chat_streams_stops_and_ends(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        greeting = await terminal.shows("Ctrl-D or /quit leaves")
        # Where the lines are wrapped depends on the path of the data directory.
        assert "so this chat starts its own until you leave" in " ".join(greeting.split())
        await terminal.prompts()
        terminal.type(f"{LONG}\r")
        await terminal.shows("You said:")
        await terminal.shows("word0 word1 ")
        terminal.type(CTRL_C)
        assert "word249" not in await terminal.shows("Stopped.")
        await terminal.prompts()
        terminal.type(f"what is my name{CTRL_C}what time is it\r")
        await terminal.shows("It is \x1b[1m")
        await terminal.prompts()
        terminal.type(f"{UP}\r")
        await terminal.shows("It is \x1b[1m")
        await terminal.prompts()
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    assert (home / "data" / "chat_history").stat().st_mode & 0o777 == 0o600


async def test_help_names_the_keys_and_answers_are_styled(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        await terminal.prompts()
        terminal.type("/help\r")
        await terminal.shows("Waiting for the answer. Ctrl-C stops it.")
        await terminal.shows("/session list")
        await terminal.shows("Alt-Enter starts a new line")
        await terminal.prompts()
        terminal.type("what can you do\r")
        await terminal.shows("• tell the time: \x1b[36mwhat time is it\x1b[0m\r\n")
        await terminal.prompts()


async def test_an_interactive_chat_sends_a_file_and_chooses_a_model(tmp_path: Path) -> None:
    write_config(tmp_path, DEFAULTS + MODEL)
    (tmp_path / "notes.txt").write_text("buy milk")
    async with in_terminal("chat", "--model", "fake/big", "--file", "notes.txt", home=tmp_path) as terminal:
        await terminal.shows("main now answers with fake/big in session 1.")
        await terminal.shows("notes.txt goes with your first message.")
        await terminal.prompts()
        terminal.type("/stop\r")
        await terminal.prompts()
        terminal.type("/status\r")
        await terminal.shows("fake/big")
        await terminal.prompts()
        terminal.type("look at this\r")
        await terminal.shows("can't be reached")
        await terminal.prompts()
        terminal.type("/history\r")
        await terminal.shows("[file: notes.txt]")


async def test_a_refused_model_ends_an_interactive_chat(home: Path) -> None:
    async with in_terminal("chat", "--model", "big", home=home) as terminal:
        await terminal.shows("Name the model as provider/model")
        assert await terminal.ended() == 1


async def test_escape_sequences_in_an_answer_are_not_obeyed(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        await terminal.prompts()
        terminal.type(b"\x1b[200~say \xc2\x9b31m \x07 that\x1b[201~\r")
        await terminal.shows("Waiting for the answer")
        shown = await terminal.shows("31m  that")
        await terminal.prompts()
    assert "\x07" not in shown
    assert "\x9b" not in shown


async def test_no_color_is_respected(home: Path) -> None:
    async with in_terminal("chat", home=home, NO_COLOR="1") as terminal:
        await terminal.prompts()
        terminal.type("what can you do\r")
        await terminal.shows("• tell the time: what time is it\r\n")
        await terminal.prompts()


async def test_a_dumb_terminal_gets_plain_text(home: Path) -> None:
    async with in_terminal("chat", home=home, TERM="dumb") as terminal:
        await terminal.shows("you>")
        terminal.type("what can you do\r")
        shown = await terminal.shows("- tell the time: `what time is it`")
    assert "\x1b[36m" not in shown
    assert "Waiting" not in shown


async def test_prompt_history_survives_between_chats(home: Path) -> None:
    for keys, leaving in (("what time is it\r", CTRL_D), (f"{UP}\r", "/quit\r")):
        async with in_terminal("chat", home=home) as terminal:
            await terminal.prompts()
            terminal.type(keys)
            await terminal.shows("It is \x1b[1m")
            await terminal.prompts()
            terminal.type(leaving)
            assert await terminal.ended() == 0


async def test_strange_bytes_and_early_keys_do_no_harm(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        await terminal.prompts()
        terminal.type(b"caf\xe9 \xff\r")
        await terminal.shows("You said:")
        terminal.type(f"/whoami\r{CTRL_D}")
        await terminal.shows("You are ")
        assert await terminal.ended() == 0
    assert "Traceback" not in terminal.screen


async def test_commands_are_completed(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        await terminal.prompts()
        terminal.type("/whoami\r")  # Once it is answered, the list of commands has come too.
        await terminal.shows("You are ")
        await terminal.prompts()
        terminal.type("/stat\t")
        await terminal.shows("us")
        terminal.type("\r")
        await terminal.shows("/status")
        await terminal.shows("Agent: main")


async def test_messages_from_another_client_appear_above_the_prompt(tmp_path: Path) -> None:
    with running(tmp_path):
        async with in_terminal("chat", home=tmp_path) as terminal:
            await terminal.shows("Connected to the gateway")
            await terminal.prompts()
            gatehouse("chat", "--once", "what time is it", home=tmp_path)
            await terminal.shows("(you, elsewhere) what time is it")
            await terminal.shows("It is \x1b[1m")


async def test_chat_reconnects_to_a_restarted_gateway(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        async with in_terminal("chat", home=tmp_path) as terminal:
            await terminal.shows("Connected to the gateway")
            await terminal.prompts()
            first.kill()
            with running(tmp_path):
                terminal.type("what time is it\r")
                await terminal.shows("It is \x1b[1m")
                await terminal.prompts()
                terminal.type(CTRL_D)
                assert await terminal.ended() == 0


async def test_sighup_ends_the_chat_and_its_own_gateway(home: Path) -> None:
    async with in_terminal("chat", home=home) as terminal:
        await terminal.prompts()
        terminal.send_signal(signal.SIGHUP)
        assert await terminal.ended() == 143
    assert "shutdown_finished" in (home / "data" / "chat.log").read_text()
