"""The list of all settings in effect."""

from pathlib import Path
from typing import Any

import pytest

from config import CHANGEABLE, ConfigError, Kind, Origin, Setting, is_changeable, list_settings, load, preview_values
from config.reload import APPLIED, NEEDS_RESTART, REOPENS_CHANNEL

FILE = """\
[gateway]
log_level = "debug"
[limits]
tokens_per_turn = 1000
[providers.openai]
kind = "openai"
api_key = "env:KEY"
[providers.openai.models."gpt-4.1"]
context_tokens = 5000
[channels.telegram]
token = "123456:in-the-file-itself"
[channels.telegram.accounts.work]
token = "file:work.token"
"""
ENVIRON = {"HOME": "/home/ann", "KEY": "sk-a-secret-key", "AGENT_SESSION_IDLE_TIMEOUT": "7"}


@pytest.fixture
def listed(tmp_path: Path) -> dict[str, Setting]:
    path = tmp_path / "gatehouse.toml"
    path.write_text(FILE)
    (tmp_path / "work.token").write_text("654321:in-another-file")
    loaded = load(path, ENVIRON)
    return {each.key: each for each in list_settings(loaded.settings, path, ENVIRON)}


def test_each_key_says_where_its_value_comes_from(listed: dict[str, Setting]) -> None:
    assert (listed["limits.tokens_per_turn"].value, listed["limits.tokens_per_turn"].origin) == (1000, Origin.FILE)
    assert listed["limits.tokens_per_user_per_day"].origin is Origin.DEFAULT
    assert (listed["session.idle_minutes"].value, listed["session.idle_minutes"].origin) == (7, Origin.ENVIRONMENT)
    assert listed['providers.openai.models."gpt-4.1".context_tokens'].value == 5000


def test_secrets_are_hidden_and_references_shown(listed: dict[str, Setting]) -> None:
    key = listed["providers.openai.api_key"]
    assert (key.value, key.reference, key.is_changeable) == ("***", "env:KEY", False)
    assert listed["channels.telegram.token"].value == "***"
    assert listed["channels.telegram.token"].reference == ""
    assert listed["channels.telegram.accounts.work.token"].reference == "file:work.token"
    for secret in ("sk-a-secret-key", "in-the-file-itself", "in-another-file"):
        assert secret not in str(listed.values())


@pytest.mark.parametrize(
    ("key", "kind", "is_optional"),
    [
        ("gateway.log_level", Kind.CHOICE, False),
        ("session.compaction", Kind.FLAG, False),
        ("limits.tokens_per_turn", Kind.INTEGER, False),
        ("gateway.turn_timeout", Kind.NUMBER, False),
        ("agents.main.model", Kind.TEXT, True),
        ("agents.main.fallbacks", Kind.LIST, False),
        ("session.context_chars", Kind.INTEGER, True),
        ("bindings", Kind.OTHER, False),
    ],
)
def test_each_key_says_what_it_takes(listed: dict[str, Setting], key: str, kind: Kind, is_optional: bool) -> None:  # noqa: FBT001 - from the table.
    found = listed[key]
    assert (found.kind, found.is_optional) == (kind, is_optional)
    assert ("debug" in found.choices) == (key == "gateway.log_level")


def test_every_changeable_key_exists() -> None:
    assert CHANGEABLE <= APPLIED | NEEDS_RESTART | REOPENS_CHANNEL


UNSAFE = """
gateway.owners gateway.data_dir http.token http.host storage.url mcp.x.command skills.folders
agents.main.command agents.main.env agents.main.ask agents.main.always_allow agents.main.tools
providers.openai.base_url providers.openai.api_key channels.telegram.allow channels.telegram.token
channels.webhook.hooks.x.secrets roles.member.tools tools.shell.allow_unsandboxed tools.shell.network
"gateway".log_level gateway.log_level.x * agents.*.env gateway..log_level
"""


@pytest.mark.parametrize("key", UNSAFE.split())
def test_keys_that_could_give_rights_are_not_changeable(key: str) -> None:
    assert not is_changeable(key)


def test_a_preview_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text(FILE)
    edit = preview_values(path, {"limits.tokens_per_turn": 2000}, ENVIRON)
    assert (edit.before, edit.loaded.settings.limits.tokens_per_turn) == (FILE, 2000)
    assert edit.after == FILE.replace("1000", "2000")
    wrong: dict[str, Any] = {"limits.tokens_per_turn": "many"}
    with pytest.raises(ConfigError):
        preview_values(path, wrong, ENVIRON)
    assert path.read_text() == FILE
    edit = preview_values(tmp_path / "new.toml", {"gateway.log_level": "debug"}, ENVIRON)
    assert (edit.before, edit.after) == ("", '[gateway]\nlog_level = "debug"\n')
