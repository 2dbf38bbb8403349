"""Editing and showing the config file."""

import difflib
import os
import stat
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from config import ConfigError, load, schema, set_value, set_values, show, unset_value
from tests.config.harness import CANARY


def tables_of(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gatehouse.toml"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("http.port", "9000", 9000),
        ("http.host", "localhost", "localhost"),
        ("http.host", '"localhost"', "localhost"),
        ("http.allowed_hosts", '["a.example", "b.example"]', ["a.example", "b.example"]),
        ("channels.web.enabled", "false", False),
        ("channels.telegram.token", "123:abc", "123:abc"),
        ("agents.main.model", "4.1", "4.1"),
        ("agents.main.model", "2026-01-01", "2026-01-01"),
        ("agents.main.system_prompt", "1\nport = 2", "1\nport = 2"),
        ("agents.main.system_prompt", "", ""),
        ("bindings", '[{agent = "main", channel = "web"}]', [{"agent": "main", "channel": "web"}]),
        ('channels.x.options."a key"', "1", 1),
    ],
)
def test_a_value_is_parsed_as_toml_or_taken_as_text(path: Path, key: str, text: str, value: object) -> None:
    set_value(path, key, text)
    found: Any = tables_of(path)
    for part in key.replace('"', "").split("."):
        found = found[part]
    assert found == value


def test_a_new_file_and_its_folders_are_created_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "gatehouse.toml"
    before = os.umask(0)
    try:
        set_value(path, "http.port", "1")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    assert [place.name for place in path.parent.iterdir()] == ["gatehouse.toml"]


def test_other_keys_in_the_file_are_kept(path: Path) -> None:
    path.write_text('[channels.x.options]\nown = { a = [1, 2.5] }\n[http]\nport = 1\nhost = "::1"\n', encoding="utf-8")
    set_value(path, "http.port", "2")
    assert tables_of(path) == {
        "channels": {"x": {"options": {"own": {"a": [1, 2.5]}}}},
        "http": {"port": 2, "host": "::1"},
    }


LAYOUT = """\
# The head of the file.

[http]
port = 1  # Not the usual one.
# Only this machine.
host = "::1"

# The bots.
[channels.telegram]
token = "env:BOT"   # From @BotFather.

# The folders.
[[repos]]
name = "website"
path = "~/website"

# The end.
"""


@pytest.mark.parametrize(
    ("key", "value", "removed", "added"),
    [
        ("http.port", "2", ["port = 1  # Not the usual one."], ["port = 2  # Not the usual one."]),
        ("http.token", "env:WEB", [], ['token = "env:WEB"']),
        ("channels.telegram.enabled", "true", [], ["enabled = true"]),
        ("channels.discord.token", "env:D", [], ["[channels.discord]", 'token = "env:D"']),
        ("agents.main.model", "m", [], ["[agents.main]", 'model = "m"']),
        ("http.host", None, ['host = "::1"'], []),
        ("channels.telegram.token", None, ['token = "env:BOT"   # From @BotFather.'], []),
    ],
)
def test_an_edit_changes_only_its_own_lines(
    path: Path, key: str, value: str | None, removed: list[str], added: list[str]
) -> None:
    path.write_text(LAYOUT, encoding="utf-8")
    if value is None:
        unset_value(path, key, {})
    else:
        set_value(path, key, value, {})
    lines = list(difflib.ndiff(LAYOUT.splitlines(), path.read_text(encoding="utf-8").splitlines()))
    assert [line[2:] for line in lines if line.startswith("- ")] == removed
    assert [line[2:] for line in lines if line.startswith("+ ") and line[2:]] == added


@pytest.mark.parametrize("key", ["channels", "channels.telegram", "repos"])
def test_the_comments_behind_a_removed_table_stay(path: Path, key: str) -> None:
    path.write_text(LAYOUT, encoding="utf-8")
    unset_value(path, key, {})
    text = path.read_text(encoding="utf-8")
    comments = ["# The head of the file.", "# Only this machine.", "# The bots.", "# The folders.", "# The end."]
    assert [line for line in text.splitlines() if line.startswith("#")] == comments
    assert "\n\n\n" not in text


def test_the_comments_behind_a_replaced_list_stay(path: Path) -> None:
    path.write_text(LAYOUT, encoding="utf-8")
    set_value(path, "repos", '[{ name = "blog", path = "~/blog" }]', {})
    assert path.read_text(encoding="utf-8").endswith('path = "~/blog"\n\n# The end.\n')


@pytest.mark.parametrize(
    "text",
    [
        "# Mine.\nsession.ttl_days = 3\n\n# The end.\n[limits]\n",
        "# Mine.\n[session]\nidentity_links.a = ['x:1']\n# The end.\n",
        "# Mine.\nsession = { ttl_days = 3 }\n# The end.\n",
    ],
)
def test_removing_the_only_key_of_a_table_keeps_comments(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    key = "session.ttl_days" if "ttl_days" in text else "session.identity_links.a"
    loaded = unset_value(path, key, {})
    assert not loaded.warnings
    assert not tables_of(path).get("session")
    assert "# Mine.\n" in path.read_text(encoding="utf-8")
    assert "# The end.\n" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("comment", ["# The bots.", "# The folders."])
def test_a_new_key_comes_before_the_comment_of_the_next_table(path: Path, comment: str) -> None:
    path.write_text(LAYOUT, encoding="utf-8")
    set_values(path, {"http.token": "env:WEB", "channels.telegram.enabled": True, "channels.web.enabled": False}, {})
    text = path.read_text(encoding="utf-8")
    before, _, after = text.partition(comment)
    assert before.endswith("\n\n")
    assert after.startswith(("\n[channels.telegram]", "\n[[repos]]"))


def test_the_example_keeps_every_comment(path: Path) -> None:
    example = (Path(__file__).parents[2] / "config" / "gatehouse.example.toml").read_text(encoding="utf-8")
    path.write_text(example, encoding="utf-8")
    path.chmod(0o600)
    changes = {
        "http.port": 1,
        "gateway.owners": ["telegram:1"],
        "providers.x.kind": "offline",
        "agents.main.model": "m",
    }
    set_values(path, changes, {})
    comments = [line for line in example.splitlines() if line.lstrip().startswith("#")]
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("#")]
    assert kept == comments
    assert tables_of(path)["http"]["port"] == 1


def _without_empty(value: object) -> object:
    """Drop empty tables: a removed key may take its table along."""
    if not isinstance(value, dict):
        return value
    return {name: inner for name, old in value.items() if (inner := _without_empty(old)) != {}}


@pytest.mark.parametrize(
    "text",
    [
        "[channels.x]\n[http]\nport = 1\n[channels.y]\n",
        '# The bots.\nchannels.x.token = "a"  # The first.\nchannels.y.token = "b"\n\n# The end.\n[limits]\n',
        "channels = { x = { enabled = true } }  # In one line.",
        "[channels]\nx = { enabled = true }\n",
        "[channels.x]\r\nenabled = true\r\n# The end.",
        "[[repos]]\nname = 'a'\npath = 'b'",
        "\ufeff[http]\nport = 1",
        "",
    ],
)
@pytest.mark.parametrize("key", ["channels.x.token", "channels.z.token", "channels.z.options.deep", "http.host"])
def test_every_layout_can_be_edited(path: Path, text: str, key: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
    expected: Any = tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    set_value(path, key, "localhost", {})
    *parents, name = key.split(".")
    table = expected
    for parent in parents:
        table = table.setdefault(parent, {})
    table[name] = "localhost"
    assert tables_of(path) == expected
    assert path.read_text(encoding="utf-8").count("#") == text.count("#")
    unset_value(path, key, {})
    del table[name]
    assert _without_empty(tables_of(path)) == _without_empty(expected)
    assert path.read_text(encoding="utf-8").count("\n# ") == text.count("\n# ")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("http.prot", "1", "did you mean `port`"),
        ("http.port", "soon", "must be a whole number"),
        ("http.port", "0x" + "f" * 5000, "must be a whole number"),
        ("http.port", "99999", "must be at most 65535"),
        ("http.host", "0.0.0.0", "other machines can reach"),  # noqa: S104  # Refused, that is the test.
        ("http.port.x", "1", "`port` is not a table"),
        ("http", CANARY, "must be a table"),
        ("bindings[0].agent", "main", "is not a key"),
        ("", "1", "is not a key"),
        ("a = 1\nb", "1", "is not a key"),
        ("http.token", "short", "at least 16 characters"),
        ("agents.main.model", "\udcff", "not UTF-8"),
    ],
)
def test_an_invalid_change_leaves_the_file_unchanged(path: Path, key: str, text: str, expected: str) -> None:
    before = "# A comment.\n[http]\nport = 1\n"
    path.write_text(before, encoding="utf-8")
    with pytest.raises(ConfigError, match=expected) as caught:
        set_value(path, key, text)
    assert path.read_text(encoding="utf-8") == before
    assert CANARY not in str(caught.value)


def test_a_rejected_change_creates_no_file_or_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        set_value(tmp_path / "new" / "gatehouse.toml", "http.prot", "1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_toml_is_not_overwritten(path: Path) -> None:
    path.write_text("port = ", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        set_value(path, "http.port", "1")
    assert path.read_text(encoding="utf-8") == "port = "


@pytest.mark.parametrize("reference", ["env:ONLY_THE_DAEMON_HAS_IT", "credential:token", "file:later.token"])
def test_a_reference_can_be_set_before_it_resolves(path: Path, reference: str) -> None:
    set_value(path, "http.token", reference, {})
    assert tables_of(path) == {"http": {"token": reference}}


def test_a_link_to_the_file_stays_a_link(tmp_path: Path, path: Path) -> None:
    real = tmp_path / "real.toml"
    real.touch()
    path.symlink_to(real)
    set_value(path, "http.port", "1")
    assert path.is_symlink()
    assert tables_of(real) == {"http": {"port": 1}}


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        set_value(tmp_path / "file" / "gatehouse.toml", "http.port", "1")


def test_a_key_or_a_table_can_be_removed(path: Path) -> None:
    path.write_text('[http]\nport = 1\nhost = "::1"\n[channels.x]\nenabled = true\n', encoding="utf-8")
    unset_value(path, "http.port")
    assert tables_of(path)["http"] == {"host": "::1"}
    unset_value(path, "channels")
    assert tables_of(path) == {"http": {"host": "::1"}}


@pytest.mark.parametrize("key", ["http.port", "http.host.x", "gateway.data_dir"])
def test_removing_a_key_that_is_not_set_is_an_error(path: Path, key: str) -> None:
    path.write_text('[http]\nhost = "::1"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="is not set in this file"):
        unset_value(path, key)


_json_like = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: not _has_reference(value))


def _has_reference(value: object) -> bool:
    return any(mark in repr(value) for mark in ("env:", "file:", "credential:"))


@settings(deadline=None)  # Each example waits for the disk.
@given(st.dictionaries(st.text(), _json_like, max_size=4), st.text())
def test_written_values_are_read_back_equal(options: dict[str, Any], prompt: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "gatehouse.toml")
        set_value(path, "channels.x.options", _inline(options))
        set_value(path, "agents.main.system_prompt", _inline(prompt))
        read = load(path, {}).settings
        assert read.channels["x"].options == options
        assert read.agents["main"].system_prompt == prompt
        unset_value(path, "channels")  # Texts in options are not shown.
        read = load(path, {}).settings
        shown = Path(folder, "shown.toml")
        shown.write_text(show(read), encoding="utf-8", newline="")
        assert load(shown, {}).settings == read


def _inline(value: object) -> str:
    """Write a value on one line, as a person would behind `config set KEY`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(key)} = {_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")


def test_shown_settings_contain_stars_instead_of_secrets(path: Path) -> None:
    path.write_text(
        f'[http]\ntoken = "{CANARY}"\n[mcp.x]\ncommand = ["x"]\nenv = {{ A = "{CANARY}" }}\n'
        '[channels.x]\noptions = { deep = ["env:KEY"] }\n',
        encoding="utf-8",
    )
    shown = show(load(path, {"KEY": CANARY}).settings)
    assert CANARY not in shown
    assert tomllib.loads(shown)["channels"]["x"]["options"] == {"deep": ["***"]}
    assert shown.count("***") == 3


def test_the_schema_lists_every_table_and_forbids_unknown_keys() -> None:
    described = schema()
    assert set(described["properties"]) >= {"gateway", "http", "session", "agents", "providers", "channels"}
    assert described["additionalProperties"] is False
    assert described["$defs"]["DmScope"]["enum"][0] == "main"


def test_a_readable_file_stays_readable_until_it_contains_a_secret(tmp_path: Path) -> None:
    """Like the user of a service, who must still read the file after an edit. A new file is private."""
    path = tmp_path / "gatehouse.toml"
    set_value(path, "http.port", "1")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    set_value(path, "http.port", "2", {})
    set_value(path, "http.token", "credential:web", {})
    assert path.stat().st_mode & 0o777 == 0o644
    set_value(path, "http.token", "canary-token-0123456789", {})
    assert path.stat().st_mode & 0o777 == 0o600
