"""How Gatehouse was installed, and the commands that add an extra to the present installation or repair it."""

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

NAME = "gatehouse-gateway"
"""The name of the distribution. The command and the packages have shorter ones, which belong to others on PyPI."""

REINSTALL_PACKAGE = f"sudo apt install --reinstall ./{NAME}_*.deb"
"""Repairs an installation by the Debian package, from the folder with its file."""

_PIPX_METADATA = "pipx_metadata.json"
_UV_RECEIPT = "uv-receipt.toml"
_NEW_WHEEL = "./gatehouse_gateway-NEW.VERSION-py3-none-any.whl"
"""Stands for the file of a version that is not known here."""
_CONTAINER_EXTRAS = "container-extras"
"""In the image of a container: a file with the extras that it has, with commas between them."""
_PACKAGE = re.compile(r"[\w.-]+")
_UV_SOURCES = ("directory", "path", "url", "git")


class Installation(Struct, frozen=True, kw_only=True):
    """An environment with Gatehouse. `metadata` is None where the code runs without being installed."""

    prefix: Path
    python: Path
    metadata: Distribution | None
    has_pip: bool
    is_writable: bool = True

    @classmethod
    def present(cls) -> "Installation":
        """Return the environment of this process."""
        try:
            metadata = distribution(NAME)
        except PackageNotFoundError:
            metadata = None
        has_pip = find_spec("pip") is not None
        return cls(
            prefix=Path(sys.prefix),
            python=Path(sys.executable),
            metadata=metadata,
            has_pip=has_pip,
            is_writable=os.access(sys.prefix, os.W_OK),
        )

    def extra_command(self, extra: str) -> str:
        """Return the command that adds the packages of an extra, and changes nothing else."""
        # Installing `gatehouse-gateway[extra]` would replace an installation from a folder by one from PyPI.
        packages = list(self._requirements(extra)) or [f"{NAME}[{extra}]"]
        if build := self._image_build(extra):  # Nothing can be added to the image that runs.
            return build
        if (self.prefix / _PIPX_METADATA).exists():
            return shlex.join(["pipx", "inject", self.prefix.name, *packages])
        if (self.prefix / _UV_RECEIPT).exists():
            return shlex.join(["uv", "tool", "install", *self._uv_words(), *_options("--with", packages)])
        return shlex.join([*self._pip_install(), *packages])

    def extras(self) -> list[str]:
        """Return the extras of which all packages are installed."""
        names = (self.metadata.metadata.get_all("Provides-Extra") if self.metadata else None) or []
        return [each for each in names if all(map(_is_installed, self._requirements(each)))]

    def reinstall_command(self) -> str:
        if (self.prefix / _PIPX_METADATA).exists():
            return shlex.join(["pipx", "reinstall", self.prefix.name])
        if (self.prefix / _UV_RECEIPT).exists():
            return shlex.join(["uv", "tool", "upgrade", "--reinstall", self.prefix.name])
        if self.is_debian_package:
            return REINSTALL_PACKAGE
        source, is_editable = self.source()
        pip = [*self._pip_install(), "--force-reinstall", "--no-deps"]
        return shlex.join([*pip, *(["--editable"] if is_editable else []), source])

    def upgrade_command(self) -> str:
        """Return the command that installs the newest version in place of this one, as this one was installed."""
        if self.is_debian_package:
            return f"sudo apt install ./{NAME}_NEW.VERSION+*.deb"
        if build := self._image_build():
            return f"git pull --ff-only && {build}"
        source, is_editable = self.source()
        is_wheel = source.endswith(".whl")
        if (self.prefix / _PIPX_METADATA).exists():
            return shlex.join(
                ["pipx", "install", "--force", _NEW_WHEEL] if is_wheel else ["pipx", "upgrade", self.prefix.name]
            )
        if (self.prefix / _UV_RECEIPT).exists():
            if not is_wheel:
                return shlex.join(["uv", "tool", "upgrade", self.prefix.name])
            return shlex.join(["uv", "tool", "install", "--force", *self._uv_words(_NEW_WHEEL)])
        if is_wheel or not source.startswith("/"):
            return shlex.join([*self._pip_install(), "--upgrade", _NEW_WHEEL if is_wheel else source])
        install = [*self._pip_install(), *(["--editable"] if is_editable else []), source]
        return f"{shlex.join(['git', '-C', source, 'pull', '--ff-only'])} && {shlex.join(install)}"

    def _image_build(self, *more: str) -> str:
        """Return the command that builds the image of this container again, with more extras. Empty elsewhere."""
        present = self.prefix / _CONTAINER_EXTRAS
        if not present.exists():
            return ""
        extras = ",".join(filter(None, [present.read_text(encoding="utf-8").strip(), *more]))
        return f"docker build -f deploy/docker/Dockerfile --build-arg EXTRAS={shlex.quote(extras)} -t gatehouse ."

    def trial_commands(self, folder: str, extras: Collection[str]) -> list[str]:
        """Return the commands that install the newest version into an environment of its own, in `folder`."""
        commands = []
        package, _ = self.source()
        if package.endswith(".whl") or self.is_debian_package:
            package = _NEW_WHEEL
        elif package.startswith("/"):  # A clone. The newest version is where it came from.
            origin = f'"$(git -C {shlex.quote(package)} remote get-url origin)"'
            package = f"./{folder}-source"
            commands.append(f"git clone {origin} {package}")
        name, at, place = package.partition(" @ ")
        package = f"{name}[{','.join(sorted(extras))}]{at}{place}" if extras else package
        if self.has_pip or self.is_debian_package:
            install = [f"{folder}/bin/python", "-m", "pip", "install", package]
            return [*commands, shlex.join(["python3", "-m", "venv", folder]), shlex.join(install)]
        install = ["uv", "pip", "install", "--python", folder, package]
        return [*commands, shlex.join(["uv", "venv", folder]), shlex.join(install)]

    @property
    def is_debian_package(self) -> bool:
        """Whether the Debian package has installed it."""
        return self.metadata is not None and (self.metadata.read_text("INSTALLER") or "").strip() == "dpkg"

    def source(self) -> tuple[str, bool]:
        """Return where pip found Gatehouse: a folder, a URL or its name on PyPI; and whether it is used from there."""
        # https://packaging.python.org/en/latest/specifications/direct-url-data-structure/
        text = self.metadata.read_text("direct_url.json") if self.metadata else None
        direct = json.loads(text) if text else {}
        url = str(direct.get("url", NAME))
        if url.startswith("file://"):
            return unquote(urlsplit(url).path), bool(direct.get("dir_info", {}).get("editable"))
        if version_control := direct.get("vcs_info"):
            return f"{NAME} @ {version_control['vcs']}+{url}", False
        return url if url == NAME else f"{NAME} @ {url}", False

    def _requirements(self, extra: str) -> Iterator[str]:
        for requirement in (self.metadata.requires if self.metadata else None) or []:
            package, _, marker = requirement.partition(";")
            if f"extra == '{extra}'" in marker.replace('"', "'"):
                yield package.strip()

    def _pip_install(self) -> list[str]:
        # The environments of system services belong to root.
        sudo = [] if self.is_writable else ["sudo"]
        if self.has_pip:
            return [*sudo, str(self.python), "-m", "pip", "install"]
        # uv makes environments without pip, and installs into them itself.
        return [*sudo, "uv", "pip", "install", "--python", str(self.python)]

    def _uv_words(self, wheel: str = "") -> Iterator[str]:
        """Yield the words that describe the tool to uv, with everything else that its environment contains.

        uv makes the environment match the new command, so what the command leaves out would be removed. `wheel` is
        another file to install Gatehouse from.
        """
        receipt = tomllib.loads((self.prefix / _UV_RECEIPT).read_text(encoding="utf-8"))
        tables = receipt.get("tool", {}).get("requirements", [])
        if wheel:
            own = ",".join(extra for table in tables if table["name"] == NAME for extra in table.get("extras", []))
            yield f"{wheel}[{own}]" if own else wheel
        for table in tables:
            name, extras = table["name"], ",".join(table.get("extras", []))
            package = f"{name}[{extras}]" if extras else name
            is_own = name == NAME
            if is_own and wheel:
                continue
            if "editable" in table:
                yield from ("--editable" if is_own else "--with-editable", str(table["editable"]))
                continue
            place = next((str(table[kind]) for kind in _UV_SOURCES if kind in table), "")
            if place:
                place = f"git+{place}" if "git" in table else place
                spec = f"{package} @ {Path(place).as_uri() if place.startswith('/') else place}"
            else:
                spec = f"{package}{table.get('specifier', '')}"
            yield from (spec,) if is_own else ("--with", spec)


def _is_installed(requirement: str) -> bool:
    name = _PACKAGE.match(requirement)
    try:
        return name is not None and bool(distribution(name[0]))
    except PackageNotFoundError:
        return False


def _options(option: str, values: list[str]) -> Iterator[str]:
    for value in values:
        yield from (option, value)
