"""Compares the shipped alert rules with the metrics of a real gateway."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import Expr, MatchOp, VectorSelector

from gateway.http.auth import load_or_make_token
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import ask, gateway
from tests.daemon.models import modelled, talking
from tests.observability.scrape import ScrapedMetrics, scrape

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
FROM_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds when it scrapes a target."""


def rules(group: str = "") -> list[dict[str, Any]]:  # Any: YAML.
    """Return the rules of a group, or all of them."""
    groups = yaml.safe_load((FOLDER / "gatehouse.rules.yml").read_text())["groups"]
    return [rule for each in groups for rule in each["rules"] if group in ("", each["name"])]


def selectors(rule: dict[str, Any]) -> Iterator[VectorSelector]:
    found: list[VectorSelector] = []

    def look(expression: Expr) -> bool:
        if isinstance(expression, VectorSelector):
            found.append(expression)
        return True

    promql_parser.walk(promql_parser.parse(rule["expr"]), look)
    assert found, rule["alert"]
    return iter(found)


async def test_every_rule_uses_existing_metrics_and_labels(tmp_path: Path) -> None:
    answer, refusal = OPENAI.answer("Hello."), OPENAI.refusal(401, "invalid_api_key")
    async with talking(tmp_path, answer, refusal) as (_, chat, _daemon):
        await ask(chat, "hello")
        await ask(chat, "hello again")
        seen = await scrape(tmp_path / "data")
    _check_rules("gatehouse", seen)


async def test_every_rule_for_clusters_uses_existing_metrics_and_labels(tmp_path: Path, database_url: str) -> None:
    _check_rules("gatehouse-cluster", await scraped_node(tmp_path, database_url))


def _check_rules(group: str, seen: ScrapedMetrics) -> None:
    for rule in rules(group):
        for selector in selectors(rule):
            assert selector.name in seen.names, (rule["alert"], selector.name)
            check_labels(rule["alert"], selector, seen)


async def test_the_table_in_the_readme_lists_every_metric_with_its_labels(tmp_path: Path) -> None:
    async with talking(tmp_path, OPENAI.answer("Hello.")) as (_, chat, _daemon):
        await ask(chat, "hello")
        await ask(chat, "/help")
        seen = await scrape(tmp_path / "data")
    assert dict(documented_metrics()) == seen.families


async def test_the_table_for_clusters_lists_every_metric_with_its_labels(tmp_path: Path, database_url: str) -> None:
    seen = await scraped_node(tmp_path, database_url)
    families = {name: labels for name, labels in seen.families.items() if "_cluster_" in name}
    assert dict(documented_metrics("| metric of a cluster |")) == families


async def scraped_node(folder: Path, database_url: str) -> ScrapedMetrics:
    """Return the metrics of the only node of a cluster, after a conversation."""
    tables = {
        "storage": {"url": database_url},
        "cluster": {"enabled": True},
        "http": {"token": "a-token-of-all-nodes", "port": 0},
    }
    # A node that does not listen has no address, and gets no shards.
    async with (
        serving(OPENAI, OPENAI.answer("Hello.")) as server,
        gateway(modelled(folder, server, **tables), listen=True) as (_, chat),
    ):
        await ask(chat, "hello")
        return await scrape(folder / "data")


def documented_metrics(head: str = "| metric |") -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics of a table in README.md, each with its labels. `head` is how the table starts."""
    table = (FOLDER / "README.md").read_text().partition(head)[2].partition("\n\n")[0]
    for line in table.splitlines():
        if line.startswith("| `"):
            _, names, labels, *_ = (cell.strip() for cell in line.split("|"))
            for name in names.split(","):
                yield name.strip(" `"), set(filter(None, labels.split(", ")))


def check_labels(alert: str, selector: VectorSelector, seen: ScrapedMetrics) -> None:
    for matcher in selector.matchers.matchers:
        if matcher.name in FROM_PROMETHEUS:
            continue
        assert matcher.name in seen.labels[selector.name or ""], (alert, matcher.name)
        wanted = matcher.value.split("|") if matcher.op == MatchOp.Re else [matcher.value]
        assert set(wanted) <= seen.values_of(selector.name or "", matcher.name), (alert, wanted)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    return subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)  # noqa: S607


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", "gatehouse.rules.yml")
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


def test_every_rule_fires_when_it_should_and_only_then() -> None:
    tested = promtool("test", "rules", "gatehouse.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_rule_that_fires_too_late_fails_its_unit_tests(tmp_path: Path) -> None:
    """`promtool test rules` must not pass because it has found nothing to test."""
    for name in ("gatehouse.rules.yml", "gatehouse.test.yml"):
        (tmp_path / name).write_text((FOLDER / name).read_text().replace("gatehouse_ready == 0", "gatehouse_ready > 0"))
    tested = promtool("test", "rules", str(tmp_path / "gatehouse.test.yml"))
    assert tested.returncode == 1
    assert "GatehouseNotReady" in tested.stdout + tested.stderr


def test_every_rule_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [
        (each["alertname"], bool(each["exp_alerts"]))
        for test in yaml.safe_load((FOLDER / "gatehouse.test.yml").read_text())["tests"]
        for each in test["alert_rule_test"]
    ]
    assert set(cases) == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} == rule["annotations"].keys()


def test_the_example_names_files_that_exist(tmp_path: Path) -> None:
    example = yaml.safe_load((FOLDER / "prometheus.example.yml").read_text())
    assert [(FOLDER / name).is_file() for name in example["rule_files"]] == [True]
    load_or_make_token(tmp_path, None)
    (token,) = tmp_path.iterdir()
    assert f"`{token.name}`" in (FOLDER / "prometheus.example.yml").read_text()
