"""The daemon as an operator meets it: a process with signals, exit codes, files and log lines."""

import json
import os
import signal
import socket
import stat
import subprocess
import tarfile
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.channels.terminal.pseudo_terminal import in_terminal
from tests.daemon_process import (
    COMMAND,
    DEFAULTS,
    TIMEOUT,
    DaemonProcess,
    by_shell,
    environment,
    gatehouse,
    running,
    write_config,
)

CANNOT_START = 78


def get(url: str, token: str = "") -> tuple[int, dict[str, object]]:
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - loopback
    with urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        return answer.status, json.load(answer)


def readiness(url: str) -> dict[str, object]:
    """Return the answer of `/readyz` once all channels are up, which may take a moment longer than the daemon."""
    deadline = monotonic() + 30
    while True:
        try:
            return get(f"{url}/readyz")[1]
        except HTTPError as refusal:
            refusal.close()
            assert monotonic() < deadline


def test_it_runs_without_config_or_key(tmp_path: Path) -> None:
    with running(tmp_path, start=by_shell()) as daemon:
        assert get(f"{daemon.url}/healthz") == (200, {"status": "alive"})
        assert readiness(daemon.url) == {"status": "ready", "channels": {"web": "up", "terminal": "up"}}
        assert daemon.stop() == 0
    assert not list(tmp_path.rglob("control.sock"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_it_down_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, start=by_shell()) as daemon:
        daemon.signal(number)
        assert daemon.process.wait(30) == 0
    events = [line["event"] for line in daemon.log if not line["event"].startswith("channel_")]
    assert events[-2:] == ["shutdown_started", "shutdown_finished"]


def test_a_conversation_survives_kill_9(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        assert gatehouse("chat", "--once", "my name is Ada", home=tmp_path).returncode == 0
        daemon.process.kill()
        daemon.process.wait(30)
    with running(tmp_path):
        answer = gatehouse("chat", "--once", "what is my name?", home=tmp_path)
    assert "Ada" in answer.stdout, answer.stderr


def test_one_log_line_per_message(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        gatehouse("chat", "--once", "hello", home=tmp_path)
        line = daemon.wait_for("message_handled")
        daemon.stop()
    assert {"turn", "session", "channel", "chat", "outcome", "took_ms"} <= line.keys()
    assert [each["event"] for each in daemon.log].count("message_handled") == 1
    assert "hello" not in json.dumps(daemon.log)


def test_status_and_link_query_the_running_daemon(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        status = gatehouse("status", "--json", home=tmp_path)
        assert {"version", "ready", "channels"} <= json.loads(status.stdout).keys()
        link = gatehouse("link", home=tmp_path)
        assert link.stdout.startswith(f"{daemon.url}/#code=")
    stopped = gatehouse("status", home=tmp_path)
    assert stopped.returncode == 1
    assert "gatehouse run" in stopped.stderr


def test_a_second_daemon_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        second = gatehouse("run", home=tmp_path)
        assert second.returncode == CANNOT_START
        assert f"process {daemon.process.pid}" in second.stderr
        assert get(f"{daemon.url}/healthz")[0] == 200


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        write_config(tmp_path, DEFAULTS.replace("port = 0", f"port = {taken.getsockname()[1]}"))
        refused = gatehouse("run", home=tmp_path)
    assert refused.returncode == CANNOT_START
    assert "http.port" in refused.stderr
    assert "Traceback" not in refused.stderr + refused.stdout


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ('[gatway]\ndata_dir = "x"', ["gatway", "did you mean"]),
        ('[http]\nport = "abc"\n[session]\ndm_scope = "per-pear"', ["http.port", "session.dm_scope", "per-peer"]),
        ('[http]\nhost = "0.0.0.0"', ["http.token", "127.0.0.1"]),
        ("this is not toml", ["gatehouse.toml"]),
        ('[providers.gpt]\nkind = "openai"\napi_key = "env:NOT_SET"', ["providers.gpt.api_key", "NOT_SET"]),
        (
            '[agents.coder]\nbackend = "acp"\npreset = "gemini"\ncommand = ["no-such-gemini", "--acp"]',
            ["agents.coder", "`no-such-gemini` is not in PATH", "npm install -g @google/gemini-cli"],
        ),
        ("[channels.carrier_pigeon]", ["carrier_pigeon", "web"]),
        ('[gateway]\ndata_dir = "/proc/nowhere"', ["/proc/nowhere", "gateway.data_dir"]),
    ],
)
def test_a_problem_that_a_restart_cannot_fix_exits_with_78_and_says_what_to_do(
    tmp_path: Path, config: str, parts: list[str]
) -> None:
    write_config(tmp_path, config if "[gateway]" in config else config + '\n[gateway]\ndata_dir = "{home}/data"')
    before = (tmp_path / "gatehouse.toml").read_bytes()
    refused = gatehouse("run", home=tmp_path)
    assert refused.returncode == CANNOT_START
    assert all(part in refused.stderr for part in parts), refused.stderr
    assert "Traceback" not in refused.stderr + refused.stdout
    assert (tmp_path / "gatehouse.toml").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root: root can write everywhere")
def test_an_unwritable_data_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    write_config(tmp_path, '[gateway]\ndata_dir = "{home}/closed/data"')
    refused = gatehouse("run", home=tmp_path)
    assert refused.returncode == CANNOT_START
    assert "gateway.data_dir" in refused.stderr


def test_hangup_reloads_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        write_config(tmp_path, DEFAULTS + '\n[channels.loopback]\n[agents.main]\nsystem_prompt = "x"\n')
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("config_reloaded")
        assert daemon.wait_for("channel_up")["channel"] == "loopback"
        write_config(tmp_path, "[http]\nport = 'many'")
        daemon.signal(signal.SIGHUP)
        assert "http.port" in daemon.wait_for("reload_refused")["reason"]
        assert readiness(daemon.url)["channels"] == {"web": "up", "terminal": "up", "loopback": "up"}
        assert daemon.stop() == 0


def test_the_reload_command_reloads_the_running_daemon(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        write_config(tmp_path, DEFAULTS + "\n[channels.loopback]\n")
        done = gatehouse("reload", home=tmp_path)
        assert (done.returncode, done.stdout) == (0, "Applied: channels.loopback.\n"), done.stderr
        assert daemon.wait_for("channel_up", channel="loopback")


def test_the_reload_command_names_settings_that_need_a_restart(tmp_path: Path) -> None:
    with running(tmp_path):
        write_config(tmp_path, DEFAULTS.replace("port = 0", "port = 1234") + "\n[channels.web]\nenabled = false\n")
        done = gatehouse("reload", home=tmp_path)
        again = gatehouse("reload", home=tmp_path)
    assert done.stdout == "Not applied until you restart the gateway: channels.web.enabled, http.port.\n"
    assert again.stdout == done.stdout


def test_a_reload_applies_a_new_token_at_once(tmp_path: Path) -> None:
    def config(token: str) -> str:
        return DEFAULTS.replace("port = 0", f'port = 0\ntoken = "{token}"')

    old, new = "the-first-token-of-all", "the-second-token-of-all"
    with running(tmp_path, config(old)) as daemon:
        assert get(f"{daemon.url}/auth/whoami", old)[0] == 200
        connection = socket.create_connection(("127.0.0.1", int(daemon.url.rpartition(":")[2])), TIMEOUT)
        with connection, connection.makefile("rb") as answer:
            upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            host, authorization = daemon.url.removeprefix("http://"), f"Authorization: Bearer {old}\r\n"
            connection.sendall(f"GET /web/ws HTTP/1.1\r\nHost: {host}\r\n{authorization}{upgrade}{key}\r\n".encode())
            assert b" 101 " in answer.readline()
            write_config(tmp_path, config(new))
            done = gatehouse("reload", home=tmp_path)
            assert done.stdout == "Applied: http.token.\n", done.stderr
            with suppress(ConnectionError):
                answer.read()  # Returns, or fails, once the daemon has cut the connection.
        assert get(f"{daemon.url}/auth/whoami", new)[0] == 200
        with pytest.raises(HTTPError, match="401") as refusal:
            get(f"{daemon.url}/auth/whoami", old)
        refusal.value.close()
        assert daemon.stop() == 0
    assert new not in json.dumps(daemon.log)


FEW_DESCRIPTORS = by_shell("bash", "-c", 'ulimit -n 64 && exec "$@"', "-")


def test_many_idle_connections_leave_descriptors_for_the_rest(tmp_path: Path) -> None:
    config = DEFAULTS.replace("[gateway]", "[gateway]\nflush_interval = 0.2")
    with running(tmp_path, config, FEW_DESCRIPTORS) as daemon, ExitStack() as stack:
        host = daemon.url.removeprefix("http://")
        request = f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
        answers = []
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))))
            connection.sendall(request)
            connection.settimeout(TIMEOUT)
            answers.append(stack.enter_context(connection.makefile("rb")))
        assert {answer.readline() for answer in answers} == {b"HTTP/1.1 200 OK\r\n"}
        before = flushes(daemon)
        while flushes(daemon) < before + 3:
            pass
        said = gatehouse("chat", "--once", "hello", home=tmp_path)
        assert said.returncode == 0, said.stderr
        assert daemon.stop() == 0
    assert len(daemon.log) < 30
    assert "housekeeping_failed" not in [line["event"] for line in daemon.log]


def flushes(daemon: DaemonProcess) -> int:
    request = Request(f"{daemon.url}/metrics", headers={"Authorization": f"Bearer {daemon.token}"})  # noqa: S310 - loopback
    with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    return next(int(line.split()[-1]) for line in text.splitlines() if line.startswith("gatehouse_flush_seconds_count"))


def test_a_reload_logs_settings_that_need_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        write_config(tmp_path, DEFAULTS.replace("port = 0", "port = 1234") + "\n[channels.web]\nenabled = false\n")
        daemon.signal(signal.SIGHUP)
        assert daemon.wait_for("restart_needed")["keys"] == ["channels.web.enabled", "http.port"]
        assert readiness(daemon.url)["status"] == "ready"


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_every_file_is_created_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with running(tmp_path) as daemon:
            gatehouse("chat", "--once", "remember that I like tea", home=tmp_path)
            paths = [daemon.data, *daemon.data.rglob("*")]
            open_to_others = [path for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    finally:
        os.umask(before)
    assert len(paths) > 6
    assert not open_to_others


def test_no_secret_leaks(tmp_path: Path) -> None:
    """Every secret is a marker; afterwards the log, the terminal and the files are searched for it."""
    config = """
[gateway]
data_dir = "{home}/data"
log_level = "debug"
log_file = "{home}/data/gatehouse.log"
[http]
port = 0
token = "canary-http-0123456789"
[providers.gpt]
kind = "openai"
api_key = "canary-key-0123456789"
[channels.loopback]
token = "canary-bot-0123456789"
"""
    with running(tmp_path, config, by_shell()) as daemon:
        readiness(daemon.url)
        shown = [gatehouse("config", "show", home=tmp_path), gatehouse("status", "--json", home=tmp_path)]
        shown.append(gatehouse("chat", "--once", "hello", home=tmp_path))
        answers = [get(f"{daemon.url}{path}", "canary-http-0123456789") for path in ("/status", "/readyz")]
        cmdline = Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
        daemon.stop()
    everything = [
        json.dumps(daemon.log),
        daemon.errors(),
        json.dumps(answers),
        cmdline.decode(),
        *(result.stdout + result.stderr for result in shown),
        *(path.read_text(errors="replace") for path in daemon.data.rglob("*") if path.is_file()),
    ]
    assert all(result.returncode == 0 for result in shown), shown
    assert not [text for text in everything if "canary-" in text]


def test_no_secret_leaks_when_services_are_down(tmp_path: Path) -> None:
    """If a server is down, SDKs put addresses with tokens and headers into their exceptions."""
    config = """
[gateway]
data_dir = "{home}/data"
log_level = "debug"
log_file = "{home}/gatehouse.log"
[http]
port = 0
[providers.gpt]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "canary-key-0123456789"
patience = 0
[agents.main]
provider = "gpt"
model = "any"
[mcp.remote]
url = "http://127.0.0.1:9/mcp"
headers = { Authorization = "Bearer canary-mcp-0123456789" }
[channels.discord]
token = "canary-discord.0123456789.abcdefgh"
api_base = "http://127.0.0.1:9"
[channels.telegram]
token = "123456:canary-telegram-0123456789abcdefghi"
api_base = "http://127.0.0.1:9"
options = { webhook_url = "https://canary-hook.example.org/canary-path" }
"""
    write_config(tmp_path, config)
    with DaemonProcess(tmp_path) as daemon:
        daemon.ready()
        told = [gatehouse(*words, home=tmp_path) for words in (("status", "--json"), ("log-level", "info"))]
        lost = {"discord", "telegram"}
        while lost:
            lost.discard(daemon.wait_for("channel_lost")["channel"])
        told += [
            gatehouse(*words, home=tmp_path)
            for words in (
                ("chat", "--once", "magpie"),
                ("doctor", "--json"),
                ("backup", "taken.tar"),
                ("config", "show"),
            )
        ]
        answers = [metrics(daemon.url, token) for token in (daemon.token, "canary-header-0123456789")]
        daemon.process.kill()
    everything = [json.dumps(daemon.log), daemon.errors(), (tmp_path / "gatehouse.log").read_text()]
    assert not [text for text in everything if "magpie" in text], "what people say is not for the log"
    assert "gatehouse_ready 0" in answers[0]
    everything += [*answers, *archived(tmp_path / "taken.tar")]
    everything += [result.stdout + result.stderr for result in told]
    everything += [path.read_text(errors="replace") for path in daemon.data.rglob("*") if path.is_file()]
    assert "log_level_changed" in everything[0]
    assert "channel_lost" in everything[2]
    assert not [text for text in everything if "canary-" in text]


def metrics(url: str, token: str) -> str:
    request = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - loopback
    try:
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            return str(answer.read())
    except HTTPError as refusal:
        with refusal:
            return f"{refusal} {refusal.read()!r}"


def archived(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return [read.read().decode(errors="replace") for each in archive if (read := archive.extractfile(each))]


def test_help_names_every_command_and_a_typo_gets_a_hint(tmp_path: Path) -> None:
    assert gatehouse("--help", home=tmp_path).stdout.count("\n") > 8
    assert gatehouse("--version", home=tmp_path).stdout.startswith("gatehouse 0.")
    typo = gatehouse("rum", home=tmp_path)
    assert typo.returncode == 2
    assert "Did you mean `run`?" in typo.stderr


def test_readiness_is_reported_to_the_service_manager(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        write_config(tmp_path)
        with DaemonProcess(tmp_path, {"NOTIFY_SOCKET": str(tmp_path / "notify")}) as daemon:
            assert manager.recv(1000) == b"READY=1"
            assert manager.recv(1000).startswith(b"STATUS=Gatehouse ")
            daemon.ready()
            daemon.signal(signal.SIGHUP)
            assert states(manager, 2) == [b"RELOADING=1", b"READY=1"]
            daemon.signal(signal.SIGTERM)
            assert states(manager, 1, whole=True) == [b"STOPPING=1\nEXTEND_TIMEOUT_USEC=60000000"]
            assert daemon.process.wait(30) == 0


def states(manager: socket.socket, number: int, *, whole: bool = False) -> list[bytes]:
    """Return the next changes that the manager is told of, without the remarks in between."""
    told: list[bytes] = []
    while len(told) < number:
        heard = manager.recv(1000)
        if not heard.startswith((b"STATUS=", b"WATCHDOG=")):
            told.append(heard if whole else heard.split(b"\n")[0])
    return told


def test_the_event_loop_pings_the_watchdog_twice_as_often_as_needed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        write_config(tmp_path)
        extra = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with DaemonProcess(tmp_path, extra) as daemon:
            daemon.ready()
            assert manager.recv(1000) == b"READY=1"
            for _ in range(3):
                assert manager.recv(1000).startswith(b"WATCHDOG=1")


@pytest.mark.parametrize("address", ["/nowhere/at/all", "nothing", "x" * 200])
def test_it_runs_without_a_reachable_service_manager(tmp_path: Path, address: str) -> None:
    write_config(tmp_path)
    with DaemonProcess(tmp_path, {"NOTIFY_SOCKET": address}) as daemon:
        assert daemon.wait_for("sd_notify_failed")["state"] == "READY=1"
        daemon.ready()
        assert daemon.stop() == 0


async def test_the_link_is_printed_to_a_terminal(tmp_path: Path) -> None:
    write_config(tmp_path)
    async with in_terminal("run", home=tmp_path) as terminal:
        await terminal.shows("/#code=")
        terminal.send_signal(signal.SIGTERM)
        assert await terminal.ended() == 0


def test_the_link_is_not_written_to_a_file_or_the_journal(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with DaemonProcess(tmp_path) as daemon:
        daemon.ready()
        daemon.stop()
    assert "#code=" not in daemon.errors() + json.dumps(daemon.log)
    assert daemon.errors() == f"Gatehouse is ready. For a link to the chat page, run: gatehouse link --config {path}\n"


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "| true", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"])
def test_it_runs_without_a_log(tmp_path: Path, redirection: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    write_config(tmp_path, DEFAULTS.replace("port = 0", f"port = {port}"))
    shell = f"(sh -c 'echo $$ >pid; exec \"{COMMAND}\" run'; echo $? >code) {redirection}"
    with subprocess.Popen(["sh", "-c", shell], cwd=tmp_path, env=environment(tmp_path)) as process:  # noqa: S607 - any sh
        assert _once_up(f"http://127.0.0.1:{port}")["status"] == "ready"
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        process.wait(TIMEOUT)
    assert (tmp_path / "code").read_text() == "0\n"


def _once_up(url: str) -> dict[str, object]:
    deadline = monotonic() + TIMEOUT
    while True:
        try:
            return readiness(url)
        except URLError:
            assert monotonic() < deadline


def feed(pipe: Path) -> None:
    pipe.write_text("token-from-a-pipe-0123456789")


SLOW = DEFAULTS + 'token = "file:{home}/pipe"\n'
"""Settings that take as long to load as the test likes: they wait for a write into a pipe."""


def test_a_signal_during_the_start_shuts_it_down_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_config(tmp_path, SLOW)
    with DaemonProcess(tmp_path) as daemon, (tmp_path / "pipe").open("w") as waiting:  # Opened once the daemon reads.
        daemon.signal(signal.SIGHUP)
        daemon.signal(signal.SIGTERM)
        waiting.write("token-from-a-pipe-0123456789")
        waiting.close()
        assert daemon.process.wait(TIMEOUT) == 0
    assert "gateway_ready" not in [line["event"] for line in daemon.log]


def test_a_hangup_during_the_start_reloads_afterwards(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_config(tmp_path, SLOW)
    with DaemonProcess(tmp_path) as daemon, (tmp_path / "pipe").open("w") as waiting:
        daemon.signal(signal.SIGHUP)
        waiting.write("token-from-a-pipe-0123456789")
        waiting.close()
        daemon.ready()
        feed(tmp_path / "pipe")
        daemon.wait_for("config_reloaded")
        assert daemon.stop() == 0


def test_many_hangups_lead_to_one_more_reload(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_config(tmp_path, SLOW)
    with DaemonProcess(tmp_path) as daemon:
        feed(tmp_path / "pipe")
        daemon.ready()
        daemon.signal(signal.SIGHUP)
        with (tmp_path / "pipe").open("w") as waiting:
            for _ in range(10):
                daemon.signal(signal.SIGHUP)
                assert get(f"{daemon.url}/healthz")[0] == 200
            waiting.write("token-from-a-pipe-0123456789")
        daemon.wait_for("config_reloaded")
        feed(tmp_path / "pipe")
        daemon.wait_for("config_reloaded")
        assert daemon.stop() == 0
    assert [line["event"] for line in daemon.log].count("config_reloaded") == 2


def test_a_restart_keeps_the_process_and_starts_the_gateway_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        write_config(tmp_path)
        with DaemonProcess(tmp_path, {"NOTIFY_SOCKET": str(tmp_path / "notify")}, by_shell()) as daemon:
            daemon.ready()
            assert gatehouse("chat", "--once", "/restart", home=tmp_path).returncode == 0
            daemon.wait_for("shutdown_finished")
            assert daemon.wait_for("gateway_ready")["pid"] == daemon.process.pid
            assert daemon.stop() == 0
        told = states(manager, 4)
        assert told == [b"READY=1", b"RELOADING=1", b"READY=1", b"STOPPING=1"]


def test_commands_reach_the_daemon_without_its_secrets(tmp_path: Path) -> None:
    """The daemon has another environment and other systemd credentials than the shell."""
    write_config(tmp_path, DEFAULTS + 'token = "env:ONLY_THE_DAEMON_HAS_IT"\n')
    with DaemonProcess(tmp_path, {"ONLY_THE_DAEMON_HAS_IT": "canary-http-0123456789"}) as daemon:
        daemon.ready()
        assert gatehouse("link", home=tmp_path).stdout.startswith(f"{daemon.url}/#code=")
