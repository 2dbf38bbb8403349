"""How files of an answer reach their chat, or why they do not."""

from pathlib import Path

from msgspec.structs import replace

from gateway.contract import Enclosure
from gateway.errors import Refused, Transient, Undeliverable
from gateway.outbound.delivery import POSSIBLY_REPEATED
from tests.outbound.harness import HELLO, FileWire, Post, Wire, posting

REPORT = Enclosure(name="report.pdf", media_type="application/pdf", size=1500, ref="s/report.pdf")


async def store(ref: str) -> Path:
    if ref != REPORT.ref:
        raise Refused("The file is not kept any more.")
    return Path("/kept") / ref


async def send(post: Post, *files: Enclosure) -> None:
    parts = post.delivery.compose(HELLO, key="k", turn="k", files=files)
    await post.spool.commit(*parts)
    post.delivery.post(parts)
    await post.arrived()


async def test_a_file_follows_the_text_under_its_own_key(tmp_path: Path) -> None:
    wire = FileWire()
    async with posting(tmp_path, wire, file_path=store) as post:
        await send(post, REPORT)
        assert await post.states() == {}
    assert wire.texts == ["hello"]
    assert wire.files == [("k.file1", "", Path("/kept/s/report.pdf"))]


async def test_a_message_with_a_text_and_a_file_is_sent_as_both(tmp_path: Path) -> None:
    """Its parts are committed before the first send, so they are the same after a restart."""
    wire = FileWire()
    async with posting(tmp_path, wire, file_path=store) as post:
        await post.spool.commit(*post.delivery.compose(replace(HELLO, file=REPORT), key="k", turn="k"))
        for row in (await post.spool.recover()).outbox:
            post.delivery.recover(row)
        await post.arrived()
    assert [text.removeprefix(POSSIBLY_REPEATED) for text in wire.texts] == ["hello"]
    assert wire.files == [("k.file1", "", Path("/kept/s/report.pdf"))]


async def test_a_file_whose_first_send_may_have_arrived_is_marked(tmp_path: Path) -> None:
    wire = FileWire(Transient("the answer was lost", may_have_arrived=True))
    async with posting(tmp_path, wire, file_path=store) as post:
        await send(post, REPORT)
    assert [text for _, text, _ in wire.files] == [POSSIBLY_REPEATED]


async def test_a_rejected_file_is_replaced_by_a_note(tmp_path: Path) -> None:
    wire = FileWire(Undeliverable("Telegram found the message too large."))
    async with posting(tmp_path, wire, file_path=store) as post:
        await send(post, REPORT)
        assert await post.states() == {}
    assert wire.texts[1] == "(I couldn't send the file report.pdf, 1.5 kB: Telegram found the message too large.)"


async def test_a_file_that_no_longer_exists_is_replaced_by_a_note(tmp_path: Path) -> None:
    wire = FileWire()
    async with posting(tmp_path, wire) as post:
        await send(post, REPORT)
    assert "report.pdf" in wire.texts[1]
    assert wire.files == []


async def test_a_channel_without_files_gets_a_note_instead(tmp_path: Path) -> None:
    wire = Wire()
    async with posting(tmp_path, wire, file_path=store) as post:
        await send(post, REPORT)
    assert "".join(wire.texts).startswith("hello")
    assert "report.pdf, 1.5 kB" in " ".join(wire.texts)
