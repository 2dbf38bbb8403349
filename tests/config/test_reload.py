"""Which settings a reload applies."""

import typing
from collections.abc import Iterator

import pytest

from config import ConfigError, Settings, plan_reload
from config.reload import APPLIED, NEEDS_RESTART, REOPENS_CHANNEL
from config.types import Table

TOKEN, OTHER_TOKEN = "a" * 20, "b" * 20


def all_keys(table: type[Table], path: str = "") -> Iterator[str]:
    """Yield every key of the settings, with `*` for names that the config file chooses."""
    for name, field in table.model_fields.items():
        key, annotation = f"{path}.{name}".lstrip("."), field.annotation
        arguments = typing.get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Table):
            yield from all_keys(annotation, key)
        elif typing.get_origin(annotation) is dict and isinstance(arguments[1], type):
            # An account has the keys of its channel, and those are listed once.
            if issubclass(arguments[1], Table) and name != "accounts":
                yield from all_keys(arguments[1], f"{key}.*")
            elif name != "accounts":
                yield key
        else:
            yield key


def test_every_key_is_in_exactly_one_list() -> None:
    keys = sorted(all_keys(Settings))
    assert sorted([*APPLIED, *NEEDS_RESTART, *REOPENS_CHANNEL]) == keys, (
        "a new key goes into the list in config/reload.py that says what a reload does with it"
    )


def settings(**tables: object) -> Settings:
    return Settings.model_validate({"gateway": {"data_dir": "/data"}, **tables})


def test_a_key_that_needs_a_restart_keeps_its_value_and_is_named_again_each_time() -> None:
    old = settings(http={"port": 1, "token": TOKEN})
    new = settings(
        gateway={"data_dir": "/elsewhere", "max_parallel_turns": 3, "turn_timeout": 5},
        http={"port": 2, "token": OTHER_TOKEN, "allowed_hosts": ["a.example"]},
        agents={"helper": {}},
    )
    plan = plan_reload(old, new)
    fixed = ("gateway.data_dir", "gateway.max_parallel_turns", "http.allowed_hosts", "http.port")
    assert plan.applied == ("agents.helper", "gateway.turn_timeout", "http.token")
    assert plan.restart_needed == fixed
    force = plan.settings
    assert force.gateway.data_dir == old.gateway.data_dir
    assert force.gateway.workspace_root == old.gateway.workspace_root
    assert (force.http.port, force.gateway.turn_timeout) == (1, 5)
    assert force.http.token == new.http.token
    assert plan_reload(force, new).restart_needed == fixed
    assert plan_reload(force, new).applied == ()


@pytest.mark.parametrize(
    ("old", "new", "restart_needed", "applied"),
    [
        ({"token": "x"}, {"token": "y"}, ("channels.telegram.token",), ()),
        ({"allow": ["1"]}, {"allow": ["2"]}, (), ("channels.telegram.allow",)),
        ({}, {"enabled": False, "rate_limit": 3}, ("channels.telegram.enabled",), ("channels.telegram.rate_limit",)),
        (
            {"accounts": {"work": {"token": "x"}}},
            {"accounts": {"work": {"token": "y", "allow": ["7"]}}},
            ("channels.telegram.accounts.work.token",),
            ("channels.telegram.accounts.work.allow",),
        ),
        ({"accounts": {"work": {}}}, {"accounts": {"work": {}}, "allow": ["7"]}, (), ("channels.telegram.allow",)),
    ],
)
def test_a_channel_that_cannot_be_opened_again_keeps_what_it_was_opened_with(
    old: dict[str, object], new: dict[str, object], restart_needed: tuple[str, ...], applied: tuple[str, ...]
) -> None:
    before, after = settings(channels={"telegram": old}), settings(channels={"telegram": new})
    plan = plan_reload(before, after, ["telegram"])
    assert (plan.restart_needed, plan.applied) == (restart_needed, applied)
    assert plan_reload(plan.settings, after, ["telegram"]).restart_needed == restart_needed
    # Without HTTP routes, it is opened again.
    assert plan_reload(before, after).restart_needed == ()


def test_a_channel_that_was_added_or_removed_as_a_whole_is_named() -> None:
    without, with_it = settings(), settings(channels={"telegram": {"token": "x"}})
    assert plan_reload(without, with_it).applied == ("channels.telegram",)
    for before, after in ((without, with_it), (with_it, without)):
        plan = plan_reload(before, after, ["telegram"])
        assert (plan.applied, plan.restart_needed) == ((), ("channels.telegram",))
        assert ("telegram" in plan.settings.channels) == ("telegram" in before.channels)


@pytest.mark.parametrize(
    "tables",
    [{"repos": [{"name": "old", "path": "/data/sessions"}]}, {"gateway": {"workspace_root": "/data/sessions"}}],
)
def test_tools_cannot_reach_the_data_directory_that_stays_in_use_until_a_restart(
    tables: dict[str, dict[str, object]],
) -> None:
    moved = {**tables, "gateway": {"data_dir": "/elsewhere", **tables.get("gateway", {})}}
    with pytest.raises(ConfigError, match=r"overlaps with gateway\.data_dir"):
        plan_reload(settings(), Settings.model_validate(moved))
