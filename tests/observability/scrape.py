"""Scrapes a daemon as Prometheus does, and parses the metrics with the official client."""

from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.http.server import CONTROL_NAME, short_socket_path


class ScrapedMetrics:
    def __init__(self, text: str) -> None:
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.names: set[str] = set()
        self.labels: dict[str, set[str]] = {}
        """The label names of each series."""
        self.families: dict[str, set[str]] = {}
        """The label names of each declared metric."""
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.families[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
            for sample in family.samples:
                self.names.add(sample.name)
                self.labels.setdefault(sample.name, set()).update(sample.labels)
                self._values[sample.name, frozenset(sample.labels.items())] = sample.value

    def value(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def values_of(self, name: str, label: str) -> set[str]:
        """Return all values of a label of a series."""
        return {dict(labels)[label] for each, labels in self._values if each == name}


async def scrape(data_dir: Path) -> ScrapedMetrics:
    """Scrape through the control socket. The daemon may listen nowhere else."""
    with short_socket_path(data_dir / CONTROL_NAME) as path:
        connector = aiohttp.UnixConnector(path)
        async with aiohttp.ClientSession("http://any", connector=connector) as client, client.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return ScrapedMetrics(await answer.text())
