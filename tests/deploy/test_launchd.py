"""The launchd agent for macOS. Nobody has tried it there: these tests parse it, and run its program on this system."""

import os
import plistlib
import subprocess
from pathlib import Path

from gateway.cli.common import EXIT_OK
from tests.daemon_process import COMMAND, TIMEOUT, environment, gatehouse

AGENT = Path(__file__).parents[2] / "deploy/launchd/gatehouse.gateway.plist"


def test_the_agent_is_a_property_list_that_says_it_is_untested() -> None:
    agent = plistlib.loads(AGENT.read_bytes(), fmt=plistlib.FMT_XML)
    assert agent.pop("ProgramArguments")[:2] == ["/bin/sh", "-c"]
    assert agent == {
        "Label": AGENT.stem,  # launchctl finds an agent by it.
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 60,
        "ExitTimeOut": 60,
        "ProcessType": "Interactive",
    }
    assert "UNTESTED ON MACOS" in AGENT.read_text()


def test_the_program_of_the_agent_answers_and_ends_on_a_signal(tmp_path: Path) -> None:
    for folder in (".local/bin", "Library/Logs", ".gatehouse"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".local/bin/gatehouse").symlink_to(COMMAND)
    (tmp_path / ".gatehouse").chmod(0o700)
    (tmp_path / ".gatehouse/gatehouse.toml").write_text("[http]\nport = 0\n")
    (tmp_path / ".gatehouse/gatehouse.toml").chmod(0o600)
    log = tmp_path / "Library/Logs/gatehouse.log"
    os.mkfifo(log)  # Its lines can be waited for.
    program = plistlib.loads(AGENT.read_bytes())["ProgramArguments"]
    with subprocess.Popen(program, env=environment(tmp_path), cwd="/") as running:
        try:
            with log.open() as lines:
                assert any("gateway_ready" in line for line in lines)
                assert "offline" in gatehouse("chat", "--once", "hello", home=tmp_path).stdout
                running.terminate()
                assert any("message_handled" in line for line in lines)
                lines.read()  # Until the gateway has closed it.
            assert running.wait(TIMEOUT) == EXIT_OK
        finally:
            running.kill()
