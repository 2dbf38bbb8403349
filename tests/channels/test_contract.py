"""One suite for every channel: what the core may rely on, whatever the platform."""

from collections.abc import AsyncIterator
from importlib.metadata import entry_points

import pytest

from gateway.contract import Outbound, OutboundKind, Verdict
from gateway.errors import Transient
from tests.channels.far_sides import FAR_SIDES, NOT_TAKEN, FarSide
from tests.channels.sockets.serving import Core


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture(params=sorted(FAR_SIDES))
async def far_side(request: pytest.FixtureRequest, core: Core) -> AsyncIterator[FarSide]:
    async with FAR_SIDES[request.param](core) as far_side:
        yield far_side


async def test_what_is_said_reaches_the_core_with_all_that_a_reply_needs(far_side: FarSide, core: Core) -> None:
    assert await far_side.say("hello", "e1") == Verdict.ACCEPTED
    (taken,) = core.taken
    assert (taken.text, taken.address) == ("hello", far_side.address)
    assert taken.sender.id
    assert taken.event_id
    assert taken.sent_at.tzinfo is not None


async def test_it_is_acknowledged_only_once_the_core_has_it(far_side: FarSide, core: Core) -> None:
    core.verdict = Transient("the disk is full")
    assert await far_side.say("hello", "e1") == NOT_TAKEN
    core.verdict = Verdict.ACCEPTED
    assert await far_side.say("hello", "e1") == Verdict.ACCEPTED


async def test_a_repeated_event_has_the_same_id(far_side: FarSide, core: Core) -> None:
    await far_side.say("hello", "e1")
    await far_side.say("hello", "e1")
    await far_side.say("hello", "e2")
    first, second, third = (taken.event_id for taken in core.taken)
    assert first == second != third


async def test_order_is_kept(far_side: FarSide, core: Core) -> None:
    for number in range(10):
        await far_side.say(f"message {number}", f"e{number}")
    assert [taken.text for taken in core.taken] == [f"message {number}" for number in range(10)]


async def test_what_is_sent_is_heard_and_receipted(far_side: FarSide) -> None:
    reply = Outbound(address=far_side.address, text="good day", kind=OutboundKind.REPLY, session=1)
    receipt = await far_side.channel.send(reply, key="k1")
    assert receipt.message_id
    assert await far_side.hear() == "good day"


@pytest.mark.parametrize(
    "text", ["🏳️‍🌈 и 日本語", "a\u2028b\u0085c", "<b>&amp;</b> ```x``` [l](javascript:1)", "x" * 1_900]
)
async def test_text_arrives_as_it_is(far_side: FarSide, core: Core, text: str) -> None:
    await far_side.say(text, "e1")
    assert core.taken[0].text == text
    await far_side.channel.send(Outbound(address=far_side.address, text=text), key="k1")
    assert await far_side.hear() == text


async def test_it_says_who_it_is_and_what_fits(far_side: FarSide) -> None:
    channel = far_side.channel
    assert channel.name == far_side.address.channel
    assert channel.account == "default"
    assert channel.text_limit.size > 0
    assert channel.text_limit.measure("abc") == 3


def test_every_built_in_channel_has_joined() -> None:
    """Those with a platform of their own to fake join in their own tests."""
    built_in = {point.name for point in entry_points(group="gatehouse.channels") if point.value.startswith("channels.")}
    assert built_in - {"discord", "telegram"} == set(FAR_SIDES)
