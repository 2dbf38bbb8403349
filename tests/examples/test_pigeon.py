"""The example of a third-party channel: installed from its folder, and found by its entry point."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from tests.daemon_process import TIMEOUT, DaemonProcess, by_shell, environment, write_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "gatehouse-pigeon"

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
[channels.pigeon]
allow = ["ada"]
[channels.pigeon.options]
loft = "{home}/loft"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example as a user does, but into a separate folder and without a network."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", folder / "site", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_example_passes_the_contract_suite(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", installed / "source", "tests"],
        cwd=installed / "source",
        env={**environment(tmp_path), "PYTHONPATH": str(installed / "site"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_the_daemon_loads_the_example_and_answers_a_letter(installed: Path, tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    with DaemonProcess(tmp_path, {"PYTHONPATH": str(installed / "site")}, by_shell()) as daemon:
        daemon.wait_for("channel_up", channel="pigeon")
        letter = tmp_path / "loft/in/1.unfinished"
        letter.write_text(json.dumps({"from": "ada", "text": "/whoami"}))
        letter.rename(letter.with_suffix(".json"))
        deadline = monotonic() + TIMEOUT
        while not (answers := list((tmp_path / "loft/out").glob("*.json"))):
            assert monotonic() < deadline
        answer = json.loads(answers[0].read_text())
        assert daemon.stop() == 0
    assert answer["to"] == "ada"
    assert "ada on pigeon" in answer["text"]
