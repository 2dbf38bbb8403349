"""`gatehouse config check`, `gatehouse doctor` and `gatehouse run` agree on whether a configuration works."""

import asyncio
import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.channels.telegram.bot_api import TOKEN, bot_api
from tests.daemon_process import COMMAND, TIMEOUT, DaemonProcess, environment, write_config
from tests.forks.process import forked

SECRETS = {"WEB_TOKEN": "a-token-of-many-letters", "BOT_TOKEN": TOKEN}

BOT = '[channels.telegram]\napi_base = "http://127.0.0.1:9"\n'

GOOD = {
    "the defaults": "",
    "a token in the file": 'http.token = "a-token-of-many-letters"',
    "a token in a file": 'http.token = "file:web.token"',
    "a token in the environment": 'http.token = "env:WEB_TOKEN"',
    "a bot with its token in a file": f'{BOT}token = "file:bot.token"',
    "a bot with its token in the environment": f'{BOT}token = "env:BOT_TOKEN"',
    "a disabled channel": "[channels.telegram]\nenabled = false",
    "a repo that does not exist": '[[repos]]\nname = "website"\npath = "gone"',
    "a removed key": '[channels.telegram]\nenabled = false\nwebhook_secret = "x"',
    "an unusable backlog limit": '[session]\nbacklog_limit = "many"',
    "a log file": 'gateway.log_file = "logs/gatehouse.log"',
}
BAD = {
    "a mistyped key": "http.prot = 1",
    "a secret that is not set": 'http.token = "env:NOT_SET_ANYWHERE"',
    "a secret in a file that does not exist": '[channels.telegram]\ntoken = "file:gone"',
    "a bot without a token": "[channels.telegram]",
    "a bot with a malformed token": '[channels.telegram]\ntoken = "hello"',
    "a channel that is not installed": "[channels.carrier_pigeon]",
    "an unknown tool": '[agents.main]\ntools = ["fly"]',
    "a program that is not installed": '[agents.x]\nbackend = "acp"\ncommand = ["no-such-program"]',
    "a prompt that is not text": '[agents.main]\nprompt_file = "binary"',
    "a workspace in the data directory": 'gateway.workspace_root = "data/sessions"',
    "a repo that contains the data directory": '[[repos]]\nname = "all"\npath = "."',
    "a data directory inside a file": 'gateway.data_dir = "binary/data"',
    "a workspace inside a file": 'gateway.workspace_root = "binary/workspace"',
    "a log file that is a folder": 'gateway.log_file = "."',
    "a host of another machine": 'http.host = "192.0.2.1"\nhttp.token = "a-token-of-many-letters"',
    "a port that is in use": "http.port = {taken}",
    "text that is not TOML": "this is not toml",
}


def write_files(home: Path, text: str) -> None:
    """Write a configuration with `text`, and the files to which it may refer."""
    (home / "web.token").write_text(SECRETS["WEB_TOKEN"])
    (home / "bot.token").write_text(TOKEN)
    (home / "binary").write_bytes(b"\xff\xfe")
    defaults = {"gateway.data_dir": f'"{home}/data"', "http.port": "0"}
    keys = [f"{key} = {value}" for key, value in defaults.items() if f"{key} =" not in text]
    write_config(home, "\n".join([*keys, text]))


def ask(home: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = forked([str(COMMAND), *arguments], cwd=home, env=environment(home, extra), stdin="", timeout=TIMEOUT)
    return done.returncode, done.stdout + done.stderr


def starts(home: Path) -> bool:
    """Return whether the gateway starts. If not, its exit code says that a restart cannot help."""
    with DaemonProcess(home, SECRETS) as daemon:
        try:
            daemon.ready()
        except AssertionError:
            assert daemon.process.wait(TIMEOUT) == 78
            return False
        assert daemon.stop() == 0
        return True


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_check_doctor_and_run_agree(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_files(tmp_path, (GOOD | BAD)[name].replace("{taken}", str(taken.getsockname()[1])))
        check, said = ask(tmp_path, "config", "check", extra=SECRETS)
        doctor, found = ask(tmp_path, "doctor", "--local", "--json", extra=SECRETS)
        is_well = json.loads(found)["is_well"]
        assert (check == 0, doctor == 0, is_well, starts(tmp_path)) == (name in GOOD,) * 4, said + found
        assert check in {0, 78}


async def test_check_and_doctor_agree_with_the_running_gateway_that_alone_has_the_secrets(tmp_path: Path) -> None:
    async with bot_api() as telegram:
        write_files(
            tmp_path,
            'http.token = "env:WEB_TOKEN"\n'
            f'[channels.telegram]\ntoken = "env:BOT_TOKEN"\napi_base = "{telegram.url}"\n',
        )
        with DaemonProcess(tmp_path, SECRETS) as daemon:
            await asyncio.to_thread(daemon.ready)
            await asyncio.to_thread(daemon.wait_for, "channel_up", channel="telegram")
            assert await asyncio.to_thread(ask, tmp_path, "config", "check") == (
                0,
                f"OK: {tmp_path / 'gatehouse.toml'}\n",
            )
            code, found = await asyncio.to_thread(ask, tmp_path, "doctor", "--local")
            assert (code, "No errors found." in found) == (0, True), found
            # A mistake that is written now shows in both, before the next start.
            write_files(tmp_path, "[channels.telegram]")
            for command in (("config", "check"), ("doctor", "--local")):
                code, said = await asyncio.to_thread(ask, tmp_path, *command)
                assert (code != 0, "channels.telegram.token" in said) == (True, True), said
            # Another file is checked with the secrets of this shell.
            other = (tmp_path / "gatehouse.toml").rename(tmp_path / "other.toml")
            other.write_text(f'gateway.data_dir = "{tmp_path}/data"\n[channels.telegram]\ntoken = "env:BOT_TOKEN"\n')
            code, said = await asyncio.to_thread(ask, tmp_path, "config", "check", "--config", str(other))
            assert (code, "BOT_TOKEN is not set\n" in said) == (78, True), said
    await asyncio.to_thread(daemon.process.wait, TIMEOUT)
