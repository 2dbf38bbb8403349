import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config import ConfigError, Loaded, Problem, destination, find, load, schema, show
from config.loader import validate

EXAMPLE = Path(__file__).parents[2] / "config" / "gatehouse.example.toml"


def written(folder: Path, text: str) -> Path:
    path = folder / "gatehouse.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def problems_of(path: Path, environ: dict[str, str] | None = None) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    assert str(path) in str(caught.value)
    return {problem.key: problem for problem in caught.value.problems}


def test_without_a_file_the_defaults_are_loaded(tmp_path: Path) -> None:
    loaded = load(None, {"HOME": str(tmp_path)})
    assert (loaded.path, loaded.warnings) == (None, ())
    assert loaded.settings.gateway.data_dir == tmp_path / ".gatehouse"
    assert loaded.settings.gateway.workspace_root == tmp_path / ".gatehouse" / "workspace"


def test_relative_paths_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").touch()
    path = written(tmp_path, '[gateway]\ndata_dir = "data"\n[agents.main]\nprompt_file = "prompt.md"')
    read = load(path, {}).settings
    assert read.gateway.data_dir == tmp_path / "data"
    assert read.agents["main"].prompt_file == tmp_path / "prompt.md"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_bytes(b"\xef\xbb\xbf[http]\r\nport = 1\r\n")
    assert load(path, {}).settings.http.port == 1


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    problems = problems_of(
        written(
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
        "gateway.ownrs": "is not a key that Gatehouse knows",
        "http.port": "must be at most 65535, got 65536",
        "http.token": "is needed, because other machines can reach the address in http.host",
        "agents.main.provider": "there is no provider `ofline`",
        'agents."Bad Name"': ("must be a short name: up to 64 of a-z, 0-9, - and _, starting with a letter or digit"),
        "providers.x.kind": "is missing",
        "providers.x.base_url": "must be an address that starts with http:// or https://",
        "channels.telegram.enabled": "must be true or false, got 'yes'",
        "channels.telegram.allow[0]": "must be text in quotes, got true or false",
        "channels.telegram.allow[1]": "must not be empty",
        "channels.telegram.token": "must be text in quotes",
        "channels.telegram.accounts.work.foo": "is not a key that Gatehouse knows",
        "bindings[0].agent": "there is no agent `man`",
        "repos[0].path": "is missing",
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
def test_a_slip_is_answered_with_what_was_meant(tmp_path: Path, text: str, key: str, meant: str) -> None:
    assert problems_of(written(tmp_path, text))[key].hint == f"did you mean `{meant}`?"


def test_an_unknown_key_like_no_other_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    assert "host, port, token" in problems_of(written(tmp_path, "[http]\nzzz = 1"))["http.zzz"].hint


def test_what_models_need_is_told_with_the_way_to_it(tmp_path: Path) -> None:
    problems = problems_of(
        written(
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
            "is needed by OpenAI",
            'set it, best to a reference like "env:OPENAI_API_KEY", or set base_url to an endpoint that needs none',
        ),
        "providers.claude.api_key": (
            "is needed by Anthropic",
            'set it, best to a reference like "env:ANTHROPIC_API_KEY", or set base_url to an endpoint that needs none',
        ),
        "agents.main.model": ('is needed with a provider of kind "openai"', "name a model that the endpoint offers"),
        "agents.main.fallbacks[0]": ("must be a provider and a model", 'write it like "local/llama3.3"'),
        "agents.main.fallbacks[1]": ("there is no provider `gtp`", "did you mean `gpt`?"),
    }


@pytest.mark.parametrize("value", ["true", "8420.0", '"8420"', "[8420]", "1979-05-27"])
def test_a_number_is_not_guessed_from_other_types(tmp_path: Path, value: str) -> None:
    assert "whole number" in problems_of(written(tmp_path, f"[http]\nport = {value}"))["http.port"].message


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[gateway]\ndata_dir = "a\\u0000b"', "gateway.data_dir", "is no path"),
        ('[gateway]\ndata_dir = "~nobody-of-that-name"', "gateway.data_dir", "no such home folder"),
        ('[http]\ntoken = ""', "http.token", "must not be empty"),
        ('[[repos]]\nname = "a"\npath = "x"\n[[repos]]\nname = "a"\npath = "y"', "repos", "`a` is there 2 times"),
        ('[agents.main]\ntools = [""]', "agents.main.tools[0]", "must not be empty"),
        ('[session.identity_links]\nalice = ["telegram"]', "session.identity_links.alice[0]", "a channel and an id"),
        ("[[bindings]]\nagent = 1", "bindings[0].agent", "must be text in quotes"),
        ("bindings = 1", "bindings", "must be a list"),
        ("agents = []", "agents", "must be a table, got a list"),
        ("agents.main = []", "agents.main", "must be a table, got a list"),
    ],
)
def test_each_kind_of_mistake_has_its_sentence_and_hint(tmp_path: Path, text: str, key: str, said: str) -> None:
    problem = problems_of(written(tmp_path, text))[key]
    assert said in problem.message
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
def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
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
def test_a_number_that_cannot_work_is_refused(tmp_path: Path, table: str, key: str, value: str) -> None:
    assert "must be at " in problems_of(written(tmp_path, f"[{table}]\n{key} = {value}"))[f"{table}.{key}"].message


def test_the_text_of_an_error_is_one_block(tmp_path: Path) -> None:
    path = written(tmp_path, "[http]\nprot = 1\nport = -1")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == (
        f"{path}: 2 mistakes\n"
        "  http.port: must be at least 0, got -1\n"
        "    The port to listen on; 0 takes any free one.\n"
        "  http.prot: is not a key that Gatehouse knows\n"
        "    did you mean `port`?"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[http]\nport = \n", "is not TOML: Invalid value (at line 2, column 8)"),
        (b"a = 1\na = 2\n", "is not TOML: Cannot overwrite a value (at line 2"),
        (b'a = "\xff"', "is not UTF-8 text"),
        (b"a = " + b"[" * 5000, "is nested too deeply"),
        (b"channels.x.options" + b".a" * 5000 + b" = 1", "is nested too deeply"),
        (b"http.port = 0x" + b"f" * 5000, "is not TOML: a whole number does not fit into 64 bits"),
        (b"a = " + b"1" * 5000, "is not TOML: Exceeds the limit"),
    ],
)
def test_what_is_no_toml_is_told_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_bytes(content)
    assert problems_of(path)[""].message.startswith(said)


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    assert problems_of(tmp_path)[""].message == "is a folder, not a file"


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "gone.toml")[""].message == "cannot be read: no such file or directory"


def test_a_missing_prompt_file_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, '[agents.main]\nprompt_file = "gone.md"')
    assert "there is no file" in problems_of(path)["agents.main.prompt_file"].message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[session]\ndm_scope = "per-peer"', "equal ids on two platforms"),
        ("[session]\nbacklog_limit = 0", "20 is used instead"),
        ('[channels.telegram]\ndm_policy = "allowlist"', "nobody can write"),
        ('[[bindings]]\nagent = "main"\nchannel = "telegram"', "never matches"),
    ],
)
def test_what_is_odd_is_a_warning(tmp_path: Path, text: str, said: str) -> None:
    (warning,) = load(written(tmp_path, text), {}).warnings
    assert said in warning


def test_linked_people_quieten_the_warning_about_equal_ids(tmp_path: Path) -> None:
    text = '[session]\ndm_scope = "per-peer"\nidentity_links = { alice = ["telegram:1", "discord:2"] }'
    assert load(written(tmp_path, text), {}).warnings == ()


def test_the_environment_overrides_the_idle_timeout(tmp_path: Path) -> None:
    path = written(tmp_path, "[session]\nidle_minutes = 5\nttl_days = 7")
    session = load(path, {"AGENT_SESSION_IDLE_TIMEOUT": "45"}).settings.session
    assert (session.idle_minutes, session.ttl_days) == (45, 7)
    assert "session.idle_minutes" in problems_of(path, {"AGENT_SESSION_IDLE_TIMEOUT": "soon"})


def test_the_file_that_was_asked_for_comes_first(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    places = [tmp_path / "explicit.toml", tmp_path / "env.toml", cwd / "gatehouse.toml"]
    places.append(home / ".gatehouse" / "gatehouse.toml")
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    environ = {"GATEHOUSE_CONFIG": "../env.toml"}
    assert find(places[0], environ, cwd, home) == places[0]
    assert find(None, environ, cwd, home) == cwd / "../env.toml"
    assert find(None, {"GATEHOUSE_CONFIG": ""}, cwd, home) == places[2]
    assert find(None, {"GATEHOUSE_CONFIG": "~/.gatehouse/gatehouse.toml"}, cwd, home) == places[3]
    places[2].unlink()
    assert find(None, {}, cwd, home) == places[3]


@pytest.mark.parametrize(("explicit", "environ"), [(Path("gone"), {}), (None, {"GATEHOUSE_CONFIG": "gone"})])
def test_a_file_asked_for_by_name_must_exist(tmp_path: Path, explicit: Path | None, environ: dict[str, str]) -> None:
    (tmp_path / "gatehouse.toml").touch()
    with pytest.raises(ConfigError, match="there is no such file"):
        find(explicit, environ, tmp_path, tmp_path)
    assert destination(explicit, environ, tmp_path, tmp_path) == tmp_path / "gone"


def test_a_new_file_would_be_made_in_the_home_folder(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    assert destination(None, {}, cwd, home) == home / ".gatehouse" / "gatehouse.toml"


def test_the_example_loads_without_warnings(tmp_path: Path) -> None:
    # A copy: git gives the original mode 664 under umask 002, and such a file is warned about.
    path = written(tmp_path, EXAMPLE.read_text(encoding="utf-8"))
    assert load(path, {}).warnings == ()


def test_the_example_is_the_defaults(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert load(EXAMPLE, environ).settings == load(None, environ).settings


def test_the_example_loads_with_everything_in_it_switched_on(tmp_path: Path) -> None:
    """Each commented line that is TOML is uncommented; prose starts with a capital letter or three dots."""
    (tmp_path / "prompt.md").touch()
    (tmp_path / "telegram-work.token").write_text("123:abc", encoding="utf-8")
    lines = [_switched_on(line) for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    lines.remove('system_prompt = "You are a helpful assistant."')  # Excludes prompt_file.
    variables = (
        "GATEHOUSE_TOKEN",
        "OPENAI_API_KEY",
        "TELEGRAM_TOKEN",
        "DISCORD_TOKEN",
        "WEBHOOK_SECRET",
        "SEARCH_API_KEY",
    )
    environ = dict.fromkeys((*variables, "TICKETS_AUTHORIZATION"), "a-value-of-good-length")
    read = load(written(tmp_path, "\n".join(lines)), environ).settings
    assert read.bindings[0].thread == "42"
    assert set(read.mcp) == {"search", "tickets"}


def _switched_on(line: str) -> str:
    bare = line.removeprefix("# ")
    is_toml = bare.startswith("[") or (" = " in bare and bare.split(" = ")[0].replace("_", "").isalpha())
    return bare if is_toml and bare[0] not in string.ascii_uppercase else line


def test_every_key_of_the_model_is_in_the_example() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = [schema(), *schema()["$defs"].values()]
    keys = {key for table in tables for key in table.get("properties", {})}
    assert {key for key in keys if f"{key} =" not in text and f"[{key}" not in text and f".{key}" not in text} == set()


def test_every_key_is_described_for_editors() -> None:
    for table in schema()["$defs"].values():
        for key, described in table.get("properties", {}).items():
            assert described.get("description") or "$ref" in described, key


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


def outcome(tables: dict[str, Any]) -> Loaded | ConfigError:
    try:
        return validate(tables, None, {})
    except ConfigError as error:
        return error


@settings(deadline=None)  # The first example pays for building the validators.
@given(st.dictionaries(_names, _values, max_size=5))
@example({"channels": {"telegram": {"accounts": {"main": {"zzz": 1}}}}})
@example({"bindings": [{"agent": "main", "Bad Name": 1}]})
def test_any_tables_give_settings_or_our_own_sentences(tables: dict[str, Any]) -> None:
    result = outcome(tables)
    if isinstance(result, Loaded):
        assert tomllib.loads(show(result.settings))
        return
    assert result.problems
    for problem in result.problems:
        assert problem.key
        assert problem.hint
        assert problem.message != "is not valid"
    assert "Input" not in str(result)
