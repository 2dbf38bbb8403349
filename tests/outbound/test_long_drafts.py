"""An answer that outgrows a message: the message is finished, and the stream goes on in the next one."""

import asyncio
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gateway.contract import Outbound, PeerKind, Receipt
from gateway.outbound.delivery import part_size
from gateway.spool import Spool
from gateway.text import split
from tests.outbound.harness import ADDRESS, HELLO, Time, Wire, posting
from tests.polling import until

GROUP = replace(HELLO, address=replace(ADDRESS, kind=PeerKind.GROUP))


class Chat(Wire):
    """A chat that shows drafts in direct chats, and whose messages can be edited. It keeps what a person sees."""

    draft_pace = 0.0
    edit_pace = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, str] = {}
        self.draft_text = ""
        self.hidden: list[str] = []
        """Texts that a person could read, and that then disappeared."""

    def can_draft(self, address: object) -> bool:
        return getattr(address, "kind", None) is PeerKind.DIRECT

    async def draft(self, message: Outbound, *, key: str) -> None:
        del key
        assert self.text_limit.measure(message.text) <= self.text_limit.size
        if not message.text.startswith(self.draft_text) and self.draft_text not in "".join(self.messages.values()):
            self.hidden.append(self.draft_text)
        self.draft_text = message.text

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        receipt = await super().send(message, key=key)
        self.messages[key] = message.text
        return receipt

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        assert message.text != self.messages[receipt.message_id], "An edit that changes nothing costs a request."
        if not message.text.startswith(self.messages[receipt.message_id].rstrip()):
            self.hidden.append(self.messages[receipt.message_id])
        self.messages[receipt.message_id] = message.text

    def shows(self, text: str) -> bool:
        return text in "".join([*self.messages.values(), self.draft_text])


WORDS = [f"word{number:02} " for number in range(60)]
TEXT = "".join(WORDS)


async def stream(folder: Path, template: Outbound) -> Chat:
    """Stream the text word by word, and then send it."""
    chat = Chat()
    async with posting(folder, chat) as post:
        async with post.delivery.stream_draft(template, turn="t") as draft:
            so_far: list[str] = []
            for word in WORDS:
                so_far.append(word)
                draft.show([], so_far)
                await until(partial(chat.shows, word.strip()))
        await post.say(replace(template, text=TEXT), "t", turn="t")
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
    return chat


async def test_drafts_go_on_in_a_next_message_and_hide_nothing(tmp_path: Path) -> None:
    chat = await stream(tmp_path, HELLO)
    assert chat.hidden == []
    assert list(chat.messages.values()) == split(TEXT, part_size(chat.text_limit))


async def test_an_edited_message_goes_on_in_a_next_message(tmp_path: Path) -> None:
    chat = await stream(tmp_path, GROUP)
    assert chat.hidden == []
    assert list(chat.messages.values()) == split(TEXT, part_size(chat.text_limit))


async def test_messages_from_before_a_crash_are_edited_to_the_final_parts(tmp_path: Path) -> None:
    chat = Chat()
    async with posting(tmp_path, chat) as post, post.delivery.stream_draft(GROUP, turn="t") as draft:
        draft.show([TEXT])
        await until(lambda: len(chat.messages) > 3)
        await until(lambda: _stored(post.spool, 3))
    shown = len(chat.messages)
    async with posting(tmp_path, chat) as post:
        post.delivery.restore_drafts((await post.spool.recover()).drafts)
        assert post.delivery.streamed_parts("t") == shown
        other = TEXT.replace("word", "WORD")
        await post.say(replace(GROUP, text=other), "t", turn="t")
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
    assert list(chat.messages.values()) == split(other, part_size(chat.text_limit))


async def test_drafts_that_no_part_replaces_are_forgotten(tmp_path: Path) -> None:
    chat = Chat()
    async with posting(tmp_path, chat, time=Time()) as post:
        async with post.delivery.stream_draft(GROUP, turn="t") as draft:
            draft.show([TEXT])
            await until(lambda: len(chat.messages) > 3)
        parts = post.delivery.compose(HELLO, key="t", turn="t")
        await post.spool.commit(*parts, *post.delivery.forget_drafts("t", parts))
        post.delivery.post(parts)
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
        assert post.delivery.streamed_parts("t") == 0


async def test_an_answer_that_becomes_a_file_is_not_streamed_to_its_end(tmp_path: Path) -> None:
    chat = Chat()
    async with posting(tmp_path, chat, max_parts=3) as post:
        async with post.delivery.stream_draft(GROUP, turn="t") as draft:
            draft.show([TEXT])
            await until(lambda: len(chat.messages) == 2)
            for _ in range(100):
                await asyncio.sleep(0)
        assert len(chat.messages) <= 3


async def _stored(spool: Spool, number: int) -> bool:
    found = await spool.recover()
    return len([receipt for receipt in found.drafts.values() if receipt is not None]) >= number
