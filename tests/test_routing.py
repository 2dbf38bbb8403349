import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Binding, DmScope, GroupScope, SessionSettings, Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.routing import is_reachable, linked_scopes, route
from gateway.sessions.keys import parse_key

ALICE = Sender(id="alice-1")

ids = st.text(min_size=1, max_size=20) | st.sampled_from(
    [
        "../..",
        "x#2",
        "a:b",
        "a%3Ab",
        "%",
        "~alice",
        "main",
        "thread",
        "\ud800",
        "\udfff",
        "\0",
        "user\u202e",
        "é",
        "e\u0301",
    ]
)
slugs = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,10}", fullmatch=True) | st.sampled_from(
    ["default", "direct", "group", "channel", "thread", "sender", "main", "agent"]
)
kinds = st.sampled_from(PeerKind)
addresses = st.builds(Address, channel=slugs, account=slugs, kind=kinds, peer=ids, thread=st.none() | ids)
senders = st.builds(Sender, id=ids)


def settings(
    dm_scope: DmScope = DmScope.PER_CHANNEL_PEER,
    group_scope: GroupScope = GroupScope.SHARED,
    links: dict[str, tuple[str, ...]] | None = None,
    bindings: tuple[Binding, ...] = (),
) -> Settings:
    session = SessionSettings(dm_scope=dm_scope, group_scope=group_scope, identity_links=links or {})
    # Bindings name agents that these tests do not set up.
    return Settings.model_construct(session=session, bindings=bindings)


def direct(peer: str = "user123", channel: str = "telegram", account: str = "default") -> Address:
    return Address(channel=channel, account=account, kind=PeerKind.DIRECT, peer=peer)


def scope(address: Address, chosen: Settings | None = None, sender: Sender = ALICE) -> str:
    return route(chosen or settings(), address, sender).scope


@pytest.mark.parametrize(
    ("dm_scope", "key"),
    [
        (DmScope.MAIN, "agent:main:main"),
        (DmScope.PER_PEER, "agent:main:direct:user123"),
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:direct:user123"),
        (DmScope.PER_ACCOUNT_CHANNEL_PEER, "agent:main:telegram:work:direct:user123"),
    ],
)
def test_each_dm_scope_gives_its_key(dm_scope: DmScope, key: str) -> None:
    assert scope(direct(account="work"), settings(dm_scope)) == key


@pytest.mark.parametrize("dm_scope", DmScope)
@pytest.mark.parametrize("kind", [PeerKind.GROUP, PeerKind.CHANNEL])
def test_groups_are_isolated_with_every_dm_scope(dm_scope: DmScope, kind: PeerKind) -> None:
    address = Address(channel="discord", kind=kind, peer="77")
    assert scope(address, settings(dm_scope)) == f"agent:main:discord:{kind}:77"


def test_a_group_names_its_account_unless_it_is_the_default_one() -> None:
    address = Address(channel="discord", account="work", kind=PeerKind.GROUP, peer="77")
    assert scope(address) == "agent:main:discord:work:group:77"


def test_a_thread_has_its_own_scope() -> None:
    address = Address(channel="discord", kind=PeerKind.GROUP, peer="77", thread="5")
    assert scope(address) == "agent:main:discord:group:77:thread:5"


def test_group_scope_per_sender_adds_the_sender() -> None:
    address = Address(channel="discord", kind=PeerKind.GROUP, peer="77", thread="5")
    per_sender = settings(group_scope=GroupScope.PER_SENDER)
    assert scope(address, per_sender) == "agent:main:discord:group:77:thread:5:sender:alice-1"


def test_linked_ids_of_one_person_share_a_scope() -> None:
    linked = settings(DmScope.PER_PEER, links={"alice": ("telegram:123", "discord:456")})
    assert scope(direct("123"), linked) == "agent:main:direct:~alice"
    assert scope(direct("456", channel="discord"), linked) == "agent:main:direct:~alice"


def test_an_id_linked_on_one_platform_is_not_linked_on_another() -> None:
    linked = settings(DmScope.PER_PEER, links={"alice": ("telegram:123",)})
    assert scope(direct("123", channel="discord"), linked) == "agent:main:direct:123"


def test_an_id_cannot_look_like_a_linked_name() -> None:
    assert scope(direct("~alice"), settings(DmScope.PER_PEER)) == "agent:main:direct:%7Ealice"


def test_ids_keep_their_case_and_have_separators_escaped() -> None:
    assert scope(direct("Ann:../#2 é%")) == "agent:main:telegram:direct:Ann%3A..%2F%232%20%C3%A9%25"


@pytest.mark.parametrize("dm_scope", DmScope)
@pytest.mark.parametrize("kind", PeerKind)
def test_a_message_without_a_peer_is_refused(dm_scope: DmScope, kind: PeerKind) -> None:
    with pytest.raises(Refused):
        scope(Address(channel="web", kind=kind, peer=""), settings(dm_scope))


def test_a_message_without_a_sender_is_refused_with_scopes_per_sender() -> None:
    with pytest.raises(Refused):
        scope(
            Address(channel="discord", kind=PeerKind.GROUP, peer="77"),
            settings(group_scope=GroupScope.PER_SENDER),
            Sender(id=""),
        )


def test_the_most_specific_binding_chooses_the_agent() -> None:
    address = Address(channel="discord", account="work", kind=PeerKind.GROUP, peer="77", thread="5")
    ladder = (
        Binding(agent="by-thread", thread="5"),
        Binding(agent="by-peer", channel="discord", account="work", guild="g", peer="77"),
        Binding(agent="by-guild", channel="discord", account="work", guild="g"),
        Binding(agent="by-account", channel="discord", account="work"),
        Binding(agent="by-channel", channel="discord"),
    )
    for step in range(len(ladder)):
        routed = route(settings(bindings=ladder[step:][::-1]), address, ALICE, guild="g")
        assert routed.agent == ladder[step].agent
        assert routed.scope.startswith(f"agent:{routed.agent}:")


def test_a_binding_counts_only_if_all_of_it_matches() -> None:
    bound = settings(bindings=(Binding(agent="other", channel="telegram", peer="somebody"),))
    assert route(bound, direct(), ALICE).agent == "main"


def meant(chosen: Settings, address: Address, sender: Sender) -> tuple[object, ...]:
    """Say what keeps conversations apart, in other words than the key does."""
    if address.kind is PeerKind.DIRECT:
        return {
            DmScope.MAIN: (),
            DmScope.PER_PEER: (address.peer,),
            DmScope.PER_CHANNEL_PEER: (address.channel, address.peer),
            DmScope.PER_ACCOUNT_CHANNEL_PEER: (address.channel, address.account, address.peer),
        }[chosen.session.dm_scope]
    speaker = sender.id if chosen.session.group_scope is GroupScope.PER_SENDER else None
    return (address.kind, address.channel, address.account, address.peer, address.thread, speaker)


@given(
    st.builds(settings, st.sampled_from(DmScope), st.sampled_from(GroupScope)), addresses, senders, addresses, senders
)
def test_two_messages_share_a_scope_exactly_when_the_settings_say_so(
    chosen: Settings, one: Address, his: Sender, other: Address, her: Sender
) -> None:
    same = meant(chosen, one, his) == meant(chosen, other, her)
    assert (scope(one, chosen, his) == scope(other, chosen, her)) is same


@given(addresses, senders)
def test_a_scope_key_is_plain_and_is_no_session_key(address: Address, sender: Sender) -> None:
    key = scope(address, settings(group_scope=GroupScope.PER_SENDER), sender)
    assert re.fullmatch(r"[A-Za-z0-9._@+=%:-]+", key)
    assert parse_key(key) == (key, 1)


links = st.dictionaries(
    st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.lists(st.tuples(slugs, ids), max_size=3), max_size=2
)


@given(addresses, senders, st.sampled_from(DmScope), st.sampled_from(GroupScope), links)
def test_the_scope_of_a_message_is_reachable(
    address: Address, sender: Sender, dm: DmScope, group: GroupScope, linked: dict[str, list[tuple[str, str]]]
) -> None:
    # An id belongs to one person.
    owners = {f"{channel}:{peer}": name for name, ids in linked.items() for channel, peer in ids}
    names = {name: tuple(each for each, owner in owners.items() if owner == name) for name in linked}
    # Without a channel in the key, a link of one channel hides the same id of all channels.
    if dm is DmScope.PER_PEER:
        names = {
            name: tuple(f"{address.channel}:{each.split(':', 1)[1]}" for each in ids) for name, ids in names.items()
        }
    session = SessionSettings.model_construct(dm_scope=dm, group_scope=group, identity_links=names)
    settings = Settings().model_copy(update={"session": session})
    try:
        scope = route(settings, address, sender).scope
    except Refused:
        return
    assert is_reachable(settings, scope)


@given(addresses, senders, addresses, senders, st.sampled_from(DmScope), st.sampled_from(GroupScope), links)
def test_a_scope_is_linked_only_with_direct_scopes_of_the_same_person(
    one: Address,
    his: Sender,
    other: Address,
    her: Sender,
    dm: DmScope,
    group: GroupScope,
    linked: dict[str, list[tuple[str, str]]],
) -> None:
    owners = {f"{channel}:{peer}": name for name, ids in linked.items() for channel, peer in ids}
    owners |= {f"{one.channel}:{one.peer}": "ann"} if one.kind is PeerKind.DIRECT else {}
    names = {name: tuple(each for each, owner in owners.items() if owner == name) for name in {*linked, "ann"}}
    session = SessionSettings.model_construct(dm_scope=dm, group_scope=group, identity_links=names)
    settings = Settings().model_copy(update={"session": session})
    try:
        scope, others = route(settings, one, his).scope, route(settings, other, her).scope
    except Refused:
        return
    found = linked_scopes(settings, scope)
    assert scope not in found
    if one.kind is not PeerKind.DIRECT:
        assert found == ()
    if others in found:
        person = owners.get(f"{one.channel}:{one.peer}")
        assert person is not None
        assert owners.get(f"{other.channel}:{other.peer}") == person
        assert other.kind is PeerKind.DIRECT
        assert scope in linked_scopes(settings, others)


LINKED = {"ada": ("telegram:42", "discord:7", "discord:8"), "bob": ("discord:9",)}


@pytest.mark.parametrize(
    ("dm_scope", "scope", "linked"),
    [
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:direct:~ada", ("agent:main:discord:direct:~ada",)),
        (DmScope.PER_CHANNEL_PEER, "agent:ops:discord:direct:~ada", ("agent:ops:telegram:direct:~ada",)),
        (DmScope.PER_CHANNEL_PEER, "agent:main:discord:direct:~bob", ()),
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:direct:5", ()),
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:direct:%7Eada", ()),
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:group:~ada", ()),
        (DmScope.PER_CHANNEL_PEER, "agent:main:telegram:group:5:sender:42", ()),
        (DmScope.PER_CHANNEL_PEER, "agent:main:irc:direct:~ada", ()),  # A link of an older configuration.
        (
            DmScope.PER_ACCOUNT_CHANNEL_PEER,
            "agent:main:telegram:default:direct:~ada",
            ("agent:main:discord:default:direct:~ada",),
        ),
        (DmScope.PER_PEER, "agent:main:direct:~ada", ()),
        (DmScope.MAIN, "agent:main:main", ()),
    ],
)
def test_the_linked_scopes_of_a_person_are_those_of_the_other_channels(
    dm_scope: DmScope, scope: str, linked: tuple[str, ...]
) -> None:
    chosen = Settings().model_copy(update={"session": SessionSettings(dm_scope=dm_scope, identity_links=LINKED)})
    assert linked_scopes(chosen, scope) == linked


@pytest.mark.parametrize(
    ("scope", "session"),
    [
        ("agent:main:telegram:direct:42", {"dm_scope": "main"}),
        ("agent:main:telegram:direct:42", {"dm_scope": "per-peer"}),
        ("agent:main:telegram:direct:42", {"dm_scope": "per-account-channel-peer"}),
        ("agent:main:main", {}),
        ("agent:main:telegram:direct:42", {"identity_links": {"ada": ("telegram:42", "discord:7")}}),
        ("agent:main:telegram:direct:~ada", {}),
        ("agent:main:irc:direct:a%3Ab", {"identity_links": {"ada": ("irc:a:b",)}}),
        ("agent:main:telegram:group:-5", {"group_scope": "per-sender"}),
        ("agent:main:telegram:group:-5:sender:42", {}),
    ],
)
def test_a_changed_setting_hides_a_scope(scope: str, session: dict[str, object]) -> None:
    assert not is_reachable(Settings(session=SessionSettings.model_validate(session)), scope)
