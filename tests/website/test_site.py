"""The website: it builds without broken links, and its reference has everything that is in the code."""

import json
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
import yaml

from config.reload import APPLIED, NEEDS_RESTART, REOPENS_CHANNEL
from gateway.cli import COMMANDS as SHELL_COMMANDS
from gateway.commands.registry import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("website") / "site"
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "website", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    refused = build(tmp_path)
    assert refused.returncode == 1
    assert "contains something other than the site" in refused.stderr
    assert (tmp_path / "notes.txt").exists()


def page(site: Path, name: str) -> str:
    return unescape((site / name / "index.html").read_text(encoding="utf-8"))


def test_every_page_is_built(site: Path) -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    for source in sources:
        name = source.relative_to(ROOT).with_suffix("")
        folder = name.parent if name.name == "README" else name
        assert (site / folder / "index.html").is_file(), source


def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    for each in site.rglob("*.html"):
        text = each.read_text(encoding="utf-8")
        assert 'src="http' not in text, each
        assert '<link rel="stylesheet" href="http' not in text, each


def test_the_reference_has_every_key_of_the_configuration(site: Path) -> None:
    text = page(site, "reference/configuration")
    for pattern in NEEDS_RESTART | REOPENS_CHANNEL | APPLIED:
        table, _, key = pattern.rpartition(".")
        assert (f"<code>{key}</code>" if table else f"[[{key}]]") in text, pattern


def test_the_reference_has_every_command(site: Path) -> None:
    text = page(site, "reference/commands")
    for command in COMMANDS:
        assert f"<code>/{command.name}" in text
    for name in SHELL_COMMANDS:
        assert f"usage: gatehouse {name}" in text


def test_the_reference_has_every_operation_of_the_api(site: Path) -> None:
    text = page(site, "reference/api")
    document = json.loads((site / "reference" / "openapi.json").read_text(encoding="utf-8"))
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}</code>" in text


def test_the_reference_has_metrics_and_log_events(site: Path) -> None:
    metrics = page(site, "reference/metrics")
    assert "<code>gatehouse_messages_received_total</code>" in metrics
    assert "<code>gatehouse_cluster_shard_arrivals</code>" in metrics
    assert "<code>verdict</code>" in metrics
    events = page(site, "reference/log-events")
    assert "<code>message_withdrawn</code>" in events


def test_lists_and_code_inside_lists_are_indented_by_four_spaces() -> None:
    """The site follows Markdown, in which an item of a list goes on only with lines that are indented by four."""
    wrong = [f"{path.name}:{number}: {line}" for path, number, line in _lines() if _is_indented_less(line)]
    assert not wrong


def _lines() -> Iterator[tuple[Path, int, str]]:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        is_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield path, number, line


def _is_indented_less(line: str) -> bool:
    return 0 < len(line) - len(line.lstrip(" ")) < 4 and line.lstrip().startswith(("- ", "```"))


def test_the_templates_of_issues_are_valid() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert form["name"]
            assert form["description"]
            assert {each["type"] for each in form["body"]} <= {"textarea", "input"}
