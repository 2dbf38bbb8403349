"""The gateways whose data can be imported, where it lies by default, and how it is told apart."""

from pathlib import Path
from types import ModuleType

from gateway.importing import hermes, miniclaw, nanobot, openclaw, picoclaw
from gateway.importing.values import ForeignGateway, UnknownFormat, unreadable

GATEWAYS: dict[str, ModuleType] = {"openclaw": openclaw, "nanobot": nanobot, "hermes": hermes, "picoclaw": picoclaw}
"""By the names that people write. Each module has its default folder in the home folder, and tells its data apart."""
FILES = ("miniclaw", "claw0")
"""Gateways of which session files are imported, from a folder that has to be named."""


def installed_gateways(home: Path) -> list[tuple[str, Path]]:
    """Return the gateways with data in a home folder."""
    found = []
    for name, module in GATEWAYS.items():
        folder = home / module.DEFAULT_FOLDER
        if module.is_gateway(folder):
            found.append((name, folder))
    return found


def open_gateway(path: Path, name: str = "") -> ForeignGateway:
    """Return the data in a folder or file. Without a name, its files tell whose it is. Raises `UnknownFormat`."""
    try:
        if not path.exists():
            raise UnknownFormat(f"{path} does not exist")
        if name in FILES:
            return miniclaw.open_gateway(path)
        if name:
            return _opened(GATEWAYS[name], path)
        for module in GATEWAYS.values():
            if path.is_dir() and module.is_gateway(path):
                return _opened(module, path)
        found = installed_gateways(path)
        if len(found) > 1:
            folders = " or ".join(str(folder) for _, folder in found)
            raise UnknownFormat(f"it has the data of several gateways; name {folders}")
        if found:
            maker, folder = found[0]
            return _opened(GATEWAYS[maker], folder)
        return miniclaw.open_gateway(path)
    except OSError as error:  # A folder may not be searched, for example.
        raise unreadable(error, path) from error


def _opened(module: ModuleType, folder: Path) -> ForeignGateway:
    found = module.open_gateway(folder)
    assert isinstance(found, ForeignGateway), "as its signature says"  # noqa: S101 - for mypy.
    return found
