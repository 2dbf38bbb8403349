"""The shipped units under a real systemd that is booted in namespaces. One boot serves all checks, in order."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import NEEDS_NAMESPACES, Machine, booted

ROOT = Path(__file__).parents[2]

pytestmark = NEEDS_NAMESPACES

PYTHON = """#!/bin/sh
export PYTHONPATH=/opt/gatehouse:{site} PYTHONDONTWRITEBYTECODE=1
exec /opt/python/bin/{python} "$@"
"""
LAUNCHER = """#!/bin/sh
exec /usr/local/bin/gatehouse-python -c 'import sys; from gateway.cli import main; sys.exit(main())' "$@"
"""

MODEL = """
[agents.main]
ask = []
provider = "fake"
model = "m"
[providers.fake]
kind = "openai"
base_url = "http://127.0.0.1:9000/v1"
[tools.shell]
enabled = true
"""

CONFIG = f"""
[gateway]
data_dir = "/var/lib/gatehouse"
shutdown_timeout = 0.5
[http]
port = 8420
token = "credential:web"
{MODEL}
"""

DROP_IN = "[Service]\nLoadCredential=web:/root/web.token\nWatchdogSec=5\n"

CONNECT_TO_SANDBOX = """
import socket
asking = socket.socket(socket.AF_UNIX)
asking.connect("/run/gatehouse-sandbox.socket")
asking.send(b"{}")
asking.recv(1)
"""

# Root may use the service as well. The pipes of a program are passed through the socket.
TALK_TO_PROGRAM = """
import asyncio, shutil, sys
from pathlib import Path
from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram, open_program

script = "cat /proc/self/stat | cut -d ' ' -f 19; hostname; id -un; touch made; read -r line; echo got $line"
script += "; node -e 'console.log(6 * 7, os.userInfo().username)'" if shutil.which("node") else "; echo 42 agent"

async def main():
    repository = Path("/var/lib/gatehouse/repository")
    limits = SandboxLimits(memory_bytes=int(sys.argv[1]) * 1024**2, processes=200)
    program = SandboxedProgram(
        argv=("/bin/sh", "-c", sys.argv[2] if len(sys.argv) > 2 else script), env={"KEY": "canary-agent-key"},
        cwd=repository, writable=(repository,), limits=limits,
    )
    async with open_program(program, Path("/run/gatehouse-sandbox.socket")) as running:
        running.stdin.write(b"hello\\n")
        print((await running.stdout.read()).decode(), await running.wait(), running.stderr_tail())

asyncio.run(main())
"""

ALICE = "cd /home/alice && runuser -u alice -- env HOME=/home/alice XDG_RUNTIME_DIR=/run/user/4711"
GATEHOUSE = "gatehouse --config /etc/gatehouse/gatehouse.toml"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with booted(Path("/"), ROOT, sys.base_prefix) as machine:
        yield machine


def test_service_works_under_a_real_systemd(machine: Machine) -> None:
    prepare(machine)
    machine.run("gatehouse service install --system")  # Returns after READY=1.
    assert machine.property("ActiveState") == "active"
    assert machine.property("StatusText").startswith("Gatehouse ")
    assert "the model has answered" in machine.run(f"{GATEHOUSE} chat --once hello")
    check_that_only_the_service_reads_its_credentials(machine)
    check_the_sandbox_inside_the_unit(machine)
    check_a_program_in_the_unit(machine)
    check_reload(machine)
    check_that_a_stop_loses_no_turn(machine)
    check_restart_after_a_crash(machine)
    check_that_the_watchdog_restarts_a_stuck_daemon(machine)
    check_that_bad_configuration_is_not_restarted(machine)
    machine.run("gatehouse service uninstall --system")
    assert machine.property("LoadState") == "not-found"
    check_setup_of_the_system_service(machine)
    check_the_service_of_a_user(machine)


def prepare(machine: Machine) -> None:
    site = sysconfig.get_path("purelib").replace(str(ROOT), "/opt/gatehouse")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    machine.write("/usr/local/bin/gatehouse-python", PYTHON.format(site=site, python=python))
    machine.write("/usr/local/bin/gatehouse", LAUNCHER)
    # A Python below /root names a shared library that the service's user cannot read. The sandbox starts it without our
    # environment, so only the linker's own cache helps.
    machine.run("ln -sf /opt/python/lib/libpython3.*.so.* /usr/local/lib/ && ldconfig")
    machine.write("/etc/gatehouse/gatehouse.toml", CONFIG)
    machine.write("/etc/systemd/system/gatehouse.service.d/test.conf", DROP_IN)
    machine.run("chmod 755 /usr/local/bin/gatehouse*; umask 077; echo canary-web-token-0123456789 > /root/web.token")
    machine.run(f"systemd-run --unit=model /opt/python/bin/{python} /opt/gatehouse/tests/deploy/model.py")


def check_that_only_the_service_reads_its_credentials(machine: Machine) -> None:
    path = "/run/credentials/gatehouse.service/web"
    assert machine.run(f"cat {path}").strip() == "canary-web-token-0123456789"
    stranger = machine.attempt(f"setpriv --reuid=65534 --clear-groups cat {path} /root/web.token")
    assert stranger.stdout == ""
    assert "canary" not in machine.run("journalctl --no-pager")


def check_the_sandbox_inside_the_unit(machine: Machine) -> None:
    script = "echo $((6 * 7)) > made; cat made; hostname; ls -d /var /run /home; ls /sys/class/net; unshare --user true"
    said = machine.run(f"{GATEHOUSE} chat --once 'run exec 2> /dev/null; {script} || echo none'")
    assert said.split() == ["the", "command", "said:", "42", "sandbox", "none"]
    assert machine.property("SubState", of="gatehouse-sandbox") == "running"
    stranger = machine.attempt(f"setpriv --reuid=65534 --clear-groups python3 -c '{CONNECT_TO_SANDBOX}'")
    assert stranger.stderr.splitlines()[-1].startswith(("ConnectionResetError", "BrokenPipeError"))
    told = machine.attempt(f"{GATEHOUSE} doctor").stdout
    assert "Commands run in bubblewrap, with a filter for system calls." in told, told
    assert "/etc/systemd/system/gatehouse.service is up to date." in told, told
    assert "FAIL " not in told, told


def check_a_program_in_the_unit(machine: Machine) -> None:
    folder = "/var/lib/gatehouse/repository"
    machine.write("/opt/talk.py", TALK_TO_PROGRAM)
    machine.run(f"mkdir {folder} && chown --reference=/var/lib/private/gatehouse {folder}")
    said = machine.run("gatehouse-python /opt/talk.py 2000")
    assert said.split()[:7] == ["10", "sandbox", "agent", "got", "hello", "42", "agent"], said
    assert said.rstrip().endswith("ProgramExit(code=0, stopped_for='')"), said  # Nothing on its standard error.
    machine.run(f"test -e {folder}/made")
    hungry = "head -c 100000000 /dev/zero > /tmp/large; sleep 600"
    assert "more than 64 MB of memory" in machine.run(f"gatehouse-python /opt/talk.py 64 '{hungry}'")
    assert machine.attempt("pgrep bwrap").stdout == ""


def check_reload(machine: Machine) -> None:
    machine.run("systemctl reload gatehouse")
    machine.until("journalctl -u gatehouse -o cat | grep -q config_reloaded")
    machine.until("systemctl is-active --quiet gatehouse")


def check_that_a_stop_loses_no_turn(machine: Machine) -> None:
    machine.run("touch /run/hold; rm -f /run/asked")
    machine.run(f"{GATEHOUSE} chat --once 'mid turn' > /dev/null 2>&1 &")
    machine.until("test -e /run/asked")
    machine.run("systemctl stop gatehouse")
    assert machine.property("Result") == "success"
    machine.run("rm /run/hold; systemctl start gatehouse")
    transcripts = "/var/lib/gatehouse/sessions/transcripts"
    machine.until(f'test "$(cat {transcripts}/*.jsonl | grep -c "the model has answered")" = 2')
    assert machine.run(f"cat {transcripts}/*.jsonl | grep -c 'mid turn'").strip() == "1"


def check_restart_after_a_crash(machine: Machine) -> None:
    before = machine.property("MainPID")
    machine.run("systemctl kill --kill-whom=main --signal=KILL gatehouse")
    machine.until('test "$(systemctl show gatehouse --property=NRestarts --value)" = 1')
    machine.until("systemctl is-active --quiet gatehouse")
    assert machine.property("MainPID") != before


def check_that_the_watchdog_restarts_a_stuck_daemon(machine: Machine) -> None:
    machine.run("systemctl kill --kill-whom=main --signal=STOP gatehouse")
    machine.until('test "$(systemctl show gatehouse --property=NRestarts --value)" = 2')
    machine.until("systemctl is-active --quiet gatehouse")
    assert "atchdog timeout" in machine.run("journalctl --unit gatehouse --no-pager --output cat")
    assert "the model has answered" in machine.run(f"{GATEHOUSE} chat --once 'still there?'")


def check_that_bad_configuration_is_not_restarted(machine: Machine) -> None:
    machine.run("echo 'nonsense = 1' > /etc/gatehouse/gatehouse.toml")
    assert machine.attempt("systemctl restart gatehouse").returncode != 0
    assert machine.property("ExecMainStatus") == "78"
    assert machine.property("ActiveState") == "failed"
    assert machine.property("NRestarts") == "0"


def check_setup_of_the_system_service(machine: Machine) -> None:
    machine.run("rm -r /etc/gatehouse /etc/systemd/system/gatehouse.service.d /var/lib/private/gatehouse")
    model = "--provider custom --base-url http://127.0.0.1:9000/v1"
    told = machine.run(f"KEY=canary-model-key gatehouse setup {model} --model m --key env:KEY --service system")
    assert "The model `m` answers." in told
    assert "the model has answered" in machine.run(f"{GATEHOUSE} chat --once hello")
    config = machine.run("stat --format %a /etc/gatehouse/*; cat /etc/gatehouse/gatehouse.toml")
    assert config.startswith("600\n644\n")
    assert 'api_key = "credential:custom.key"' in config
    assert machine.run("cat /run/credentials/gatehouse.service/custom.key").strip() == "canary-model-key"
    machine.run("gatehouse setup --provider custom --model larger --service system")
    machine.run(f"{GATEHOUSE} config set gateway.log_level debug && systemctl restart gatehouse")
    assert "the model has answered" in machine.run(f"{GATEHOUSE} chat --once 'and now?'")
    assert "canary" not in machine.run("journalctl --no-pager")
    machine.run("gatehouse service uninstall --system")


def check_the_service_of_a_user(machine: Machine) -> None:
    machine.run("useradd --create-home --uid 4711 alice && systemctl start user@4711")  # As lingering does.
    machine.write("/home/alice/.gatehouse/gatehouse.toml", MODEL)
    machine.run("chown -R alice /home/alice/.gatehouse")
    machine.run(f"{ALICE} gatehouse service install --user")  # Returns after READY=1.
    machine.run(f"{ALICE} systemctl --user is-enabled gatehouse")
    assert "systemctl --user start gatehouse" in machine.run(f"{ALICE} gatehouse service install --user")
    assert "the model has answered" in machine.run(f"{ALICE} gatehouse chat --once hello")
    assert machine.run(f"{ALICE} gatehouse chat --once 'run hostname'") == "the command said: sandbox\n"
    assert "Active: active (running)" in machine.run(f"{ALICE} gatehouse service status --user")
    assert "message_handled" in machine.run(f"{ALICE} gatehouse service logs --user -n 5")
    machine.run(f"{ALICE} systemctl --user kill --kill-whom=main --signal=KILL gatehouse")
    shown = "systemctl --user show gatehouse --property"
    machine.until(f'test "$({ALICE} {shown}=NRestarts,ActiveState --value | xargs)" = "1 active"')
    machine.run(f"{ALICE} systemctl --user stop gatehouse")
    assert machine.run(f"{ALICE} {shown}=Result --value") == "success\n"
    assert "remove" in machine.run(f"{ALICE} gatehouse service uninstall --user")
    assert machine.run(f"{ALICE} {shown}=LoadState --value") == "not-found\n"
