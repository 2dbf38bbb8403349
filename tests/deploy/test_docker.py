"""The files of deploy/docker fit together. Nothing here needs Docker; `make container` builds the image and runs it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import Settings
from tests.daemon_process import COMMAND, DEFAULTS, by_shell, environment, running
from tests.forks.process import forked

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
HEALTHCHECK = FOLDER / "healthcheck.py"
UID = 10001


@pytest.fixture
def service() -> dict[str, Any]:  # Any: YAML.
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    (found,) = compose["services"].values()
    assert found["volumes"][1].partition(":")[0] in compose["volumes"]
    checked: dict[str, Any] = found
    return checked


def copied() -> list[str]:
    """Return what the Dockerfile copies out of the repository."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()]


def test_the_image_gets_all_that_an_installation_needs() -> None:
    sources = copied()
    assert all((ROOT / source).exists() for source in sources)
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"\[tool.hatch.build.targets.wheel\]\npackages = \[(.*)\]", project)
    included = re.search(r'force-include\]\n((?:".*" = .*\n)+)', project)
    assert packages is not None
    assert included is not None
    needed = {*re.findall(r'"(\w+)"', packages[1]), *re.findall(r'^"(.*?)"', included[1], re.MULTILINE)}
    assert needed | {"pyproject.toml", "README.md", "LICENSE"} <= set(sources)


def test_the_build_sees_what_is_copied_and_nothing_else() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]

    def is_sent(path: str) -> bool:
        sent = True
        for pattern in patterns:
            wanted = pattern.lstrip("!")
            if wanted in {"*", path} or path.startswith(f"{wanted}/") or fnmatchcase(f"/{path}", wanted):
                sent = pattern.startswith("!")
        return sent

    for source in copied():
        files = [ROOT / source, *(ROOT / source).rglob("*")]
        assert any(is_sent(str(path.relative_to(ROOT))) for path in files if path.is_file()), source
    assert is_sent("gateway/build.py")
    assert is_sent("requirements/dev.txt")
    for secret in (".git/config", "gatehouse.toml", "deploy/docker/.env", "deploy/cluster/.env", ".venv/bin/python"):
        assert not is_sent(secret)
    for unused in ("tests/conftest.py", "gateway/__pycache__/build.cpython-313.pyc"):
        assert not is_sent(unused)


def test_nothing_runs_as_root_and_secrets_stay_out() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == [f"{UID}:{UID}"]
    assert f"--uid {UID}" in DOCKERFILE
    assert f"--gid {UID}" in DOCKERFILE
    assert not re.search(r"^(ARG|ENV) .*(TOKEN|PASSWORD|KEY)", DOCKERFILE, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    # In the form of a list, so that no shell stands between the signals and the gateway.
    assert re.search(r'^ENTRYPOINT \["gatehouse"\]$', DOCKERFILE, re.MULTILINE)


def test_the_steps_of_the_dockerfile_are_valid_shell() -> None:
    joined = DOCKERFILE.replace("\\\n", " ")
    for step in re.findall(r"^RUN (.*)$", joined, re.MULTILINE):
        checked = subprocess.run(["/bin/sh", "-n", "-c", step], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_the_container_has_no_rights_and_enough_time_to_stop(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ports"] == ["127.0.0.1:8420:8420"]
    assert int(service["stop_grace_period"].removesuffix("s")) > Settings().gateway.shutdown_timeout + 10
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).read_text() == DOCKERFILE
    places = [each.split(":")[1] for each in service["volumes"]]
    assert places == ["/etc/gatehouse/gatehouse.toml", "/var/lib/gatehouse"]
    assert "GATEHOUSE_CONFIG=/etc/gatehouse/gatehouse.toml" in DOCKERFILE
    assert "VOLUME /var/lib/gatehouse" in DOCKERFILE


def test_docker_compose_accepts_the_files() -> None:
    program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if (
        not shutil.which(program[0])
        or subprocess.run([*program, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs docker compose")
    variables = {**os.environ, "GATEHOUSE_TOKEN": "a-token-of-good-length", "GATEHOUSE_DB_PASSWORD": "hunter2"}
    for folder in (FOLDER, ROOT / "deploy/cluster"):
        command = [*program, "config", "--quiet"]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_settings_in_the_image_are_valid(tmp_path: Path, service: dict[str, Any]) -> None:
    text = (FOLDER / "gatehouse.toml").read_text()
    active = [line for line in text.splitlines() if not line.startswith("#")]
    assert set(re.findall(r"env:(\w+)", "\n".join(active))) == service["environment"].keys()
    path = tmp_path / "gatehouse.toml"
    path.write_text(text.replace("/var/lib/gatehouse", f"{tmp_path}/data"))
    path.chmod(0o600)
    checked = forked(
        [str(COMMAND), "--config", str(path), "config", "check"],
        cwd=tmp_path,
        env=environment(tmp_path, {"GATEHOUSE_TOKEN": "a-token-of-good-length"}),
        stdin="",
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "warn" not in (checked.stdout + checked.stderr).lower()


def healthcheck(socket: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-E", str(HEALTHCHECK), str(socket)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_health_check_tells_a_gateway_that_answers_from_one_that_does_not(tmp_path: Path) -> None:
    with running(tmp_path, DEFAULTS, start=by_shell()) as daemon:
        socket = daemon.data / "control.sock"
        assert healthcheck(socket).returncode == 0
        daemon.signal(signal.SIGSTOP)
        hung = healthcheck(socket)
        daemon.signal(signal.SIGCONT)
        assert hung.returncode == 1
        assert "does not answer" in hung.stderr
        assert daemon.stop() == 0
    gone = healthcheck(socket)
    assert gone.returncode == 1
    assert "Traceback" not in gone.stderr
