"""schemathesis, which makes requests from the OpenAPI document, finds no fault in the responses of a real daemon."""

import subprocess
import sys
from pathlib import Path

from tests.crash.scale import SCALE
from tests.daemon_process import DEFAULTS, running

CONFIG = Path(__file__).with_name("schemathesis.toml")
DAEMON = """
[api]
max_active_sessions = 100000
rate_limit = 0
[[repos]]
name = "app"
path = "{home}/app"
"""


def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    """`schemathesis.toml` has the phases, the number of examples and the exceptions."""
    (tmp_path / "app").mkdir()
    more = ["--max-examples", str(20 * SCALE)] if SCALE > 1 else []
    with running(tmp_path, DEFAULTS + DAEMON) as daemon:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", *more]
        result = subprocess.run(
            [*command, "--header", f"Authorization: Bearer {daemon.token}", f"{daemon.url}/api/openapi.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
            assert f"✅  {phase}" in result.stdout
        assert daemon.stop() == 0
    crashes = [event for event in daemon.log if event["level"] == "error" or "exception" in event]
    assert not crashes
