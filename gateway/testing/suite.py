"""The contract suite: what the core relies on, whatever the platform. It needs pytest and pytest-asyncio.

In your tests, with `asyncio_mode = "auto"`:

    class TestPigeon(ChannelContract):
        @pytest.fixture
        async def far_side(self, core: Core) -> AsyncIterator[FarSide]:
            ...  # a running channel whose messages go to `core.deliver`, and a person on its platform
"""

from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.contract import Attachment, Enclosure, FetchesFiles, Outbound, OutboundKind, SendsFiles, Verdict
from gateway.errors import ChannelError, NotAccepted
from gateway.testing.doubles import Core
from gateway.testing.far_side import NOT_TAKEN, FarSide, GetsFiles, HandsOverFiles

__all__ = ["ChannelContract"]

TEXTS = ["🏳️‍🌈 и 日本語", "a\u2028b\u0085c", "<b>&amp;</b> ```x``` [l](javascript:1)", "x" * 1_900]
CONTENT = bytes(range(256)) * 1_000


class ChannelContract:
    """Derive from it, and give it a fixture `far_side`.

    What only some channels can is asked of those that can: files in (`HandsOverFiles`) and out (`GetsFiles`).
    """

    @pytest.fixture
    def core(self) -> Core:
        return Core()

    async def test_what_is_said_reaches_the_core_with_all_that_a_reply_needs(
        self, far_side: FarSide, core: Core
    ) -> None:
        assert await far_side.say("hello", "e1") == Verdict.ACCEPTED
        (taken,) = core.taken
        assert (taken.text, taken.address) == ("hello", far_side.address)
        assert taken.sender.id
        assert taken.event_id
        assert taken.sent_at.tzinfo is not None

    async def test_it_is_acknowledged_only_once_the_core_has_it(self, far_side: FarSide, core: Core) -> None:
        core.verdict = NotAccepted("the disk is full")
        assert await far_side.say("hello", "e1") == NOT_TAKEN
        core.verdict = Verdict.ACCEPTED
        assert await far_side.say("hello", "e1") == Verdict.ACCEPTED

    async def test_a_repeated_event_has_the_same_id(self, far_side: FarSide, core: Core) -> None:
        await far_side.say("hello", "e1")
        await far_side.say("hello", "e1")
        await far_side.say("hello", "e2")
        first, second, third = (taken.event_id for taken in core.taken)
        assert first == second != third

    async def test_order_is_kept(self, far_side: FarSide, core: Core) -> None:
        for number in range(10):
            await far_side.say(f"message {number}", f"e{number}")
        assert [taken.text for taken in core.taken] == [f"message {number}" for number in range(10)]

    async def test_what_is_sent_is_heard_and_receipted(self, far_side: FarSide) -> None:
        reply = Outbound(address=far_side.address, text="good day", kind=OutboundKind.REPLY, session=1)
        receipt = await far_side.channel.send(reply, key="k1")
        assert receipt.message_id
        assert await far_side.hear() == "good day"

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_arrives_as_it_is(self, far_side: FarSide, core: Core, text: str) -> None:
        await far_side.say(text, "e1")
        assert core.taken[0].text == text
        await far_side.channel.send(Outbound(address=far_side.address, text=text), key="k1")
        assert await far_side.hear() == text

    async def test_it_says_who_it_is_and_what_fits(self, far_side: FarSide) -> None:
        channel = far_side.channel
        assert channel.name == far_side.address.channel
        assert channel.account == far_side.address.account
        assert channel.text_limit.size > 0
        assert channel.text_limit.measure("abc") == len("abc")

    @pytest.mark.parametrize("text", ["look", ""])
    async def test_a_file_that_came_can_be_read_as_often_as_need_be(
        self, far_side: FarSide, core: Core, text: str
    ) -> None:
        channel, person = _fetching(far_side)
        assert await person.say_with_file(text, "e1", name="note.txt", content=CONTENT) == Verdict.ACCEPTED
        (taken,) = core.taken
        (attachment,) = taken.attachments
        assert (taken.text, attachment.name) == (text, "note.txt")
        async with aclosing(channel.fetch(attachment, taken.address)) as begun:
            assert CONTENT.startswith(await anext(begun))
        for _ in range(2):
            assert await _read(channel, attachment, far_side) == CONTENT

    async def test_a_file_that_is_not_there_says_so(self, far_side: FarSide, core: Core) -> None:
        channel, person = _fetching(far_side)
        await person.say_with_file("look", "e1", name="note.txt", content=CONTENT)
        lost = replace(core.taken[0].attachments[0], ref="no such thing")
        with pytest.raises(ChannelError):
            await _read(channel, lost, far_side)

    async def test_a_file_is_sent_and_receipted(self, far_side: FarSide, tmp_path: Path) -> None:
        channel = far_side.channel
        if not isinstance(channel, SendsFiles):
            pytest.skip("it sends no files")
        assert isinstance(far_side, GetsFiles), "The channel sends files, so its far side has to get them."
        assert channel.max_file_bytes > len(CONTENT)
        path = tmp_path / "kept"
        path.write_bytes(CONTENT)
        file = Enclosure(name="note.txt", media_type="text/plain", size=len(CONTENT), ref="a-ref")
        message = Outbound(address=far_side.address, text="", kind=OutboundKind.REPLY, file=file)
        receipt = await channel.send_file(message, path, key="k1")
        assert receipt.message_id
        assert await far_side.get_file() in {CONTENT, None}


def _fetching(far_side: FarSide) -> tuple[FetchesFiles, HandsOverFiles]:
    channel = far_side.channel
    if not isinstance(channel, FetchesFiles):
        pytest.skip("it fetches no files")
    assert isinstance(far_side, HandsOverFiles), "The channel fetches files, so its far side has to hand them over."
    return channel, far_side


async def _read(channel: FetchesFiles, attachment: Attachment, far_side: FarSide) -> bytes:
    async with aclosing(channel.fetch(attachment, far_side.address)) as file:
        return b"".join([chunk async for chunk in file])
