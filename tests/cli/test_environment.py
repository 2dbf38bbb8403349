"""The daemon's process keeps no variable that may contain a secret, and still finds all of them later."""

import subprocess
import sys
from pathlib import Path

from tests.daemon_process import DEFAULTS, DaemonProcess, by_shell, gatehouse, write_config

TRIM = """
import os
from gateway.cli.environment import trim_environment
before = trim_environment(["KEPT_*"])
print(before["SOME_TOKEN"], flush=True)
os.execvp("env", ["env"])
"""


def test_a_program_inherits_only_harmless_variables() -> None:
    given = {"PATH": "/usr/bin:/bin", "LC_TIME": "C", "SOME_TOKEN": "canary", "KEPT_ONE": "1", "AWS_SECRET": "2"}
    ran = subprocess.run([sys.executable, "-c", TRIM], env=given, capture_output=True, text=True, check=True)
    removed, *left = ran.stdout.splitlines()
    assert removed == "canary"
    assert {line.partition("=")[0] for line in left} >= {"PATH", "LC_TIME", "KEPT_ONE"}
    assert not [line for line in left if "canary" in line or "SECRET" in line]


def test_a_reload_and_a_restart_resolve_references_to_removed_variables(tmp_path: Path) -> None:
    provider = """
[providers.gpt]
kind = "openai"
api_key = "env:{name}"
"""
    keys = {"FIRST_KEY": "canary-1", "SECOND_KEY": "canary-2"}
    path = write_config(tmp_path, DEFAULTS + provider.replace("{name}", "FIRST_KEY"))
    with DaemonProcess(tmp_path, keys, by_shell()) as daemon:
        daemon.ready()
        path.write_text(path.read_text().replace("FIRST_KEY", "SECOND_KEY"))
        assert gatehouse("reload", home=tmp_path).stdout == "Applied: providers.gpt.api_key.\n"
        assert gatehouse("chat", "--once", "/restart", home=tmp_path).returncode == 0
        daemon.wait_for("shutdown_finished")
        daemon.ready()
        assert daemon.stop() == 0
