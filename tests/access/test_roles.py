"""Roles: who has which, what each allows, and that narrowing never widens."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from config import Settings
from gateway.access.guests import Guest, Person
from gateway.access.role_table import AskerRoles, Role
from gateway.access.roles import check_changeable, role_of
from gateway.access.rules import Live
from gateway.access.tokens import ApiToken
from gateway.commands.registry import COMMANDS
from gateway.contract import Address, PeerKind, Sender, TokenScope
from gateway.errors import Refused

DIRECT = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
GROUP = Address(channel="telegram", kind=PeerKind.GROUP, peer="-7")
ANN = Sender(id="42", name="Ann")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(**tables: object) -> Live:
    return Live(Settings.model_validate({"channels": {"telegram": {}}, **tables}))


def name(given: Live, address: Address = DIRECT, sender: Sender = ANN, guild: str | None = None) -> str:
    return role_of(given, address, sender, guild).name


def approve(given: Live, role: str = "", *, is_owner: bool = False) -> None:
    person = Person(channel="telegram", account="default", sender="42")
    given.guest_book.guests[person] = Guest(
        person=person, name="Ann", peer="42", since=NOW, is_owner=is_owner, role=role
    )


def token(given: Live, role: str = "", *scopes: TokenScope) -> Sender:
    given.token_book.tokens["t"] = ApiToken(
        id="t", name="ci", digest="", scopes=frozenset(scopes or {TokenScope.PROMPT}), created_at=NOW, role=role
    )
    return Sender(id="t", token="t")


def test_strangers_are_guests_and_known_people_are_members() -> None:
    assert name(live()) == "guest"
    assert name(live(channels={"telegram": {"allow": ["42"]}})) == "member"
    paired = live()
    approve(paired)
    assert name(paired) == "member"
    approve(paired, is_owner=True)
    assert name(paired) == "owner"
    assert name(live(gateway={"owners": ["telegram:42"]})) == "owner"


def test_a_persons_own_role_wins_over_that_of_the_chat() -> None:
    tables = {"kids": {"people": ["telegram:42"]}, "team": {"chats": ["telegram:-7", "telegram:guild"]}}
    given = live(roles=tables)
    assert name(given, GROUP) == "kids"
    assert name(given, GROUP, Sender(id="43")) == "team"
    assert name(given, replace(GROUP, peer="-8"), Sender(id="43"), guild="guild") == "team"
    assert name(given, replace(GROUP, peer="-8"), Sender(id="43")) == "guest"
    approved = live(roles={"kids": {}, "team": {"chats": ["telegram:-7"]}})
    approve(approved)
    assert name(approved, GROUP) == "team"
    approve(approved, "kids")
    assert name(approved, GROUP) == "kids"


def test_the_settings_win_over_the_role_of_an_approval() -> None:
    given = live(roles={"kids": {"people": ["telegram:42"]}, "team": {}})
    approve(given, "team")
    assert name(given) == "kids"


@pytest.mark.parametrize(
    "tables", [{"roles": {"kids": {"people": ["telegram:42"]}}}, {"gateway": {"owners": ["telegram:42"]}}]
)
def test_a_role_of_the_settings_cannot_be_changed_by_a_command(tables: dict[str, Any]) -> None:
    given = live(**tables)
    approve(given)
    (guest,) = given.guest_book.guests.values()
    with pytest.raises(Refused, match=r"The configuration gives .* the role (kids|owner)\. Change it there\."):
        check_changeable(given, guest)


def test_linked_ids_have_the_same_role() -> None:
    links = {"identity_links": {"ann": ["telegram:42", "discord:7"]}}
    both = {"telegram": {}, "discord": {"allow": ["7"]}}
    given = live(roles={"kids": {"people": ["discord:7"]}}, session=links, channels=both)
    assert name(given) == "kids"
    # The same holds for the role of an approval, but nobody becomes an owner by a link.
    given = live(roles={"kids": {}}, session=links, channels=both)
    other = replace(DIRECT, channel="discord", peer="7")
    approve(given, "kids")
    assert name(given, other, Sender(id="7")) == "kids"
    assert name(given, other, Sender(id="8")) == "guest"
    approve(given, is_owner=True)
    assert name(given, other, Sender(id="7")) == "member"


def test_a_chat_that_has_moved_keeps_its_role() -> None:
    given = live(roles={"team": {"chats": ["telegram:-7"]}})
    moved = replace(GROUP, peer="-1007")
    given.first_addresses[moved] = GROUP
    assert name(given, moved) == "team"


def test_tokens_and_webhooks_have_roles() -> None:
    hook = {"secrets": ["s" * 40], "preset": "github"}
    given = live(
        roles={"ci": {}},
        channels={"webhook": {"hooks": {"a": {**hook, "role": "ci"}, "b": hook}}},
    )
    at = Address(channel="webhook", kind=PeerKind.DIRECT, peer="a")
    assert name(given, at, Sender(id="a", is_verified=True)) == "ci"
    assert name(given, at, Sender(id="b", is_verified=True)) == "member"
    assert name(given, at, Sender(id="gone", is_verified=True)) == "guest"
    assert name(given, at, token(given)) == "member"
    assert name(given, at, token(given, "ci")) == "ci"
    assert name(given, at, token(given, "", TokenScope.ADMIN)) == "owner"


def test_a_role_that_is_gone_becomes_a_guest_without_tools() -> None:
    given = live()
    approve(given, "kids")
    role = role_of(given, DIRECT, ANN)
    assert (role.name, role.missing) == ("guest", "kids")
    assert not AskerRoles([role]).allows_tool("current_time")
    assert not role.may_use("approve", is_for_owners=False)
    assert AskerRoles([role_of(live(), DIRECT, ANN)]).allows_tool("current_time")


def test_commands_for_owners_have_to_be_named() -> None:
    def granted(*patterns: str) -> set[str]:
        role = live(roles={"x": {"commands": patterns}}).roles["x"]
        return {each.name for each in COMMANDS if each.is_for_owners and role.may_use(each.name, is_for_owners=True)}

    assert granted("*", "re*", "w*") == set()
    assert granted("restart", "/workspace") == {"restart", "workspace"}
    assert granted("restart*") == {"restart"}


def test_everyone_may_stop_and_ask_who_they_are() -> None:
    role = live(roles={"x": {"commands": [], "approve": "none"}}).roles["x"]
    allowed = {each.name for each in COMMANDS if role.may_use(each.name, is_for_owners=each.is_for_owners)}
    assert allowed == {"help", "start", "stop", "whoami", "approvals", "approvals revoke"}


WORDS = ["*", "new", "session *", "restart", "workspace", "r*", "p*", "main", "a*", "shell", "read_*", "web", "x/y"]
PATTERNS = some.none() | some.lists(some.sampled_from(WORDS), max_size=5)


@some.composite
def settings_of_role(draw: some.DrawFn) -> dict[str, Any]:
    keys = {key: draw(PATTERNS) for key in ("commands", "tools")}
    return {
        **{key: value for key, value in keys.items() if value is not None},
        "ask": draw(some.lists(some.sampled_from(WORDS), max_size=3)),
        "approve": draw(some.sampled_from(["none", "own", "chat"])),
        "moderate": draw(some.booleans()),
    }


@given(tables=some.dictionaries(some.sampled_from(["member", "guest", "kids", "team"]), settings_of_role()))
def test_no_settings_let_others_decide_who_has_access(tables: dict[str, Any]) -> None:
    for role in live(roles=tables).roles:
        for command in COMMANDS:
            if command.name.startswith("pair"):
                assert role.may_use(command.name, is_for_owners=command.is_for_owners) is (role.name == "owner")


def rights(role: Role) -> set[tuple[str, str]]:
    asker, names = AskerRoles([role]), ["main", "a1", "shell", "read_file", "web", "x/y", "z"]
    found = {("command", each.name) for each in COMMANDS if role.may_use(each.name, is_for_owners=each.is_for_owners)}
    found |= {("tool", each) for each in names if asker.allows_tool(each)}
    found |= {("unasked", each) for each in names if not asker.asks_before(each)}
    for usual in (True, False):
        found |= {(f"agent {usual}", each) for each in names if role.may_choose_agent(each, is_usual=usual)}
        found |= {(f"repo {usual}", each) for each in names if role.may_use_repo(each, is_usual=usual)}
        found |= {(f"model {usual}", each) for each in names if role.may_choose_model(each, is_usual=usual)}
    found |= {("model", each) for each in names if asker.allows_model(each)}
    return found


@given(data=some.data(), wide=settings_of_role())
def test_narrowing_never_widens(data: some.DataObject, wide: dict[str, Any]) -> None:
    """Fewer entries in a list of rights, and more in `ask`, take rights away."""
    settings = live().roles["member"].settings
    lists = {key: data.draw(some.lists(some.sampled_from(WORDS), max_size=5)) for key in ("agents", "workspaces")}
    lists["models"] = data.draw(some.lists(some.sampled_from(WORDS), max_size=5))
    wide = {**wide, **lists}
    narrow = {
        key: data.draw(some.sets(some.sampled_from(value))) if isinstance(value, list) and value else value
        for key, value in wide.items()
        if key != "ask"
    }
    before = Role(name="x", settings=settings.model_copy(update={**wide, "approve": settings.approve}))
    after = Role(name="x", settings=settings.model_copy(update={**narrow, "ask": ("*",), "approve": settings.approve}))
    assert rights(after) <= rights(before)


@given(one=settings_of_role(), other=settings_of_role())
def test_several_people_in_one_turn_have_the_narrowest_rights(one: dict[str, Any], other: dict[str, Any]) -> None:
    roles = live(roles={"a": one, "b": other}).roles
    both = AskerRoles([roles["a"], roles["b"]])
    for tool in ("shell", "read_file", "web"):
        alone = [AskerRoles([roles[name]]) for name in "ab"]
        assert both.allows_tool(tool) is all(each.allows_tool(tool) for each in alone)
        assert both.asks_before(tool) is any(each.asks_before(tool) for each in alone)


@pytest.mark.parametrize(
    ("limits", "expected"), [((None, None), 10), ((5, None), 5), ((5, 3), 3), ((0, 3), 3), ((0, 0), 0), ((50, 0), 50)]
)
def test_the_lowest_budget_holds(limits: tuple[int | None, int | None], expected: int) -> None:
    given = live(
        roles={name: {"tokens_per_day": each} for name, each in zip("ab", limits, strict=True)},
        limits={"tokens_per_user_per_day": 10},
    )
    asker = AskerRoles([given.roles["a"], given.roles["b"]])
    assert asker.limits(given.settings.limits).tokens_per_day.value == expected
