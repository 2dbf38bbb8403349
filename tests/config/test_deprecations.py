"""Keys of older versions warn, and keep working."""

from pathlib import Path

from config import load
from config.deprecations import Renamed, apply_deprecations

CHANGES = [Renamed(old="session.size", new="max_messages"), Renamed(old="agents.*.brain", new="model")]


def test_a_renamed_key_still_works_and_causes_a_warning() -> None:
    warnings: list[str] = []
    old = {"session": {"size": 7, "ttl_days": 3}, "agents": {"a": {"brain": "x"}, "b": {}}, "http": {"size": 1}}
    new = apply_deprecations(old, warnings.append, CHANGES)
    assert new == {
        "session": {"max_messages": 7, "ttl_days": 3},
        "agents": {"a": {"model": "x"}, "b": {}},
        "http": {"size": 1},
    }
    assert [warning.split(". ")[0] for warning in warnings] == [
        "session.size was renamed to session.max_messages",
        "agents.a.brain was renamed to agents.a.model",
    ]
    assert old["session"] == {"size": 7, "ttl_days": 3}


def test_the_new_name_wins_if_both_are_set() -> None:
    warnings: list[str] = []
    tables = {"session": {"size": 7, "max_messages": 9}}
    assert apply_deprecations(tables, warnings.append, CHANGES) == {"session": {"max_messages": 9}}
    assert "session.max_messages is used" in warnings[0]


def test_an_entry_that_is_not_a_table_is_left_to_validation() -> None:
    warnings: list[str] = []
    assert apply_deprecations({"session": 3, "agents": {"a": 4}}, warnings.append, CHANGES) == {
        "session": 3,
        "agents": {"a": 4},
    }
    assert not warnings


def test_the_warning_about_a_removed_key_does_not_quote_its_value(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text('[channels.web]\nwebhook_secret = "hush-hush-hush"\n')
    path.chmod(0o600)
    (warning,) = load(path, {}).warnings
    assert warning.startswith("channels.web.webhook_secret is no longer used.")
    assert "hush" not in warning
