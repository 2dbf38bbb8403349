"""The commands that add an extra to the present installation, or repair it."""

import json
import re
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from gateway import __version__
from gateway.distribution import NAME, Installation

ROOT = Path(__file__).parent.parent
METADATA = f"""\
Metadata-Version: 2.4
Name: {NAME}
Version: {__version__}
Requires-Dist: aiohttp>=3.14
Provides-Extra: mcp
Requires-Dist: mcp>=2.3; extra == 'mcp'
Provides-Extra: acp
Requires-Dist: agent-client-protocol>=0.12; extra == "acp"
"""
FOLDER = {"dir_info": {}, "url": "file:///srv/my%20sources/gatehouse"}
CHECKOUT = {"dir_info": {"editable": True}, "url": "file:///home/ada/gatehouse"}
GIT = {"vcs_info": {"vcs": "git", "commit_id": "abc"}, "url": "https://example.org/gatehouse.git"}


def installation(
    prefix: Path, direct_url: object = None, *, has_pip: bool = True, is_writable: bool = True
) -> Installation:
    metadata = prefix / "gatehouse_gateway.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    if direct_url is not None:
        (metadata / "direct_url.json").write_text(json.dumps(direct_url))
    python = Path("/opt/venv/bin/python")
    found = PathDistribution(metadata)
    return Installation(prefix=prefix, python=python, metadata=found, has_pip=has_pip, is_writable=is_writable)


@pytest.mark.parametrize("direct_url", [None, FOLDER, CHECKOUT, GIT])
def test_pip_installs_the_packages_of_the_extra_and_leaves_gatehouse_alone(tmp_path: Path, direct_url: object) -> None:
    here = installation(tmp_path, direct_url)
    assert here.extra_command("mcp") == "/opt/venv/bin/python -m pip install 'mcp>=2.3'"
    assert here.extra_command("acp") == "/opt/venv/bin/python -m pip install 'agent-client-protocol>=0.12'"


def test_uv_installs_into_an_environment_without_pip(tmp_path: Path) -> None:
    here = installation(tmp_path, has_pip=False)
    assert here.extra_command("mcp") == "uv pip install --python /opt/venv/bin/python 'mcp>=2.3'"


def test_an_image_is_built_again_with_one_more_extra(tmp_path: Path) -> None:
    build = "docker build -f deploy/docker/Dockerfile --build-arg EXTRAS={} -t gatehouse ."
    here = installation(tmp_path, FOLDER)
    (tmp_path / "container-extras").write_text("postgres\n")
    assert here.extra_command("mcp") == build.format("postgres,mcp")
    assert here.upgrade_command() == f"git pull --ff-only && {build.format('postgres')}"
    (tmp_path / "container-extras").write_text("\n")
    assert here.extra_command("mcp") == build.format("mcp")


def test_an_environment_of_root_is_changed_with_sudo(tmp_path: Path) -> None:
    here = installation(tmp_path, is_writable=False)
    assert here.extra_command("mcp") == "sudo /opt/venv/bin/python -m pip install 'mcp>=2.3'"


def test_the_debian_package_is_repaired_by_apt(tmp_path: Path) -> None:
    here = installation(tmp_path)
    (tmp_path / "gatehouse_gateway.dist-info/INSTALLER").write_text("dpkg\n")
    assert here.reinstall_command() == "sudo apt install --reinstall ./gatehouse-gateway_*.deb"


def test_pipx_injects_the_packages_of_the_extra(tmp_path: Path) -> None:
    prefix = tmp_path / "gatehouse-gateway"
    prefix.mkdir()
    (prefix / "pipx_metadata.json").write_text("{}")
    here = installation(prefix, FOLDER)
    assert here.extra_command("mcp") == "pipx inject gatehouse-gateway 'mcp>=2.3'"
    assert here.reinstall_command() == "pipx reinstall gatehouse-gateway"


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        ('{ name = "gatehouse-gateway" }', "gatehouse-gateway"),
        ('{ name = "gatehouse-gateway", specifier = "==0.1.0" }', "gatehouse-gateway==0.1.0"),
        ('{ name = "gatehouse-gateway", directory = "/srv/g" }', "'gatehouse-gateway @ file:///srv/g'"),
        ('{ name = "gatehouse-gateway", editable = "/srv/g" }', "--editable /srv/g"),
        (
            '{ name = "gatehouse-gateway", git = "https://example.org/g" }',
            "'gatehouse-gateway @ git+https://example.org/g'",
        ),
        (
            '{ name = "gatehouse-gateway", extras = ["acp"] }, { name = "gatehouse-pigeon", directory = "/srv/p" }',
            "'gatehouse-gateway[acp]' --with 'gatehouse-pigeon @ file:///srv/p'",
        ),
    ],
)
def test_uv_keeps_everything_else_in_the_environment_of_the_tool(tmp_path: Path, requirements: str, words: str) -> None:
    prefix = tmp_path / "gatehouse-gateway"
    prefix.mkdir()
    (prefix / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{requirements}]\n")
    here = installation(prefix)
    assert here.extra_command("mcp") == f"uv tool install {words} --with 'mcp>=2.3'"
    assert here.reinstall_command() == "uv tool upgrade --reinstall gatehouse-gateway"


@pytest.mark.parametrize(
    ("direct_url", "words"),
    [
        (None, "gatehouse-gateway"),
        (FOLDER, "'/srv/my sources/gatehouse'"),
        (CHECKOUT, "--editable /home/ada/gatehouse"),
        (GIT, "'gatehouse-gateway @ git+https://example.org/gatehouse.git'"),
    ],
)
def test_a_reinstallation_uses_the_same_source(tmp_path: Path, direct_url: object, words: str) -> None:
    command = installation(tmp_path, direct_url).reinstall_command()
    assert command == f"/opt/venv/bin/python -m pip install --force-reinstall --no-deps {words}"


def test_code_that_is_not_installed_names_the_distribution(tmp_path: Path) -> None:
    here = Installation(prefix=tmp_path, python=Path("/usr/bin/python3"), metadata=None, has_pip=True)
    assert here.extra_command("mcp") == "/usr/bin/python3 -m pip install 'gatehouse-gateway[mcp]'"


def test_the_project_has_the_name_that_the_code_knows_and_its_version() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = read["project"]
    assert (project["name"], project["dynamic"]) == (NAME, ["version"])
    assert read["tool"]["hatch"]["version"] == {"path": "gateway/__init__.py"}
    assert project["scripts"] == {"gatehouse": "gateway.cli:main"}


@pytest.mark.parametrize("place", ["README.md", "docs", "gateway", "channels", "config", "examples"])
def test_no_text_tells_people_to_install_the_project_of_another_owner(place: str) -> None:
    """The name `gatehouse` on PyPI belongs to another project."""
    files = [file for file in (ROOT / place).rglob("*") if file.suffix in {".md", ".py", ".toml"}]
    for file in files or [ROOT / place]:
        assert not re.search(r"install ['\"]?gatehouse(\[|['\"`]|$)", file.read_text(), re.MULTILINE), file


WHEEL = {"archive_info": {}, "url": "file:///srv/dist/gatehouse_gateway-0.1.0-py3-none-any.whl"}
NEW_WHEEL = "./gatehouse_gateway-NEW.VERSION-py3-none-any.whl"


@pytest.mark.parametrize(
    ("direct_url", "upgrade", "trial"),
    [
        (None, "-m pip install --upgrade gatehouse-gateway", "gatehouse-gateway[sql]"),
        (WHEEL, f"-m pip install --upgrade {NEW_WHEEL}", f"{NEW_WHEEL}[sql]"),
        (
            GIT,
            "-m pip install --upgrade 'gatehouse-gateway @ git+https://example.org/gatehouse.git'",
            "gatehouse-gateway[sql] @ git+https://example.org/gatehouse.git",
        ),
        (FOLDER, "-m pip install '/srv/my sources/gatehouse'", "./next-source[sql]"),
        (CHECKOUT, "-m pip install --editable /home/ada/gatehouse", "./next-source[sql]"),
    ],
)
def test_pip_upgrades_from_where_gatehouse_came(tmp_path: Path, direct_url: object, upgrade: str, trial: str) -> None:
    here = installation(tmp_path, direct_url)
    assert here.upgrade_command().endswith(f"/opt/venv/bin/python {upgrade}")
    *before, install = here.trial_commands("next", ("sql",))
    assert install == f"next/bin/python -m pip install '{trial}'"
    assert before[-1] == "python3 -m venv next"
    is_clone = direct_url in (FOLDER, CHECKOUT)
    assert here.upgrade_command().startswith("git -C ") is is_clone
    assert before[0].startswith("git clone ") is is_clone


@pytest.mark.parametrize(
    ("mark", "command"), [("pipx_metadata.json", "pipx upgrade"), ("uv-receipt.toml", "uv tool upgrade")]
)
def test_tools_upgrade_what_they_have_installed(tmp_path: Path, mark: str, command: str) -> None:
    prefix = tmp_path / NAME
    prefix.mkdir()
    (prefix / mark).touch()
    assert installation(prefix).upgrade_command() == f"{command} {NAME}"


@pytest.mark.parametrize(
    ("mark", "command"), [("pipx_metadata.json", "pipx install"), ("uv-receipt.toml", "uv tool install")]
)
def test_tools_need_another_file_if_they_have_installed_a_file(tmp_path: Path, mark: str, command: str) -> None:
    (tmp_path / mark).touch()
    assert installation(tmp_path, WHEEL).upgrade_command() == f"{command} --force {NEW_WHEEL}"


def test_uv_keeps_the_extras_when_another_file_is_installed(tmp_path: Path) -> None:
    own = '{ name = "gatehouse-gateway", extras = ["sql"], path = "/srv/dist/old.whl" }'
    (tmp_path / "uv-receipt.toml").write_text(
        f'[tool]\nrequirements = [{own}, {{ name = "mcp", specifier = ">=2.3" }}]\n'
    )
    command = installation(tmp_path, WHEEL).upgrade_command()
    assert command == f"uv tool install --force '{NEW_WHEEL}[sql]' --with 'mcp>=2.3'"


def test_an_extra_counts_if_all_its_packages_are_installed(tmp_path: Path) -> None:
    here = installation(tmp_path)
    (tmp_path / "gatehouse_gateway.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: gatehouse-gateway\nVersion: 0.1.0\n"
        "Provides-Extra: here\nRequires-Dist: msgspec[toml]>=0.1; extra == 'here'\n"
        "Provides-Extra: half\nRequires-Dist: msgspec; extra == 'half'\n"
        "Requires-Dist: no-such-package>=1; extra == 'half'\n"
    )
    assert here.extras() == ["here"]


def test_the_debian_package_is_replaced_by_another_one(tmp_path: Path) -> None:
    here = installation(tmp_path)
    (tmp_path / "gatehouse_gateway.dist-info" / "INSTALLER").write_text("dpkg\n")
    assert here.upgrade_command().startswith("sudo apt install ./gatehouse-gateway_")
    assert here.trial_commands("next", ())[-1] == f"next/bin/python -m pip install {NEW_WHEEL}"
