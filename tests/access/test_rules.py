"""Access rules: ids decide, and unknown senders have no access."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from config import ChannelSettings, DmPolicy, GatewaySettings, GroupPolicy, Settings
from gateway.access.guests import Guest, Person
from gateway.access.rules import Live, are_same_person, is_owner, may_talk
from gateway.contract import Address, PeerKind, Sender

DIRECT = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
GROUP = Address(channel="telegram", kind=PeerKind.GROUP, peer="-5")


def live(**channel: object) -> Live:
    return Live(
        Settings(
            gateway=GatewaySettings(owners=("telegram:1",)),
            channels={"telegram": ChannelSettings.model_validate(channel)},
        )
    )


def with_guest(live: Live, *, is_owner: bool = False, account: str = "default") -> Live:
    person = Person(channel="telegram", account=account, sender="42")
    since = datetime(2026, 3, 1, tzinfo=UTC)
    live.guest_book.guests[person] = Guest(person=person, name="Ada", peer="42", since=since, is_owner=is_owner)
    return live


@pytest.mark.parametrize("policy", list(DmPolicy))
def test_an_owner_always_has_access(policy: DmPolicy) -> None:
    assert may_talk(live(dm_policy=policy), DIRECT, Sender(id="1"))


def test_an_unknown_sender_has_no_access_by_default() -> None:
    assert not may_talk(live(), DIRECT, Sender(id="42"))
    assert not may_talk(Live(Settings()), DIRECT, Sender(id="42"))


@pytest.mark.parametrize(
    "sender", [Sender(id="43", name="42"), Sender(id="142"), Sender(id="4"), Sender(id=""), Sender(id=" 42")]
)
def test_ids_decide_and_names_do_not(sender: Sender) -> None:
    rules = live(dm_policy="allowlist", allow=["42"])
    assert may_talk(rules, DIRECT, Sender(id="42"))
    assert not may_talk(rules, DIRECT, sender)


def test_an_open_channel_admits_every_sender_with_an_id() -> None:
    assert may_talk(live(dm_policy="open"), DIRECT, Sender(id="43"))
    assert not may_talk(live(dm_policy="open"), DIRECT, Sender(id=""))
    assert not may_talk(live(group_policy="open"), GROUP, Sender(id=""))


@pytest.mark.parametrize(
    ("policy", "peer", "expected"),
    [
        (GroupPolicy.ALLOWLIST, "-5", True),
        (GroupPolicy.ALLOWLIST, "-6", False),
        (GroupPolicy.OPEN, "-6", True),
        (GroupPolicy.OFF, "-5", False),
    ],
)
def test_groups_have_their_own_policy(policy: GroupPolicy, peer: str, *, expected: bool) -> None:
    rules = live(group_policy=policy, group_allow=["-5"], allow=["42"])
    assert may_talk(rules, replace(GROUP, peer=peer), Sender(id="42")) is expected


def test_an_allowed_group_gives_no_access_to_direct_messages() -> None:
    assert not may_talk(live(group_allow=["42"]), DIRECT, Sender(id="42"))


def test_a_guest_has_access_only_to_direct_messages_of_the_account_that_approved_them() -> None:
    rules = with_guest(live(accounts={"work": {}}))
    assert may_talk(rules, DIRECT, Sender(id="42"))
    assert not may_talk(rules, replace(DIRECT, account="work"), Sender(id="42"))
    assert not may_talk(rules, replace(DIRECT, channel="discord"), Sender(id="42"))
    assert not may_talk(rules, GROUP, Sender(id="42"))
    assert not is_owner(rules, DIRECT, Sender(id="42"))


def test_a_guest_has_no_access_under_an_allowlist() -> None:
    assert not may_talk(with_guest(live(dm_policy="allowlist")), DIRECT, Sender(id="42"))


def test_a_guest_approved_as_an_owner_is_an_owner() -> None:
    assert is_owner(with_guest(live(), is_owner=True), DIRECT, Sender(id="42"))
    assert not is_owner(with_guest(live(), is_owner=True), replace(DIRECT, account="work"), Sender(id="42"))


def test_an_owner_proven_by_the_channel_is_an_owner() -> None:
    web = Address(channel="web", kind=PeerKind.DIRECT, peer="owner")
    assert is_owner(Live(Settings()), web, Sender(id="owner", is_owner=True))
    assert not is_owner(live(), replace(DIRECT, channel="discord"), Sender(id="1"))


def test_the_id_of_a_server_allows_all_of_its_channels() -> None:
    rules = live(group_allow=["500"])
    assert may_talk(rules, GROUP, Sender(id="42"), "500")
    assert not may_talk(rules, GROUP, Sender(id="42"), "600")
    assert not may_talk(rules, GROUP, Sender(id="42"))


def test_equal_or_linked_ids_belong_to_the_same_person() -> None:
    linked = Settings.model_validate({"session": {"identity_links": {"ada": ["telegram:42", "discord:7"]}}})
    assert are_same_person(Live(linked), ("telegram", "42"), ("discord", "7"))
    assert are_same_person(Live(Settings()), ("telegram", "42"), ("telegram", "42"))
    assert not are_same_person(Live(Settings()), ("telegram", "42"), ("discord", "42"))
    assert not are_same_person(Live(linked), ("telegram", "42"), ("discord", "8"))


HOOK = Address(channel="webhook", kind=PeerKind.CHANNEL, peer="ci")
VERIFIED = Sender(id="ci", is_verified=True)


def with_hook(**channel: object) -> Live:
    table = {"hooks": {"ci": {"secrets": ["a-secret-of-good-length"]}}, **channel}
    channels = {"webhook": ChannelSettings.model_validate(table), "telegram": ChannelSettings(dm_policy=DmPolicy.OPEN)}
    return Live(Settings(gateway=GatewaySettings(owners=("webhook:ci",)), channels=channels))


def test_a_webhook_has_access_while_the_settings_have_it() -> None:
    rules = with_hook()
    assert may_talk(rules, HOOK, VERIFIED)
    assert not may_talk(rules, HOOK, replace(VERIFIED, id="other"))
    assert not may_talk(rules, HOOK, replace(VERIFIED, id=""))
    assert not may_talk(with_hook(enabled=False), HOOK, VERIFIED)
    assert not may_talk(Live(Settings()), HOOK, VERIFIED)


def test_a_webhook_has_no_rights_beyond_its_own_channel() -> None:
    rules = with_hook()
    assert not is_owner(rules, HOOK, VERIFIED)
    assert not may_talk(rules, DIRECT, VERIFIED), "not even where every person may talk"
