"""Imports look one way: config <- gateway <- channels; and the core names no platform."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("config", "gateway", "channels")
ALLOWED = {
    "config": ("config",),
    "gateway": ("config", "gateway"),
    "channels": ("config", "channels", "gateway.contract", "gateway.errors", "gateway.text"),
}
PLATFORMS = {"telegram", "discord"}

EXEMPT: set[tuple[str, str]] = set()
"""(file, imported module), each with its reason in a comment."""

FILES = [file.relative_to(ROOT) for package in OURS for file in sorted((ROOT / package).rglob("*.py"))]


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import hides where it goes"
            yield node.module or ""


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_look_down_only(file: Path) -> None:
    allowed = ALLOWED[file.parts[0]]
    wrong = [
        module
        for module in imports(file)
        if module.partition(".")[0] in OURS
        and not any(is_within(module, package) for package in allowed)
        and (str(file), module) not in EXEMPT
    ]
    assert not wrong


@pytest.mark.parametrize("file", [file for file in FILES if file.parts[0] == "gateway"], ids=str)
def test_the_core_never_names_a_platform(file: Path) -> None:
    """Code, that is: prose may give an example."""
    strings = {
        node.value
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not PLATFORMS & strings


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_module_opens_with_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse((ROOT / file).read_text()))


CLIENTS = {
    "gateway/safe_http/client.py": "the guarded one, for addresses that somebody else has named",
    "gateway/admin/client.py": "the control socket",
    "gateway/install/setup.py": "a model server of this machine, at its usual address",
    "gateway/agent/providers/sdk_client.py": "providers, at the address in the configuration",
    "gateway/agent/providers/aiohttp_transport.py": "the same, underneath",
    "gateway/mcp/client.py": "an MCP server, at the address in the configuration",
    "gateway/files/to_text.py": "a provider's endpoint, at the address in the configuration",
    "channels/discord/api.py": "files of a message, at the address that the platform's own API gives",
}
"""Where we go out by HTTP ourselves, and why that address is not of somebody's choosing."""


def test_only_the_guarded_client_goes_where_others_say() -> None:
    opened = {
        str(file)
        for file in FILES
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"ClientSession", "AsyncClient", "urlopen"}
    }
    assert opened <= set(CLIENTS), "use gateway.publicweb, or name the reason here"


def test_the_built_in_channels_are_found_as_a_third_partys_are() -> None:
    assert {"loopback", "terminal", "web"} <= {point.name for point in entry_points(group="gatehouse.channels")}


MODULES = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}


def loaded_by(file: Path) -> Iterator[str]:
    """Name what is imported as soon as `file` is; a name out of a package may be a module of it."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module or "" for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_is_imported_by_what_it_imports() -> None:
    graph = {name: set(loaded_by(file)) & MODULES.keys() for name, file in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())
