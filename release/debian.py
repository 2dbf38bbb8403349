"""The Debian package: an environment in /opt/gatehouse that uses Debian's Python, and the units of the service."""

import gzip
import re
import shutil
from pathlib import Path

from gateway.distribution import NAME
from gateway.install.units import ServiceScope, service_paths, shipped_units
from release.process import UV, run

PREFIX = Path("/opt/gatehouse")
PYTHONS = {"12": "3.11", "13": "3.13"}
"""The Python of each version of Debian. The environment works with that one only."""
_PLATFORMS = {"amd64": "x86_64-manylinux_2_36", "arm64": "aarch64-manylinux_2_36"}
_CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: The Gatehouse authors <root@localhost>
Installed-Size: {size}
Depends: python{python}, adduser, ca-certificates, init-system-helpers, libc6 (>= 2.36)
Recommends: bubblewrap, systemd
Suggests: git
Section: net
Priority: optional
Description: gateway between chat platforms and LLM agents
 Gatehouse is a daemon. People write to it from a web page, a terminal, Telegram
 or Discord, and an agent with tools answers them. It loses no message.
 .
 The package has Gatehouse with all the Python packages that it needs, in an
 environment in /opt/gatehouse, and starts it as a service.
"""
_COMMAND = """\
#!{prefix}/bin/python
import sys

from gateway.cli import main

sys.exit(main())
"""
_COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2026 The Gatehouse authors
License: Expat
Comment: The Python packages in {prefix}/lib have licences of their own. licences.md lists them, and each
 of their .dist-info folders has the text.

License: Expat
{text}
"""


def package_version(version: str, debian: str) -> str:
    """Return the version of the package. Debian sorts a pre-release before its release only with a `~`."""
    return re.sub(r"(a|b|rc)(\d+)$", r"~\1\2", version) + f"+deb{debian}"


def build_package(
    tree: Path, wheel: Path, version: str, output: Path, *, debian: str, versions: dict[str, str], licences: str
) -> Path:
    """Build the package for a version of Debian, with the given versions of all Python packages."""
    python = PYTHONS[debian]
    architecture = run("dpkg", "--print-architecture", cwd=tree).strip()
    root = output / f"root-{debian}"
    prefix = root / PREFIX.relative_to("/")
    packages = prefix / f"lib/python{python}/site-packages"
    packages.mkdir(parents=True)
    constraints = prefix / "constraints.txt"
    constraints.write_text("".join(f"{name}=={number}\n" for name, number in sorted(versions.items())))
    pip = next(line for line in (tree / "requirements/dev.txt").read_text().splitlines() if line.startswith("pip=="))
    target = ("--target", packages, "--python-version", python, "--python-platform", _PLATFORMS[architecture])
    words = ("--quiet", "--only-binary", ":all:", "--no-compile-bytecode", "--link-mode", "copy")
    run(UV, "pip", "install", *words, *target, "--constraint", constraints, wheel, pip, cwd=tree)
    _tidy(packages)

    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    # Extras get the versions that Gatehouse was tested with, and cannot replace what the package contains.
    (prefix / "pip.conf").write_text(f"[install]\nconstraint = {PREFIX}/constraints.txt\n")
    programs = prefix / "bin"
    programs.mkdir()
    for name in ("python", "python3", f"python{python}"):
        (programs / name).symlink_to(f"/usr/bin/python{python}")
    command = programs / "gatehouse"
    command.write_text(_COMMAND.format(prefix=PREFIX))
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/gatehouse").symlink_to(PREFIX / "bin/gatehouse")

    units = service_paths(ServiceScope.SYSTEM, Path.home())
    for path, text in shipped_units(units, PREFIX / "bin/gatehouse").items():
        unit = root / "usr/lib/systemd/system" / path.name
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)

    documents = root / "usr/share/doc" / NAME
    documents.mkdir(parents=True)
    text = "\n".join(f" {line or '.'}" for line in (tree / "LICENSE").read_text().strip().splitlines())
    (documents / "copyright").write_text(_COPYRIGHT.format(prefix=PREFIX, text=text))
    (documents / "licences.md").write_text(licences)
    changelog = gzip.compress((tree / "CHANGELOG.md").read_bytes(), mtime=0)
    (documents / "changelog.gz").write_bytes(changelog)

    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == command else 0o644)
    control = root / "DEBIAN"
    control.mkdir(mode=0o755)
    size = sum(path.lstat().st_size for path in root.rglob("*")) // 1024
    full = package_version(version, debian)
    (control / "control").write_text(
        _CONTROL.format(name=NAME, version=full, architecture=architecture, size=size, python=python)
    )
    (control / "control").chmod(0o644)
    for script in ("preinst", "postinst", "prerm", "postrm"):
        shutil.copyfile(tree / "deploy/debian" / script, control / script)
        (control / script).chmod(0o755)
    package = output / f"{NAME}_{full}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", root, package, cwd=tree)
    shutil.rmtree(root)
    return package


def _tidy(packages: Path) -> None:
    """Remove what only the build knows, and what pip would need to replace the files of the Debian package."""
    shutil.rmtree(packages / "bin", ignore_errors=True)
    (packages / ".lock").unlink(missing_ok=True)
    for metadata in packages.glob("*.dist-info"):
        # Without RECORD, pip refuses to change a package, and names the installer.
        # https://packaging.python.org/en/latest/specifications/recording-installed-packages/
        (metadata / "RECORD").unlink()
        (metadata / "INSTALLER").write_text("dpkg\n")
        for name in ("direct_url.json", "REQUESTED", "uv_build.json", "uv_cache.json"):
            (metadata / name).unlink(missing_ok=True)
