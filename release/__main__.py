"""`make release`: builds everything that a release consists of, from a clean commit, then commits and tags it."""

import argparse
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gateway.distribution import NAME
from gateway.errors import Refused
from release.changelog import cut, has_version
from release.debian import PYTHONS, build_package
from release.process import run
from release.sbom import bill_of_materials, licences, locked_versions, make_environment

_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_VERSION_LINE = re.compile(r'^__version__ = "(?P<version>.*)"$', re.MULTILINE)
_VERSION_FILE = "gateway/__init__.py"
_NAMED_FILES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--version", help="the version to release (default: the one in gateway/__init__.py)")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="the folder for the result (default: dist)")
    parser.add_argument("--debian", choices=PYTHONS, nargs="*", default=list(PYTHONS), help="versions of Debian")
    options = parser.parse_args()
    os.umask(0o022)  # Files of a package are for all users, whoever builds it.
    try:
        release(Path.cwd(), options.version, options.output.absolute(), options.debian)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


def release(repository: Path, asked: str | None, output: Path, debians: list[str]) -> None:
    """Release the commit that is checked out. Nothing changes in the repository unless everything was built."""
    version = asked or _version_of(repository)
    _check_repository(repository, version)
    with tempfile.TemporaryDirectory() as folder, _worktree(repository, Path(folder) / "tree") as tree:
        _write_version(tree, version)
        run("git", "commit", "--quiet", "--all", "--message", f"Release {version}", cwd=tree)
        built = Path(folder) / version
        for path in build(tree, version, built, debians):
            print(f"built {path.name}", flush=True)
        commit = run("git", "rev-parse", "HEAD", cwd=tree).strip()
        run("git", "merge", "--quiet", "--ff-only", commit, cwd=repository)
        run("git", "tag", "--annotate", "--message", f"Gatehouse {version}", f"v{version}", cwd=repository)
        target = output / version
        shutil.rmtree(target, ignore_errors=True)  # An attempt that failed before its tag.
        shutil.copytree(built, target)
    print(f"Released {version} into {target}. Publish it with: git push --follow-tags")


def build(tree: Path, version: str, output: Path, debians: list[str]) -> Iterator[Path]:
    """Build the files of a release from a clean tree."""
    output.mkdir()
    # Two builds of a commit are equal.
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", cwd=tree).strip()
    run(sys.executable, "-m", "hatchling", "build", "--directory", output, cwd=tree)
    yield from sorted(output.iterdir())
    wheel = next(output.glob("*.whl"))
    environment = output / "environment"
    python = make_environment(tree, wheel, environment)
    table = licences(python, tree)
    versions = locked_versions(python, tree)
    texts = {
        "cdx.json": bill_of_materials(python, version, tree),
        "licences.md": table,
    }
    shutil.rmtree(environment)
    for ending, text in texts.items():
        path = output / f"{NAME}-{version}.{ending}"
        path.write_text(text, encoding="utf-8")
        yield path
    for debian in debians:
        yield build_package(tree, wheel, version, output, debian=debian, versions=versions, licences=table)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(output.iterdir())]
    sums = output / "SHA256SUMS"
    sums.write_text("".join(lines), encoding="utf-8")
    yield sums


def _check_repository(repository: Path, version: str) -> None:
    if not _VERSION.fullmatch(version):
        raise Refused(f"`{version}` is no version. Write it like 1.2.3 or 1.2.3rc1.")
    changed = [line[3:] for line in run("git", "status", "--porcelain", cwd=repository).splitlines()]
    if changed:
        more = ", ..." if len(changed) > _NAMED_FILES else ""
        raise Refused(
            f"These files are not committed: {', '.join(changed[:_NAMED_FILES])}{more}. "
            "Commit or stash them, then release again."
        )
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    if run("git", "tag", "--list", f"v{version}", cwd=repository).strip() or has_version(changelog, version):
        raise Refused(f"Version {version} exists already. Name the next one: make release VERSION={_next(version)}")


def _version_of(repository: Path) -> str:
    found = _VERSION_LINE.search((repository / _VERSION_FILE).read_text(encoding="utf-8"))
    if found is None:
        raise Refused(f"{_VERSION_FILE} has no line `__version__ = ...`.")
    return found["version"]


def _next(version: str) -> str:
    major, minor, patch = re.findall(r"\d+", version)[:3]
    return f"{major}.{minor}.{int(patch) + 1}"


@contextmanager
def _worktree(repository: Path, tree: Path) -> Iterator[Path]:
    """Check out the commit in a folder of its own: files that git ignores cannot get into the release."""
    run("git", "worktree", "add", "--quiet", "--detach", tree, cwd=repository)
    try:
        yield tree
    finally:
        run("git", "worktree", "remove", "--force", tree, cwd=repository)


def _write_version(tree: Path, version: str) -> None:
    path = tree / _VERSION_FILE
    text = path.read_text(encoding="utf-8")
    path.write_text(_VERSION_LINE.sub(f'__version__ = "{version}"', text), encoding="utf-8")
    path = tree / "CHANGELOG.md"
    day = datetime.now(tz=UTC).date()
    path.write_text(cut(path.read_text(encoding="utf-8"), version, day), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
