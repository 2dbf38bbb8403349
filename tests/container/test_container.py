"""The image in a real container. `make container` builds it first, and runs these tests as root."""

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/gatehouse"
BASE = "localhost/gatehouse-base"
MAX_BYTES = 250_000_000
TIMEOUT = 120.0

pytestmark = pytest.mark.skipif(not os.environ.get("GATEHOUSE_CONTAINER"), reason="needs `make container`")


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    # Not crun: that of Debian 12 refuses machines with both versions of cgroups.
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    command = ["podman", *runtime, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0 or not check, (arguments, done.stdout, done.stderr)
    return done


class Container:
    """A container with the rights that compose.yaml gives it."""

    def __init__(self) -> None:
        self.name = f"gatehouse-{uuid4().hex[:12]}"

    def start(self, folder: Path) -> None:
        # Any free port: the network is that of this machine.
        config = folder / "gatehouse.toml"
        config.write_text((ROOT / "deploy/docker/gatehouse.toml").read_text().replace("port = 8420", "port = 0"))
        config.chmod(0o644)
        # By default, Podman raises the limits, which not every root may.
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        ulimits = {name: min(resource.getrlimit(kind)[1], 4096) for name, kind in limits.items()}
        podman(
            "run",
            "--detach",
            f"--name={self.name}",
            "--network=host",
            "--read-only",
            "--tmpfs=/tmp:mode=1777,size=64m",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            *(f"--ulimit={name}={most}:{most}" for name, most in ulimits.items()),
            f"--volume={self.name}:/var/lib/gatehouse",
            f"--volume={config}:/etc/gatehouse/gatehouse.toml:ro",
            "--env=GATEHOUSE_TOKEN=a-token-for-the-tests",
            IMAGE,
        )

    def execute(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.name, *command, check=check)

    def ask(self, text: str) -> str:
        return self.execute("gatehouse", "chat", "--once", text).stdout

    def is_healthy(self) -> bool:
        return podman("healthcheck", "run", self.name, check=False).returncode == 0

    def ready(self) -> None:
        deadline = monotonic() + TIMEOUT
        while not self.is_healthy():
            assert monotonic() < deadline, self.log()
            sleep(0.2)

    def state(self) -> dict[str, Any]:  # Any: JSON.
        found: dict[str, Any] = json.loads(podman("inspect", self.name).stdout)[0]["State"]
        return found

    def log(self) -> str:
        done = podman("logs", self.name)
        return done.stdout + done.stderr


@contextmanager
def running(folder: Path) -> Iterator[Container]:
    container = Container()
    try:
        container.start(folder)
        container.ready()
        yield container
    finally:
        podman("rm", "--force", container.name, check=False)
        podman("volume", "rm", "--force", container.name, check=False)


@pytest.fixture(scope="module")
def image() -> dict[str, Any]:  # Any: JSON.
    found: dict[str, Any] = json.loads(podman("image", "inspect", IMAGE).stdout)[0]
    return found


def test_the_image_is_small_and_says_how_it_runs(image: dict[str, Any]) -> None:
    assert image["Size"] < MAX_BYTES
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] in {"SIGTERM", "15"}
    assert image["Healthcheck"]["Test"][0] == "CMD"
    assert not [name for name in config["Env"] if "TOKEN" in name]


def test_it_answers_without_rights_on_a_file_system_that_cannot_be_written(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        assert "hello" in container.ask("hello").lower()
        assert container.execute("id", "-u").stdout.strip() == "10001"
        status = dict(line.split(":\t") for line in container.execute("cat", "/proc/1/status").stdout.splitlines())
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        for folder in ("/opt/gatehouse", "/etc/gatehouse", "/usr", "/"):
            assert container.execute("touch", f"{folder}/x", check=False).returncode != 0
        assert container.execute("touch", "/tmp/x", "/var/lib/gatehouse/x").returncode == 0  # noqa: S108 - in the container
        assert container.execute("cat", "/opt/gatehouse/container-extras").stdout == "postgres\n"


def test_a_stop_lets_it_write_everything_down(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        container.ask("my name is Ada")
        podman("stop", "--time=60", container.name)
        assert container.state()["ExitCode"] == 0
        last = [json.loads(line)["event"] for line in container.log().splitlines() if line.startswith("{")][-1]
        assert last == "shutdown_finished"
        podman("start", container.name)
        container.ready()
        assert "Ada" in container.ask("what is my name?")


def test_a_conversation_survives_kill_9(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        container.ask("my name is Ada")
        podman("kill", "--signal=KILL", container.name)
        podman("wait", container.name)
        assert container.state()["ExitCode"] == 137
        podman("start", container.name)
        container.ready()
        assert "Ada" in container.ask("what is my name?")


def test_the_health_check_fails_while_the_gateway_hangs(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        process = container.state()["Pid"]
        os.kill(process, signal.SIGSTOP)
        try:
            assert not container.is_healthy()
        finally:
            os.kill(process, signal.SIGCONT)
        container.ready()


def test_docker_compose_accepts_the_files() -> None:
    """With the Docker Compose of Debian, which needs no engine for that."""
    done = subprocess.run(
        ["buildah", "from", "--quiet", BASE],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("the base image came from a registry")
    container = done.stdout.strip()
    try:
        install = "apt-get -qq update && apt-get -qq install -y --no-install-recommends docker-compose >/dev/null"
        check = "cd /deploy/$folder && docker-compose config --quiet"
        env = "export GATEHOUSE_TOKEN=x GATEHOUSE_DB_PASSWORD=y"
        program = f"{install} && {env} && for folder in docker cluster; do ({check}) || exit; done"
        run = ["buildah", "run", "--isolation=chroot", f"--volume={ROOT}/deploy:/deploy:ro", container]
        checked = subprocess.run([*run, "sh", "-c", program], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    finally:
        subprocess.run(["buildah", "rm", container], capture_output=True, check=False)  # noqa: S607
