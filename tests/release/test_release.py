import hashlib
import json
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from datetime import date
from pathlib import Path

import pytest

from gateway.errors import Refused
from release.__main__ import release
from release.changelog import cut
from release.debian import package_version
from release.sbom import EXTRAS
from tests.release.conftest import DEBIAN, ROOT, Released, copy_of_the_tree, git_environment, make_release, run

PACKAGES = ("config", "gateway", "channels")


def data_files() -> set[str]:
    """Return the files of the packages that are not modules."""
    listed = run("git", "ls-files", *PACKAGES, cwd=ROOT).stdout.split()
    return {name for name in listed if (ROOT / name).exists() and not name.endswith(".py")}


def test_a_release_has_all_files_with_their_checksums(released: Released) -> None:
    version = released.version
    names = {f"gatehouse_gateway-{version}-py3-none-any.whl", f"gatehouse_gateway-{version}.tar.gz"}
    names |= {f"gatehouse-gateway-{version}.{ending}" for ending in ("cdx.json", "licences.md")}
    present = {path.name for path in released.folder.iterdir()}
    assert names | {"SHA256SUMS"} <= present
    assert len(present) == len(names) + 1 + bool(DEBIAN)
    lines = [line.split() for line in released.file("SHA256SUMS").read_text().splitlines()]
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256((released.folder / name).read_bytes()).hexdigest() for name in present - {"SHA256SUMS"}
    }


def test_a_release_is_a_tagged_commit_with_a_cut_changelog(released: Released) -> None:
    repository = released.repository
    assert run("git", "tag", "--points-at", "HEAD", cwd=repository).stdout.split() == [f"v{released.version}"]
    assert run("git", "log", "-1", "--format=%s", cwd=repository).stdout == f"Release {released.version}\n"
    assert run("git", "status", "--porcelain", cwd=repository).stdout == ""
    assert run("git", "worktree", "list", cwd=repository).stdout.count("\n") == 1
    assert f"## [Unreleased]\n\n## [{released.version}] - " in (repository / "CHANGELOG.md").read_text()


def test_the_wheel_and_the_sdist_have_every_data_file(released: Released) -> None:
    expected = data_files() | {"gateway/deploy/launchd/gatehouse.gateway.plist"}
    expected |= {f"gateway/{path.relative_to(ROOT)}" for path in (ROOT / "deploy/systemd").iterdir()}
    modules = {name for name in run("git", "ls-files", *PACKAGES, cwd=ROOT).stdout.split() if name.endswith(".py")}
    with zipfile.ZipFile(released.file("*.whl")) as wheel:
        names = set(wheel.namelist())
    assert "channels/web/page/index.html" in expected
    assert expected | {name for name in modules if (ROOT / name).exists()} <= names
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"gatehouse_gateway-{released.version}.dist-info"}
    with tarfile.open(released.file("*.tar.gz")) as sdist:
        inside = {name.split("/", 1)[1] for name in sdist.getnames()}
    assert {*data_files(), "deploy/launchd/gatehouse.gateway.plist", "CHANGELOG.md", "Makefile", "LICENSE"} <= inside


def test_a_wheel_from_the_sdist_equals_the_released_one(released: Released, tmp_path: Path) -> None:
    with tarfile.open(released.file("*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    built = run(
        sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "out", cwd=folder
    )
    assert built.returncode == 0, built.stderr
    (again,) = (tmp_path / "out").iterdir()
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(released.file("*.whl")) as other:
        assert {each.filename: each.CRC for each in one.infolist()} == {
            each.filename: each.CRC for each in other.infolist()
        }


def test_the_bill_of_materials_names_every_package_with_its_licence(released: Released) -> None:
    """The release itself validates it with the schema of CycloneDX."""
    bill = json.loads(released.file("*.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/gatehouse-gateway@{released.version}"
    scopes = {component["name"].lower(): component["scope"] for component in bill["components"]}
    assert (scopes["aiohttp"], scopes["mcp"], scopes["psycopg"]) == ("required", "optional", "optional")
    assert [component["name"] for component in bill["components"] if not component.get("licenses")] == []
    rows = released.file("*.licences.md").read_text().splitlines()[2:]
    assert {row.split("|")[1].strip().lower() for row in rows} == set(scopes)
    assert str(released.repository.parent) not in json.dumps(bill)


def test_extras_of_the_bill_of_materials_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, "testing"} == set(extras)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "Version {version} exists already. Name the next one: make release VERSION="),
        ("1.0", "`1.0` is no version. Write it like 1.2.3 or 1.2.3rc1."),
        ("99.0.0", "CHANGELOG.md has nothing under `## [Unreleased]`. Describe what has changed, then release it."),
    ],
)
def test_a_release_that_cannot_be_made_changes_nothing(released: Released, version: str | None, reason: str) -> None:
    before = run("git", "log", "--all", "--format=%H %D", cwd=released.repository).stdout
    with pytest.raises(Refused, match=re.escape(reason.format(version=released.version))):
        release(released.repository, version, released.folder, [])
    assert run("git", "log", "--all", "--format=%H %D", cwd=released.repository).stdout == before
    assert run("git", "worktree", "list", cwd=released.repository).stdout.count("\n") == 1


def test_a_release_of_uncommitted_files_is_refused(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    repository = copy_of_the_tree(tmp_path)
    (repository / "note.txt").write_text("a note")
    made = make_release(repository, git_environment())
    assert made.returncode == 1
    assert made.stderr == "These files are not committed: note.txt. Commit or stash them, then release again.\n"


def test_the_cut_of_the_changelog_keeps_older_sections() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n### Added\n- A thing.\n\n## [0.9.0] - 2026-01-01\n- Old.\n"
    assert cut(text, "1.0.0", date(2026, 11, 20)) == (
        "# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-11-20\n\n### Added\n- A thing.\n\n"
        "## [0.9.0] - 2026-01-01\n- Old.\n"
    )
    with pytest.raises(Refused, match="nothing under"):
        cut("# Changelog\n\n## [Unreleased]\n\n## [0.9.0]\n- Old.\n", "1.0.0", date(2026, 11, 20))


@pytest.mark.parametrize(("version", "expected"), [("1.2.3", "1.2.3+deb12"), ("1.2.3rc1", "1.2.3~rc1+deb12")])
def test_debian_sorts_a_release_candidate_before_its_release(version: str, expected: str) -> None:
    assert package_version(version, "12") == expected
