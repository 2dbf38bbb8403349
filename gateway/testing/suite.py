"""The contract suite: the behaviour that the core expects of every channel. It needs pytest and pytest-asyncio.

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

TEXTS = ["🏳️‍🌈 и 日本語", "a\u2028b\u0085c", "<b>&amp;</b> ```x``` [l](javascript:1)", "x" * 1_900]
CONTENT = bytes(range(256)) * 1_000


class ChannelContract:
    """Derive a test class from it, with a fixture `far_side`.

    Tests of files run only for channels that fetch files (`HandsOverFiles`) or send files (`GetsFiles`).
    """

    @pytest.fixture
    def core(self) -> Core:
        return Core()

    async def test_a_message_reaches_the_core_with_everything_that_a_reply_needs(
        self, far_side: FarSide, core: Core
    ) -> None:
        assert await far_side.say("hello", "e1") == Verdict.ACCEPTED
        (taken,) = core.taken
        assert (taken.text, taken.address) == ("hello", far_side.address)
        assert taken.sender.id
        assert taken.event_id
        assert taken.sent_at.tzinfo is not None

    async def test_a_message_is_acknowledged_only_after_the_core_has_accepted_it(
        self, far_side: FarSide, core: Core
    ) -> None:
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

    async def test_messages_arrive_in_order(self, far_side: FarSide, core: Core) -> None:
        for number in range(10):
            await far_side.say(f"message {number}", f"e{number}")
        assert [taken.text for taken in core.taken] == [f"message {number}" for number in range(10)]

    async def test_a_sent_message_arrives_and_has_a_receipt(self, far_side: FarSide) -> None:
        reply = Outbound(address=far_side.address, text="good day", kind=OutboundKind.REPLY, session=1)
        receipt = await far_side.channel.send(reply, key="k1")
        assert receipt.message_id
        assert await far_side.hear() == "good day"

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_arrives_unchanged(self, far_side: FarSide, core: Core, text: str) -> None:
        await far_side.say(text, "e1")
        assert core.taken[0].text == text
        await far_side.channel.send(Outbound(address=far_side.address, text=text), key="k1")
        assert await far_side.hear() == text

    async def test_the_channel_has_an_identity_and_a_text_limit(self, far_side: FarSide) -> None:
        channel = far_side.channel
        assert channel.name == far_side.address.channel
        assert channel.account == far_side.address.account
        assert channel.text_limit.size > 0
        assert channel.text_limit.measure("abc") == len("abc")

    @pytest.mark.parametrize("text", ["look", ""])
    async def test_a_received_file_can_be_read_several_times(self, far_side: FarSide, core: Core, text: str) -> None:
        channel, person = _fetching(far_side)
        assert await person.say_with_file(text, "e1", name="note.txt", content=CONTENT) == Verdict.ACCEPTED
        (taken,) = core.taken
        (attachment,) = taken.attachments
        assert (taken.text, attachment.name) == (text, "note.txt")
        async with aclosing(channel.fetch(attachment, taken.address)) as begun:
            assert CONTENT.startswith(await anext(begun))
        for _ in range(2):
            assert await _read(channel, attachment, far_side) == CONTENT

    async def test_a_missing_file_raises_a_channel_error(self, far_side: FarSide, core: Core) -> None:
        channel, person = _fetching(far_side)
        await person.say_with_file("look", "e1", name="note.txt", content=CONTENT)
        lost = replace(core.taken[0].attachments[0], ref="no such thing")
        with pytest.raises(ChannelError):
            await _read(channel, lost, far_side)

    async def test_a_sent_file_arrives_and_has_a_receipt(self, far_side: FarSide, tmp_path: Path) -> None:
        channel = far_side.channel
        if not isinstance(channel, SendsFiles):
            pytest.skip("the channel sends no files")
        assert isinstance(far_side, GetsFiles), "The channel sends files, so its far side must implement GetsFiles."
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
        pytest.skip("the channel fetches no files")
    assert isinstance(far_side, HandsOverFiles), (
        "The channel fetches files, so its far side must implement HandsOverFiles."
    )
    return channel, far_side


async def _read(channel: FetchesFiles, attachment: Attachment, far_side: FarSide) -> bytes:
    async with aclosing(channel.fetch(attachment, far_side.address)) as file:
        return b"".join([chunk async for chunk in file])
