"""The settings of `web_search`."""

from pathlib import Path

import pytest

from config import load
from tests.config.harness import problems_of, write_config

HEAD = "[tools.search]\n"


@pytest.mark.parametrize(
    ("lines", "key", "hint"),
    [
        ('engine = "searxng"', "url", "your instance"),
        ('engine = "searxng"\nurl = "http://a.example/search?q={query}"', "url", "remove the query"),
        ('engine = "searxng"\nurl = "http://a.example"\napi_key = "x"', "api_key", "use headers"),
        ('engine = "brave"', "api_key", "env:BRAVE_API_KEY"),
        ('engine = "tavily"\napi_key = "two words\\n"', "api_key", "copy it again"),
        ('engine = "template"\nurl = "http://a.example/"', "url", "{query}"),
        ('engine = "template"\nurl = "http://{query}.a.example/{query}"', "url", "{query}"),
        ('engine = "template"\nurl = "http://a.example/{query}"\nresults_at = "hits"', "results_at", "JSON Pointer"),
        ('headers = { "a b" = "x" }', "headers", "Authorization"),
        ('headers = { a = "x\\ny: z" }', "headers", "Authorization"),
        ("max_results = 21", "max_results", ""),
        ('engine = "google"', "engine", ""),
    ],
)
def test_a_mistake_is_named_with_what_to_do(tmp_path: Path, lines: str, key: str, hint: str) -> None:
    problem = problems_of(write_config(tmp_path, HEAD + lines))[f"tools.search.{key}"]
    assert hint in f"{problem.message} {problem.hint}"


def test_a_key_may_be_a_reference_and_is_never_shown(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'{HEAD}engine = "brave"\napi_key = "env:BRAVE_API_KEY"\n')
    found = load(path, {"BRAVE_API_KEY": "canary"}).settings.tools.search
    assert found.api_key is not None
    assert found.api_key.reveal() == "canary"
    assert "canary" not in f"{found!r}{found.model_dump_json()}"
