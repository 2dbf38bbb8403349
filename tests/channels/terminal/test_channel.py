import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from channels.terminal import open_channel
from channels.terminal.channel import PATH, TerminalChannel
from gateway.contract import (
    Access,
    Address,
    Caller,
    Drafts,
    EarlierMessage,
    Enclosure,
    HasRoutes,
    OffersButtons,
    Outbound,
    OutboundKind,
    PeerKind,
    SentMessage,
    Verdict,
)
from gateway.testing import Core, StubBrowser, StubPulse
from tests.channels.websocket.harness import context, frame, running, say, serving

ADA = Caller(name="ada", is_owner=True)


def _channel(pulse: StubPulse | None = None, browser: StubBrowser | None = None) -> TerminalChannel:
    channel = open_channel(context(browser or StubBrowser(), pulse or StubPulse(), name="terminal"))
    assert isinstance(channel, TerminalChannel)
    return channel


async def test_the_route_is_on_the_control_socket_only() -> None:
    [route] = _channel().routes()
    assert (route.method, route.path, route.access) == ("GET", PATH, Access.CONTROL)


async def test_shows_drafts_and_offers_no_buttons() -> None:
    channel = _channel()
    assert isinstance(channel, Drafts)
    assert isinstance(channel, HasRoutes)
    assert not isinstance(channel, OffersButtons)
    assert (channel.name, channel.account) == ("terminal", "default")
    assert channel.text_limit.size >= 100_000


async def test_a_file_is_named_with_its_place(tmp_path: Path) -> None:
    pulse, core = StubPulse(), Core()
    channel = _channel(pulse)
    async with running(channel, core, pulse), serving(channel.routes(), ADA) as client, client.ws_connect(PATH) as ada:
        await say(ada, "draw")
        await frame(ada, "ack")
        fox = Enclosure(name="fox.png", media_type="image/png", size=7, ref="x/fox.png")
        answer = Outbound(address=core.taken[0].address, text="", kind=OutboundKind.REPLY, file=fox)
        await channel.send_file(answer, tmp_path / "fox.png", key="t1.1")
        assert (await frame(ada, "message"))["text"] == f"[file: fox.png, stored as {tmp_path / 'fox.png'}]"


async def test_the_unix_user_is_the_peer_and_gets_plain_text() -> None:
    pulse, core = StubPulse(), Core()
    channel = _channel(pulse)
    async with running(channel, core, pulse), serving(channel.routes(), ADA) as client, client.ws_connect(PATH) as ada:
        await say(ada, "*hello*")
        assert (await frame(ada, "ack"))["verdict"] == "accepted"
        [heard] = core.taken
        assert (heard.address.channel, heard.address.peer, heard.sender.is_owner) == ("terminal", "ada", True)
        answer = Outbound(address=heard.address, text="*hi*", kind=OutboundKind.REPLY, reply_to=heard.message_id)
        await channel.draft(replace(answer, text="*h"), key="t1")
        assert (await frame(ada, "draft"))["text"] == "*h"
        await channel.send(answer, key="t1")
        message = await frame(ada, "message")
    assert (message["text"], message["reply_to"]) == ("*hi*", "m1")
    assert "html" not in message


async def test_an_answer_waits_for_a_disconnected_client() -> None:
    """The client resends its message, learns that it is a duplicate, and would wait forever."""
    pulse, core = StubPulse(), Core()
    channel = _channel(pulse)
    ada = Address(channel="terminal", kind=PeerKind.DIRECT, peer="ada")
    await channel.send(Outbound(address=ada, text="hi", kind=OutboundKind.REPLY, reply_to="m1"), key="t1")
    async with running(channel, core, pulse), serving(channel.routes(), ADA) as client, client.ws_connect(PATH) as back:
        message = await frame(back, "message")
    assert (message["text"], message["reply_to"]) == ("hi", "m1")


async def test_a_resent_message_gets_its_answer_after_another_terminal_took_the_mailbox() -> None:
    """Two terminals reconnect at the same time, and the one that has asked nothing empties the mailbox."""
    pulse, core = StubPulse(), Core(verdict=Verdict.DUPLICATE)
    browser = StubBrowser()
    channel = _channel(pulse, browser)
    ada = Address(channel="terminal", kind=PeerKind.DIRECT, peer="ada")
    answer = Outbound(address=ada, text="hi", kind=OutboundKind.REPLY, reply_to="m1")
    await channel.send(answer, key="t1")
    sent = SentMessage(key="t1", message=answer, at=datetime.now(UTC))
    browser.earlier_messages["m1"] = EarlierMessage(turn="t1", session=1, answers=(sent,))
    async with (
        running(channel, core, pulse),
        serving(channel.routes(), ADA) as client,
        client.ws_connect(PATH) as other,
    ):
        assert (await frame(other, "message"))["key"] == "t1"
        async with client.ws_connect(PATH) as asking:
            await say(asking, "hello")
            assert (await frame(asking, "ack"))["verdict"] == "duplicate"
            message = await frame(asking, "message")
    assert (message["key"], message["reply_to"]) == ("t1", "m1")


def test_the_daemon_does_not_import_prompt_toolkit() -> None:
    check = "import sys, channels.terminal; sys.exit('prompt_toolkit' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
