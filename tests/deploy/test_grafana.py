"""Compares the shipped dashboard with the metrics of a real gateway."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import AggModifierType, AggregateExpr, Expr, VectorSelector

from tests.agent.wire import OPENAI
from tests.daemon.harness import ask
from tests.daemon.models import talking
from tests.deploy.test_prometheus import FROM_PROMETHEUS, check_labels, scraped_node
from tests.observability.scrape import ScrapedMetrics, scrape

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "gatehouse.json").read_text())
CLUSTER = "Cluster"
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:  # Any: JSON.
    """Yield each panel with the title of its row."""
    row = ""
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            yield row, panel


def queries() -> Iterator[tuple[str, str, str, str]]:
    """Yield the row, the title, the query and the legend of each query of each panel."""
    for row, panel in panels():
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            yield row, panel["title"], filled_in(target["expr"]), target["legendFormat"]


def filled_in(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def parts(query: str) -> tuple[list[VectorSelector], set[str]]:
    """Return the selectors of a query, and the labels that it groups by."""
    found: list[VectorSelector] = []
    labels: set[str] = set()

    def look(expression: Expr) -> bool:
        if isinstance(expression, VectorSelector):
            found.append(expression)
        if isinstance(expression, AggregateExpr) and expression.modifier is not None:
            assert expression.modifier.type == AggModifierType.By
            labels.update(expression.modifier.labels)
        return True

    promql_parser.walk(promql_parser.parse(query), look)
    assert found, query
    return found, labels


def check_queries(seen: ScrapedMetrics, *, of_cluster: bool) -> None:
    for row, title, query, legend in queries():
        if (row == CLUSTER) != of_cluster:
            continue
        selectors, grouped = parts(query)
        for selector in selectors:
            assert selector.name in seen.names, (title, selector.name)
            check_labels(title, selector, seen)
            there = seen.labels[selector.name or ""] | FROM_PROMETHEUS
            assert grouped <= there, (title, grouped)
            assert {matcher.name for matcher in selector.matchers.matchers} >= {"job", "instance"}, title
            shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
            assert shown <= (grouped or there), (title, shown)


async def test_every_panel_uses_existing_metrics_and_labels(tmp_path: Path) -> None:
    answer, refusal = OPENAI.answer("Hello."), OPENAI.refusal(401, "invalid_api_key")
    nowhere = {"endpoint": "http://127.0.0.1:9"}
    async with talking(tmp_path, answer, refusal, tracing=nowhere) as (_, chat, _daemon):
        await ask(chat, "hello")
        await ask(chat, "hello again")
        await ask(chat, "/help")
        seen = await scrape(tmp_path / "data")
    check_queries(seen, of_cluster=False)


async def test_every_panel_for_clusters_uses_existing_metrics_and_labels(tmp_path: Path, database_url: str) -> None:
    check_queries(await scraped_node(tmp_path, database_url), of_cluster=True)


def test_every_metric_for_operators_is_in_the_dashboard() -> None:
    table = (ROOT / "deploy" / "prometheus" / "README.md").read_text()
    listed = set(re.findall(r"`((?:gatehouse|process)_\w+)`", table))
    used = {re.sub("_bucket$", "", selector.name or "") for _, _, query, _ in queries() for selector in parts(query)[0]}
    left_out = {
        "gatehouse_queue_limit",
        "gatehouse_spool_lost",
        "gatehouse_storage_info",
        "gatehouse_cluster_posts",
        "gatehouse_cluster_shard_arrivals",
        "gatehouse_cluster_last_takeover_timestamp_seconds",
        "gatehouse_cluster_last_takeover_seconds",
        "gatehouse_cluster_settings_differ",
    }
    assert listed - used == left_out, "add it to a panel, or to this list"


def test_panels_have_their_own_places_and_numbers() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        (x, y)
        for panel in everything
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    titles = [panel["title"] for panel in everything]
    assert len(set(titles)) == len(titles)


def test_the_variables_choose_jobs_and_gateways_that_exist() -> None:
    source, *variables = DASHBOARD["templating"]["list"]
    assert source["type"] == "datasource"
    for variable in variables:
        query = re.fullmatch(r"label_values\((gatehouse_build_info)(\{.*\})?, (\w+)\)", variable["definition"])
        assert query is not None
        assert query[3] == variable["name"]
        assert query[3] in FROM_PROMETHEUS
    (starts,) = DASHBOARD["annotations"]["list"]
    assert parts(filled_in(starts["expr"]))[0][0].name == "gatehouse_start_time_seconds"
    for _, panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"


def test_promtool_accepts_every_query(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, _, query, _) in enumerate(queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)  # noqa: S607
    assert checked.returncode == 0, checked.stderr
