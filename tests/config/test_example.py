"""The example config file: complete, valid and equal to the defaults."""

import string
from pathlib import Path
from typing import Any

from config import load, schema
from tests.config.harness import write_config

EXAMPLE = Path(__file__).parents[2] / "config" / "gatehouse.example.toml"


def test_the_example_loads_without_warnings(tmp_path: Path) -> None:
    # A copy: git gives the original mode 664 under umask 002, and such a file is warned about.
    path = write_config(tmp_path, EXAMPLE.read_text(encoding="utf-8"))
    assert load(path, {}).warnings == ()


def test_the_example_equals_the_defaults(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert load(EXAMPLE, environ).settings == load(None, environ).settings


def test_the_example_loads_with_every_line_uncommented(tmp_path: Path) -> None:
    """Each commented line that is TOML is uncommented; prose starts with a capital letter or three dots."""
    (tmp_path / "prompt.md").touch()
    (tmp_path / "telegram-work.token").write_text("123:abc", encoding="utf-8")
    lines = [_uncomment(line) for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    lines.remove('system_prompt = "You are a helpful assistant."')  # Excludes prompt_file.
    lines[lines.index('url = "files:"')] = (
        'url = "postgresql://gatehouse@localhost/gatehouse"'  # Files need no password.
    )
    lines.remove('api_key = "env:BRAVE_API_KEY"')  # A template has headers instead.
    variables = (
        "GATEHOUSE_TOKEN",
        "GATEHOUSE_DB_PASSWORD",
        "OPENAI_API_KEY",
        "TELEGRAM_TOKEN",
        "DISCORD_TOKEN",
        "WEBHOOK_SECRET",
        "SEARCH_API_KEY",
        "SEARCH_AUTHORIZATION",
        "GEMINI_API_KEY",
    )
    environ = dict.fromkeys((*variables, "TICKETS_AUTHORIZATION", "TRACING_AUTHORIZATION"), "a-value-of-good-length")
    read = load(write_config(tmp_path, "\n".join(lines)), environ).settings
    assert read.bindings[0].thread == "42"
    assert set(read.mcp) == {"search", "tickets"}
    assert read.agents["coder"].repos == tuple(repo.id for repo in read.repos)


def _uncomment(line: str) -> str:
    bare = line.removeprefix("# ")
    is_toml = bare.startswith("[") or (" = " in bare and bare.split(" = ")[0].replace("_", "").isalpha())
    return bare if is_toml and bare[0] not in string.ascii_uppercase else line


def test_every_key_of_the_model_is_in_the_example() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = [schema(), *schema()["$defs"].values()]
    keys = {key for table in tables for key in table.get("properties", {})}
    assert {key for key in keys if f"{key} =" not in text and f"[{key}" not in text and f".{key}" not in text} == set()


def test_every_key_has_a_description() -> None:
    for table in schema()["$defs"].values():
        for key, described in table.get("properties", {}).items():
            assert described.get("description") or "$ref" in described, key
