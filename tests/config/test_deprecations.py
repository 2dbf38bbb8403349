"""Keys of older versions warn, and keep working."""

from pathlib import Path

from config import load
from config.deprecations import Renamed, brought_up_to_date

CHANGES = [Renamed(old="session.size", new="max_messages"), Renamed(old="agents.*.brain", new="model")]


def test_a_renamed_key_has_its_effect_under_the_new_name_and_warns() -> None:
    warnings: list[str] = []
    old = {"session": {"size": 7, "ttl_days": 3}, "agents": {"a": {"brain": "x"}, "b": {}}, "http": {"size": 1}}
    new = brought_up_to_date(old, warnings.append, CHANGES)
    assert new == {
        "session": {"max_messages": 7, "ttl_days": 3},
        "agents": {"a": {"model": "x"}, "b": {}},
        "http": {"size": 1},
    }
    assert [warning.split(". ")[0] for warning in warnings] == [
        "session.size is now called session.max_messages",
        "agents.a.brain is now called agents.a.model",
    ]
    assert old["session"] == {"size": 7, "ttl_days": 3}


def test_the_new_name_counts_where_both_are_set() -> None:
    warnings: list[str] = []
    tables = {"session": {"size": 7, "max_messages": 9}}
    assert brought_up_to_date(tables, warnings.append, CHANGES) == {"session": {"max_messages": 9}}
    assert "what counts" in warnings[0]


def test_what_is_no_table_is_left_for_validation_to_report() -> None:
    warnings: list[str] = []
    assert brought_up_to_date({"session": 3, "agents": {"a": 4}}, warnings.append, CHANGES) == {
        "session": 3,
        "agents": {"a": 4},
    }
    assert not warnings


def test_a_removed_key_warns_without_its_value(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text('[channels.web]\nwebhook_secret = "hush-hush-hush"\n')
    path.chmod(0o600)
    (warning,) = load(path, {}).warnings
    assert warning.startswith("channels.web.webhook_secret is not used any more.")
    assert "hush" not in warning
