"""Problems in a config file: every one is reported, with its key and a hint, and without secrets."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config import ConfigError, Loaded, load, show
from config.loader import validate
from tests.config.harness import problems_of, write_config


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    problems = problems_of(
        write_config(
            tmp_path,
            """
            [gateway]
            data_dir = 3
            flush_interval = 0
            shutdown_timeout = nan
            log_level = "inof"
            max_parallel_turns = "abc"
            ownrs = []
            [http]
            host = "0.0.0.0"
            port = 65_536
            [agents.main]
            provider = "ofline"
            [agents."Bad Name"]
            [providers.x]
            base_url = "ftp://x"
            [channels.telegram]
            enabled = "yes"
            allow = [true, ""]
            token = 12345
            [channels.telegram.accounts.work]
            foo = 1
            [[bindings]]
            agent = "man"
            channel = "web"
            [[repos]]
            name = "x"
            """,
        )
    )
    assert {key: problem.message for key, problem in problems.items()} == {
        "gateway.data_dir": "must be a path in quotes, got a number",
        "gateway.flush_interval": "must be at least 0.1, got 0",
        "gateway.shutdown_timeout": "must be a finite number, got nan",
        "gateway.log_level": "must be 'debug', 'info', 'warning' or 'error', got 'inof'",
        "gateway.max_parallel_turns": "must be a whole number, got text",
        "gateway.ownrs": "is not a known key",
        "http.port": "must be at most 65535, got 65536",
        "http.token": "is required, because other machines can reach the address in http.host",
        "agents.main.provider": "the provider `ofline` does not exist",
        'agents."Bad Name"': ("must be a short name: up to 64 of a-z, 0-9, - and _, starting with a letter or digit"),
        "providers.x.kind": "is required",
        "providers.x.base_url": "must be a URL that starts with http:// or https://",
        "channels.telegram.enabled": "must be true or false, got 'yes'",
        "channels.telegram.allow[0]": "must be text in quotes, got true or false",
        "channels.telegram.allow[1]": "must not be empty",
        "channels.telegram.token": "must be text in quotes",
        "channels.telegram.accounts.work.foo": "is not a known key",
        "bindings[0].agent": "the agent `man` does not exist",
        "repos[0].path": "is required",
    }
    assert all(problem.hint for problem in problems.values())


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("[gatway]", "gatway", "gateway"),
        ("[http]\nprot = 1", "http.prot", "port"),
        ('[session]\ndm_scope = "per_peer"', "session.dm_scope", "per-peer"),
        ('[channels.telegram]\ndm_policy = "pair"', "channels.telegram.dm_policy", "pairing"),
        ("[channels.x.accounts.y]\nalow = []", "channels.x.accounts.y.alow", "allow"),
        ('[[bindings]]\nagent = "main"\nchanel = "web"', "bindings[0].chanel", "channel"),
        ('[agents.main]\nprovider = "ofline"', "agents.main.provider", "offline"),
    ],
)
def test_the_hint_for_a_typo_is_the_closest_name(tmp_path: Path, text: str, key: str, meant: str) -> None:
    assert problems_of(write_config(tmp_path, text))[key].hint == f"did you mean `{meant}`?"


def test_the_hint_for_an_unknown_key_lists_the_known_ones(tmp_path: Path) -> None:
    assert "host, port, token" in problems_of(write_config(tmp_path, "[http]\nzzz = 1"))["http.zzz"].hint


def test_missing_models_and_api_keys_are_reported_with_a_hint(tmp_path: Path) -> None:
    problems = problems_of(
        write_config(
            tmp_path,
            """
            [providers.gpt]
            kind = "openai"
            [providers.claude]
            kind = "anthropic"
            [agents.main]
            provider = "gpt"
            fallbacks = ["llama", "gtp/gpt-5"]
            """,
        )
    )
    assert {key: (problem.message, problem.hint) for key, problem in problems.items()} == {
        "providers.gpt.api_key": (
            "is required by OpenAI",
            'set it, ideally to "env:OPENAI_API_KEY", or set base_url to an endpoint that needs no key',
        ),
        "providers.claude.api_key": (
            "is required by Anthropic",
            'set it, ideally to "env:ANTHROPIC_API_KEY", or set base_url to an endpoint that needs no key',
        ),
        "agents.main.model": (
            'is required by providers of kind "openai"',
            "set it to a model that the endpoint offers",
        ),
        "agents.main.fallbacks[0]": ("must be a provider and a model", 'write it like "local/llama3.3"'),
        "agents.main.fallbacks[1]": ("the provider `gtp` does not exist", "did you mean `gpt`?"),
    }


@pytest.mark.parametrize("value", ["true", "8420.0", '"8420"', "[8420]", "1979-05-27"])
def test_other_types_are_not_converted_to_numbers(tmp_path: Path, value: str) -> None:
    assert "whole number" in problems_of(write_config(tmp_path, f"[http]\nport = {value}"))["http.port"].message


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ('[gateway]\ndata_dir = "a\\u0000b"', "gateway.data_dir", "is not a valid path"),
        ('[gateway]\ndata_dir = "~no-user-of-this-name"', "gateway.data_dir", "home folder does not exist"),
        ('[http]\ntoken = ""', "http.token", "must not be empty"),
        ('[[repos]]\nname = "a"\npath = "x"\n[[repos]]\nname = "a"\npath = "y"', "repos", "`a` is used 2 times"),
        ('[agents.main]\ntools = [""]', "agents.main.tools[0]", "must not be empty"),
        ('[session.identity_links]\nalice = ["telegram"]', "session.identity_links.alice[0]", "a channel and an id"),
        ("[[bindings]]\nagent = 1", "bindings[0].agent", "must be text in quotes"),
        ("bindings = 1", "bindings", "must be a list"),
        ("agents = []", "agents", "must be a table, got a list"),
        ("agents.main = []", "agents.main", "must be a table, got a list"),
    ],
)
def test_each_kind_of_problem_has_a_message_and_a_hint(tmp_path: Path, text: str, key: str, expected: str) -> None:
    problem = problems_of(write_config(tmp_path, text))[key]
    assert expected in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    "text",
    [
        '[gateway]\nlog_level = "CANARY"',
        '[gateway]\nmax_parallel_turns = "CANARY"',
        '[gateway]\nflush_interval = "CANARY"',
        '[http]\nport = "CANARY"',
        '[http]\nhost = "CANARY"',
        '[channels.telegram]\ndm_policy = "CANARY"',
        '[channels.telegram]\nenabled = "CANARY"',
        '[providers.x]\nkind = "CANARY"',
        '[providers.x]\nkind = "offline"\nbase_url = "CANARY"',
        '[agents.main]\nprovider = "canary"',
        '[[bindings]]\nchannel = "web"\nagent = "canary"',
    ],
)
def test_a_misplaced_secret_is_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write_config(tmp_path, text), {})
    assert "canary" not in str(caught.value).replace(str(tmp_path), "").lower()


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("gateway", "flush_interval", "0.05"),
        ("gateway", "turn_timeout", "0.01"),
        ("gateway", "max_backlog_age", "1e300"),
        ("gateway", "shutdown_timeout", "1e300"),
        ("gateway", "max_message_chars", "10"),
        ("http", "max_body_bytes", "1"),
        ("session", "ttl_days", "1000000000"),
        ("session", "idle_minutes", "1000000000000"),
    ],
)
def test_a_number_out_of_range_is_rejected(tmp_path: Path, table: str, key: str, value: str) -> None:
    assert "must be at " in problems_of(write_config(tmp_path, f"[{table}]\n{key} = {value}"))[f"{table}.{key}"].message


def test_the_text_of_an_error_lists_all_problems(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[http]\nprot = 1\nport = -1")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == (
        f"{path}: 2 problems\n"
        "  http.port: must be at least 0, got -1\n"
        "    The port to listen on; 0 picks a free one.\n"
        "  http.prot: is not a known key\n"
        "    did you mean `port`?"
    )


_NAMES = [
    "gateway",
    "http",
    "session",
    "agents",
    "providers",
    "channels",
    "bindings",
    "repos",
    "mcp",
    "main",
    "telegram",
    "token",
    "port",
    "allow",
    "accounts",
    "options",
    "identity_links",
    "url",
    "agent",
    "kind",
    "Bad",
    "zzz",
]
_names = st.sampled_from([*_NAMES, "Bad Name"])
_scalars = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.datetimes(), st.just("env:NOPE")
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4), max_leaves=12
)


def validate_or_error(tables: dict[str, Any]) -> Loaded | ConfigError:
    try:
        return validate(tables, None, {})
    except ConfigError as error:
        return error


@settings(deadline=None)  # The first example pays for building the validators.
@given(st.dictionaries(_names, _values, max_size=5))
@example({"channels": {"telegram": {"accounts": {"main": {"zzz": 1}}}}})
@example({"bindings": [{"agent": "main", "Bad Name": 1}]})
def test_any_tables_give_settings_or_readable_problems(tables: dict[str, Any]) -> None:
    result = validate_or_error(tables)
    if isinstance(result, Loaded):
        assert tomllib.loads(show(result.settings))
        return
    assert result.problems
    for problem in result.problems:
        assert problem.key
        assert problem.hint
        assert problem.message != "is not valid"
    assert "Input" not in str(result)
