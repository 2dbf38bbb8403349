"""Albums that come by webhook, and the registration of the webhook."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from channels.telegram.api import BotApi
from channels.telegram.updates import UpdateHandler
from channels.telegram.webhook_receiver import (
    ABANDONED_AFTER,
    ALBUM_QUIET_TIME,
    WebhookAlbums,
    WebhookRegistration,
)
from config import ChannelSettings, Secret
from gateway.adapters.services import InMemoryStore
from gateway.contract import Address, Deliver, Inbound, Notebook, Sender, Verdict
from gateway.errors import AuthRejected, HeldElsewhere, NotAccepted
from gateway.testing import StubBrowser
from tests.channels.telegram.bot_api import TEST_TIMEOUT, TOKEN, FakeBotApi, album_part, refusal, text_update
from tests.channels.telegram.harness import PulseRecorder, channel_context


@asynccontextmanager
async def collecting(
    api: FakeBotApi, deliver: Deliver, notebook: Notebook, sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[WebhookAlbums]:
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        BotApi(Secret(TOKEN), api.url) as bot,
        UpdateHandler(bot, channel_context(ChannelSettings()), deliver) as handler,
    ):
        albums = WebhookAlbums(handler, notebook, sleep=sleep)
        await albums.resume()
        yield albums


class OwningBrowser(StubBrowser):
    """The browser of a node that owns only the chats of some people."""

    is_shared = True

    def __init__(self, *owned: str) -> None:
        super().__init__()
        self.owned = set(owned)

    def require_here(self, address: Address, _sender: Sender) -> None:
        if address.peer not in self.owned:
            raise HeldElsewhere(address.peer)

    def watched(self, address: Address, sender: Sender, _on_moved: Callable[[], None]) -> AbstractContextManager[None]:
        self.require_here(address, sender)
        return nullcontext()


@asynccontextmanager
async def collecting_in_cluster(
    api: FakeBotApi,
    deliver: Deliver,
    notebook: Notebook,
    browser: OwningBrowser,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncIterator[WebhookAlbums]:
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        BotApi(Secret(TOKEN), api.url) as bot,
        UpdateHandler(bot, replace(channel_context(ChannelSettings()), browser=browser), deliver) as handler,
    ):
        albums = WebhookAlbums(handler, notebook, is_in_cluster=True, sleep=sleep)
        handler.run_in_background(albums.deliver_abandoned(), name="abandoned")
        yield albums


async def test_in_a_cluster_the_owner_of_a_chat_collects_its_albums_and_others_finish_them(api: FakeBotApi) -> None:
    notebook, delivered = InMemoryStore(), asyncio.Queue[list[str]]()
    may_look = asyncio.Semaphore(0)

    async def sleep(delay: float) -> None:
        if delay != ABANDONED_AFTER:
            await asyncio.Event().wait()
        await may_look.acquire()

    async def deliver(inbound: Inbound) -> Verdict:
        delivered.put_nowait([file.ref for file in inbound.attachments])
        return Verdict.ACCEPTED

    owner, other = OwningBrowser("42"), OwningBrowser()
    async with collecting_in_cluster(api, deliver, notebook, other, sleep) as survivor:
        async with collecting_in_cluster(api, deliver, notebook, owner, sleep) as dying:
            with pytest.raises(HeldElsewhere):
                await survivor.receive(json.dumps(album_part(1)))
            for number in (1, 2):
                await dying.receive(json.dumps(album_part(number)))
        other.owned.add("42")
        assert delivered.empty()
        may_look.release()
        may_look.release()
        assert await delivered.get() == ["photo1", "photo2"]
        await survivor.receive(json.dumps(album_part(2)))
    assert delivered.empty()
    assert list(await notebook.read()) == ["album:42:A"]


async def test_an_album_interrupted_by_a_restart_is_still_one_message(api: FakeBotApi) -> None:
    """A part that Telegram sends again, because its acknowledgement was lost, changes nothing."""
    notebook, delivered, attempts = InMemoryStore(), list[list[str]](), list[Inbound]()
    quiet = asyncio.Event()

    async def sleep(delay: float) -> None:
        if delay == ALBUM_QUIET_TIME:
            await quiet.wait()

    async def deliver(inbound: Inbound) -> Verdict:
        attempts.append(inbound)
        if len(attempts) == 1:
            raise NotAccepted("The disk is full.")
        delivered.append([file.ref for file in inbound.attachments] or [inbound.text])
        return Verdict.ACCEPTED

    async with collecting(api, deliver, notebook, sleep) as albums:
        await albums.receive(json.dumps(album_part(1)))
        await albums.receive(json.dumps(album_part(2)))
    assert not attempts
    async with collecting(api, deliver, notebook, sleep) as albums:
        await albums.receive(json.dumps(album_part(2)))
        await albums.receive(json.dumps(album_part(3)))
        quiet.set()
        with pytest.raises(NotAccepted):
            await albums.receive(json.dumps(text_update("and?", 5)))
        await albums.receive(json.dumps(text_update("and?", 5)))
    async with collecting(api, deliver, notebook, sleep) as albums:
        await albums.receive(json.dumps(album_part(2)))
        await albums.receive(json.dumps(album_part(4)))
    assert delivered == [["photo1", "photo2", "photo3"], ["and?"], ["photo4"]]
    assert list(await notebook.read()) == ["album:42:A"]


async def test_an_album_of_ten_parts_is_delivered_at_once(api: FakeBotApi) -> None:
    sizes: list[int] = []

    async def sleep(_: float) -> None:
        await asyncio.Event().wait()

    async def deliver(inbound: Inbound) -> Verdict:
        sizes.append(len(inbound.attachments))
        return Verdict.ACCEPTED

    async with collecting(api, deliver, InMemoryStore(), sleep) as albums:
        for number in range(1, 11):
            await albums.receive(json.dumps(album_part(number)))
    assert sizes == [10]


async def keep_registered(api: FakeBotApi, pulse: PulseRecorder) -> list[float]:
    """Keep the webhook registered until the token is revoked. Returns the delays that were made."""
    delays: list[float] = []

    async def sleep(delay: float) -> None:
        delays.append(delay)

    async with asyncio.timeout(TEST_TIMEOUT), BotApi(Secret(TOKEN), api.url) as bot:
        registration = WebhookRegistration(
            api=bot, pulse=pulse, url="http://here/", secret=Secret("x" * 20), sleep=sleep
        )
        with pytest.raises(AuthRejected):
            await registration.run()
    return delays


async def test_readiness_shows_that_telegram_cannot_reach_the_webhook(api: FakeBotApi) -> None:
    pulse, revoked = PulseRecorder(), refusal(401, "Unauthorized")
    api.webhook_failure = "Wrong response from the webhook: 421 Misdirected Request"
    api.pending.append({"update_id": 1})
    fine = {"url": "http://here/", "has_custom_certificate": False, "pending_update_count": 0}
    replaced = {**fine, "url": "http://elsewhere/"}
    api.scripted["setWebhook"] += [refusal(500, "ill"), refusal(429, "Too Many Requests", retry_after=17)]
    api.scripted["getWebhookInfo"] += [(200, {"ok": True, "result": info}) for info in (fine, replaced)]
    registering = asyncio.create_task(keep_registered(api, pulse), name="register")
    await pulse.wait_for(lambda beat: "421" in beat)
    api.scripted["getWebhookInfo"].append(revoked)
    delays = await registering
    assert delays[:4] == [1, 17, 45, 45]
    assert pulse.states[2] == "up"
    assert "Another program" in pulse.states[3]
    assert len(api.calls_of("setWebhook")) >= 4


@pytest.mark.parametrize("body", ["", "no json", "[]", '{"update_id": "x"}'])
async def test_a_call_without_an_update_id_is_reported_and_changes_nothing(api: FakeBotApi, body: str) -> None:
    notebook, delivered = InMemoryStore(), list[Inbound]()

    async def deliver(inbound: Inbound) -> Verdict:
        delivered.append(inbound)
        return Verdict.ACCEPTED

    async with collecting(api, deliver, notebook, asyncio.sleep) as albums:
        with capture_logs() as logs:
            await albums.receive(body)
    assert [log["event"] for log in logs] == ["updates_without_id_skipped"]
    assert not delivered
    assert not await notebook.read()
