"""Rights in a scope: they follow the people who can be in it."""

from datetime import UTC, datetime

import pytest

from config import ChannelSettings, DmScope, GroupScope, SessionSettings, Settings
from gateway.access.rights import Action, check_right
from gateway.access.rules import Live, is_shared
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused

DIRECT = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
GROUP = Address(channel="telegram", kind=PeerKind.GROUP, peer="-5")
ADA = Sender(id="42", name="Ada")
LINKS = {"ada": ("telegram:42", "discord:42", "discord:77")}


def live(*, discord: dict[str, object] | None = None, **session: object) -> Live:
    channels = {
        "telegram": ChannelSettings(dm_policy="open"),
        "discord": ChannelSettings.model_validate(discord or {"dm_policy": "allowlist"}),
    }
    return Live(Settings(channels=channels, session=SessionSettings.model_validate(session)))


def said(address: Address, sender: Sender = ADA) -> Inbound:
    return Inbound(address=address, sender=sender, event_id="1", text="hello", sent_at=datetime(2026, 3, 1, tzinfo=UTC))


def may(
    rules: Live, address: Address, action: Action, *, is_owner: bool = False, authors: tuple[str, ...] = ()
) -> bool:
    try:
        check_right(rules, said(address), action, is_owner=is_owner, authors=authors)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("scope", list(DmScope))
def test_direct_messages_are_shared_only_in_the_main_scope(scope: DmScope) -> None:
    assert is_shared(live(dm_scope=scope), DIRECT, ADA) is (scope is DmScope.MAIN)


@pytest.mark.parametrize("scope", list(GroupScope))
@pytest.mark.parametrize("kind", [PeerKind.GROUP, PeerKind.CHANNEL])
def test_a_group_is_shared_unless_each_sender_has_a_scope(scope: GroupScope, kind: PeerKind) -> None:
    group = Address(channel="telegram", kind=kind, peer="-5")
    assert is_shared(live(group_scope=scope), group, ADA) is (scope is GroupScope.SHARED)


def test_anonymous_administrators_share_the_scope_of_their_group_id() -> None:
    assert is_shared(live(group_scope="per-sender"), GROUP, Sender(id="-5"))


def test_a_per_peer_scope_is_shared_if_the_same_id_has_access_on_another_channel() -> None:
    assert is_shared(live(dm_scope="per-peer", discord={"dm_policy": "open"}), DIRECT, ADA)
    assert is_shared(live(dm_scope="per-peer", discord={"dm_policy": "allowlist", "allow": ["42"]}), DIRECT, ADA)
    accounts: dict[str, object] = {"accounts": {"work": {"dm_policy": "open"}}}
    assert is_shared(live(dm_scope="per-peer", discord=accounts), DIRECT, ADA)
    assert not is_shared(live(dm_scope="per-peer", discord={"dm_policy": "open", "enabled": False}), DIRECT, ADA)


def test_a_per_peer_scope_of_linked_ids_belongs_to_one_person() -> None:
    rules = live(dm_scope="per-peer", identity_links=LINKS, discord={"dm_policy": "open"})
    assert not is_shared(rules, DIRECT, ADA)


@pytest.mark.parametrize("action", [Action.DELETE, Action.CLEAR, Action.CHOOSE_AGENT])
def test_in_a_shared_scope_only_owners_make_lasting_changes(action: Action) -> None:
    rules = live(dm_scope="main")
    assert not may(rules, DIRECT, action)
    assert may(rules, DIRECT, action, is_owner=True)
    assert may(live(), DIRECT, action)


def test_in_a_shared_scope_people_undo_their_own_messages_only() -> None:
    rules = live(dm_scope="main", identity_links=LINKS)
    assert may(rules, DIRECT, Action.UNDO, authors=("42",))
    assert may(rules, DIRECT, Action.UNDO, authors=("42", "77")), "a linked id is the same person"
    assert not may(rules, DIRECT, Action.UNDO, authors=("42", "43"))
    assert may(rules, DIRECT, Action.UNDO, authors=("43",), is_owner=True)


def test_a_workspace_is_chosen_by_owners_even_in_a_private_scope() -> None:
    assert not may(live(), DIRECT, Action.CHOOSE_WORKSPACE)
    assert may(live(), DIRECT, Action.CHOOSE_WORKSPACE, is_owner=True)
