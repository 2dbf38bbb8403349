from datetime import UTC, datetime

import pytest

from config import ChannelSettings, DmPolicy, GatewaySettings, GroupPolicy, Settings
from gateway.access import is_owner, may_talk
from gateway.contract import Address, Inbound, PeerKind, Sender


def message(sender: Sender, *, kind: PeerKind = PeerKind.DIRECT, peer: str = "42") -> Inbound:
    return Inbound(
        address=Address(channel="telegram", kind=kind, peer=peer),
        sender=sender,
        event_id="1",
        text="hi",
        sent_at=datetime(2026, 3, 1, tzinfo=UTC),
    )


def settings(**channel: object) -> Settings:
    return Settings(
        gateway=GatewaySettings(owners=("telegram:1",)),
        channels={"telegram": ChannelSettings.model_validate(channel)},
    )


@pytest.mark.parametrize("policy", list(DmPolicy))
def test_the_owner_may_always_talk(policy: DmPolicy) -> None:
    assert may_talk(settings(dm_policy=policy), message(Sender(id="1")))


def test_a_stranger_is_denied_by_default() -> None:
    assert not may_talk(settings(), message(Sender(id="42")))
    assert not may_talk(Settings(), message(Sender(id="42")))


def test_ids_decide_and_names_do_not() -> None:
    rules = settings(dm_policy="allowlist", allow=["42"])
    assert may_talk(rules, message(Sender(id="42")))
    assert not may_talk(rules, message(Sender(id="43", name="42")))
    assert not may_talk(rules, message(Sender(id="142")))
    assert not may_talk(rules, message(Sender(id="")))


def test_an_open_channel_takes_everybody() -> None:
    assert may_talk(settings(dm_policy="open"), message(Sender(id="43")))


@pytest.mark.parametrize(
    ("policy", "peer", "expected"),
    [
        (GroupPolicy.ALLOWLIST, "-5", True),
        (GroupPolicy.ALLOWLIST, "-6", False),
        (GroupPolicy.OPEN, "-6", True),
        (GroupPolicy.OFF, "-5", False),
    ],
)
def test_groups_have_a_policy_of_their_own(policy: GroupPolicy, peer: str, *, expected: bool) -> None:
    rules = settings(group_policy=policy, group_allow=["-5"], allow=["42"])
    assert may_talk(rules, message(Sender(id="42"), kind=PeerKind.GROUP, peer=peer)) is expected


def test_a_channel_that_has_proven_its_owner_is_believed() -> None:
    assert is_owner(Settings(), "web", Sender(id="owner", is_owner=True))
    assert not is_owner(settings(), "discord", Sender(id="1"))
