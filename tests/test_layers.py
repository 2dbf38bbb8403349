"""Imports point one way: config <- gateway <- channels, and within the gateway down the list of its packages."""

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

PACKAGES = (
    # Values and tools that know nothing of the gateway.
    "errors",
    "contract",
    "text",
    "conversation",
    "aio",
    "bounded",
    "descriptors",
    "private_files",
    "data_dir",
    "distribution",
    "lean_imports",
    "lanes",
    "routing",
    "shards",
    "http",
    # Storage and access.
    "database",
    "spool",
    "metrics",
    "job",
    "tracing",
    "access",
    "sessions",
    "storage_copy",
    "storage",
    "placement",
    "memory",
    # The model and its tools.
    "sandbox",
    "documents",
    "safe_http",
    "web_search",
    "skills",
    "files",
    "agent",
    "mcp",
    # Coding agents and their repositories.
    "repos",
    "acp",
    # Messages: they come in, a turn or a command answers them, the answer goes out.
    "outbound",
    "scheduler",
    "reminders",
    "schedules",
    "turns",
    "extraction",
    "commands",
    "inbound",
    "adapters",
    # Observation and administration.
    "observability",
    "cluster",
    "install",
    "backup",
    "doctor",
    "admin",
    "importing",
    "api",
    "admin_api",
    "openai_door",
    "testing",
    # The daemon and its commands.
    "daemon",
    "build",
    "upgrade",
    "cli",
)
"""The packages and modules directly in `gateway/`, from the bottom up: each may import those before it."""

NAMES_PLATFORMS = {
    # The files of other gateways name platforms. One module says what these names mean here.
    Path("gateway/importing/platforms.py"),
}

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
def test_imports_point_down_only(file: Path) -> None:
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
def test_packages_import_only_those_below_them(file: Path) -> None:
    package = Path(file.parts[1]).stem
    if package == "__init__":
        return
    assert package in PACKAGES, f"add {package} to PACKAGES"
    allowed = {"gateway", *(f"gateway.{name}" for name in PACKAGES[: PACKAGES.index(package) + 1])}
    wrong = {
        module
        for module in imports(file)
        if is_within(module, "gateway") and ".".join(module.split(".")[:2]) not in allowed
    }
    assert not wrong, f"gateway/{package} is below these; see PACKAGES"


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.parts[0] == "gateway" and file not in NAMES_PLATFORMS], ids=str
)
def test_the_core_never_names_a_platform(file: Path) -> None:
    """Comments and docstrings may give an example."""
    strings = {
        node.value
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not PLATFORMS & strings


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_module_has_a_docstring(file: Path) -> None:
    assert ast.get_docstring(ast.parse((ROOT / file).read_text()))


CLIENTS = {
    "gateway/safe_http/client.py": "addresses that a model, a web page or a webhook names, guarded",
    "gateway/admin/client.py": "the control socket",
    "gateway/doctor/cluster.py": "the other nodes, as the next one",
    "gateway/http/forwarding.py": "the other nodes of the cluster, at the addresses that they register",
    "gateway/install/setup.py": "a model server on this machine, at its usual address",
    "gateway/agent/providers/http_session.py": "providers, at the address in the configuration",
    "gateway/observability/span_exporter.py": "the collector of traces, at the address in the configuration",
    "gateway/mcp/http.py": "an MCP server, at the address in the configuration",
    "gateway/files/to_text.py": "a provider's endpoint, at the address in the configuration",
    "channels/telegram/client.py": "the Bot API, at the address in the configuration or the usual one",
    "channels/discord/api.py": "attachments, at the address that the platform's API returns",
}
"""The modules that make HTTP requests, and why their addresses can be trusted."""


def test_only_the_guarded_client_visits_untrusted_addresses() -> None:
    opened = {
        str(file)
        for file in FILES
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"ClientSession", "AsyncClient", "urlopen"}
    }
    assert opened <= set(CLIENTS), "use gateway.safe_http, or give the reason in CLIENTS"


def test_built_in_channels_are_found_by_entry_point_like_any_other() -> None:
    assert {"loopback", "terminal", "web"} <= {point.name for point in entry_points(group="gatehouse.channels")}


MODULES = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}


def loaded_by(file: Path) -> Iterator[str]:
    """Yield the modules that importing `file` imports."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module or "" for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_there_is_no_import_cycle() -> None:
    graph = {name: set(loaded_by(file)) & MODULES.keys() for name, file in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())
