"""A bot that Telegram calls: who may call, what is answered when, and that it is set and removed by itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.telegram import open_channel
from channels.telegram.albums import Arrived
from channels.telegram.api import BotApi
from channels.telegram.gathering import QUIET, gathering
from channels.telegram.listening import Listener
from config import ChannelSettings, GatewaySettings, HttpSettings, Secret, Settings
from gateway.contract import ChannelContext
from gateway.daemon import Daemon, opened
from gateway.errors import AuthRejected, CannotStart, Transient
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.telegram.bot_api import ADA, BOB, PATIENCE, TOKEN, FakeBotApi, bot_api, refusal
from tests.channels.telegram.running import Beats

PATH = "/telegram/default/webhook"
HEADER = "X-Telegram-Bot-Api-Secret-Token"

Json = dict[str, Any]  # What travels is of any shape.


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as api:
        yield api


def settings(folder: Path, api: FakeBotApi) -> Settings:
    telegram = {
        "token": TOKEN,
        "api_base": api.url,
        "allow": [ADA["id"]],
        "options": {"webhook_url": "http://127.0.0.1/"},
    }
    return Settings.model_validate(
        {
            "gateway": GatewaySettings(data_dir=folder / "data"),
            "http": HttpSettings(port=0),
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "telegram": telegram},
        }
    )


@asynccontextmanager
async def gateway(configured: Settings) -> AsyncIterator[tuple[Daemon, aiohttp.ClientSession]]:
    async with asyncio.timeout(PATIENCE), opened(configured) as daemon, asyncio.TaskGroup() as tasks:
        started = asyncio.Event()
        tasks.create_task(daemon.run(started.set), name="daemon")
        await started.wait()
        async with aiohttp.ClientSession(daemon.url) as client:
            yield daemon, client
        daemon.stop()


def said(text: str, number: int, sender: Json = ADA) -> Json:
    chat = {"id": sender["id"], "type": "private", "first_name": sender["first_name"]}
    message = {"message_id": number, "date": 4_000_000_000, "chat": chat, "from": sender, "text": text}
    return {"update_id": number, "message": message}


def part_of_an_album(number: int) -> Json:
    update = said("", number)
    photo = {"file_id": f"photo{number}", "file_unique_id": f"U{number}", "width": 1, "height": 1}
    update["message"] |= {"media_group_id": "A", "photo": [photo], "caption": f"look {number}"}
    del update["message"]["text"]
    return update


async def call(client: aiohttp.ClientSession, secret: str | None, update: Json) -> int:
    headers = {} if secret is None else {HEADER: secret}
    async with client.post(PATH, json=update, headers=headers) as response:
        return response.status


async def test_what_telegram_sends_is_answered_once_and_a_stranger_gets_nothing(
    tmp_path: Path, api: FakeBotApi
) -> None:
    async with gateway(settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        assert api.webhook == f"http://127.0.0.1{PATH}"
        assert api.calls_of("setWebhook")[0].fields["drop_pending_updates"] == "false"
        for wrong in (None, "", "wrong", "\xe4", api.secret[:-1], f"{api.secret}x"):
            assert await call(client, wrong, said("let me in", 1)) == 401
        async with client.get(PATH, headers={HEADER: api.secret}) as response:
            assert response.status == 405
        assert await call(client, api.secret, said("/new One", 2)) == 200
        assert await call(client, api.secret, said("/new One", 2)) == 200
        assert "One" in (await api.called("sendMessage")).fields["text"]
        for nonsense in ({}, {"update_id": "x"}, {"update_id": 3, "message": {"text": 1}}):
            assert await call(client, api.secret, nonsense) == 200
        old = api.secret
    assert api.webhook == ""
    async with gateway(settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo", times=2)
        assert await call(client, old, said("/new Two", 4)) == 401
        assert await call(client, api.secret, said("/new One", 2)) == 200
        assert await call(client, api.secret, said("/whoami", 5)) == 200
        assert "Ada" in (await api.called("sendMessage", times=2)).fields["text"]
    assert len(api.calls_of("sendMessage")) == 2


async def test_a_body_without_the_secret_is_not_even_read(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)) as (daemon, _):
        await api.called("getWebhookInfo")
        host, port = daemon.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 10\r\n\r\n".encode())
        assert b" 401 " in await reader.readline()
        writer.write(b"0123456789")
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_what_cannot_be_taken_now_is_to_be_sent_again(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)) as (daemon, client):
        await api.called("getWebhookInfo")
        assert await call(client, api.secret, said("hello", 1)) == 200
        while not api.calls_of("sendMessageDraft"):
            await api.called("sendMessageDraft")
        daemon.stop()
        await asyncio.sleep(0)
        assert await call(client, api.secret, said("too late", 2)) == 503


async def test_a_press_on_a_button_that_is_not_theirs_says_so(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        group = {"id": -7, "type": "group", "title": "Not ours"}
        message = {"message_id": 5, "date": 4_000_000_000, "chat": group}
        presses = [(ADA, "/whoami", ""), (BOB, "/session resume 1", "not for you"), (ADA, "stale", "no longer in use")]
        for number, (who, data, part) in enumerate(presses, 1):
            chat = {"id": 42, "type": "private", "first_name": "Ada"} if who is ADA else group
            query = {"id": f"q{number}", "from": who, "chat_instance": "1", "message": {**message, "chat": chat}}
            update = {"update_id": number, "callback_query": {**query, "data": data}}
            assert await call(client, api.secret, update) == 200
            released = await api.called("answerCallbackQuery", times=number)
            assert part in released.fields.get("text", "")
            assert bool(part) == ("text" in released.fields)


async def test_an_album_is_one_message_though_each_part_waits_for_the_one_before(
    tmp_path: Path, api: FakeBotApi
) -> None:
    """As Telegram does it: the next update of a chat comes when the last is acknowledged."""
    async with gateway(settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        for number in range(1, 4):
            assert await call(client, api.secret, part_of_an_album(number)) == 200
        assert await call(client, api.secret, said("/whoami", 4)) == 200
        await api.called("sendMessage", times=2)
        assert await call(client, api.secret, said("/history", 5)) == 200
        told = (await api.called("sendMessage", times=3)).fields["text"]
        assert "look 1\nlook 2\nlook 3" in told


async def test_an_album_that_was_cut_by_a_restart_is_still_one_message(api: FakeBotApi) -> None:
    """A part that comes once more, for its acknowledgement was lost, changes nothing."""
    notebook, taken = LooseLeaf(), list[list[int]]()
    quiet = asyncio.Event()

    async def sleep(pause: float) -> None:
        if pause == QUIET:
            await quiet.wait()

    async def take(group: Sequence[Arrived]) -> None:
        if not taken:
            taken.append([])
            raise Transient("The disk is full.")
        taken.append([number for number, _ in group])

    async with asyncio.timeout(PATIENCE), BotApi(Secret(TOKEN), api.url) as bot:
        begin = partial(gathering, read=bot.update, take=take, notebook=notebook, sleep=sleep)
        async with begin() as albums:
            await albums.receive(part_of_an_album(1))
            await albums.receive(part_of_an_album(2))
        async with begin() as albums:
            await albums.receive(part_of_an_album(2))
            await albums.receive(part_of_an_album(3))
            quiet.set()
            with pytest.raises(Transient):
                await albums.receive(said("and?", 5))
            await albums.receive(said("and?", 5))
        async with begin() as albums:
            await albums.receive(part_of_an_album(2))
            await albums.receive(part_of_an_album(4))
    assert taken == [[], [1, 2, 3], [5], [4]]
    assert list(await notebook.read()) == ["album:42:A"]


async def test_an_album_that_began_by_webhook_is_handed_over_by_a_bot_that_polls(
    tmp_path: Path, api: FakeBotApi
) -> None:
    by_webhook = settings(tmp_path, api)
    async with gateway(by_webhook) as (_, client):
        await api.called("getWebhookInfo")
        assert await call(client, api.secret, part_of_an_album(1)) == 200
    polling = by_webhook.channels["telegram"].model_copy(update={"options": {}})
    async with gateway(by_webhook.model_copy(update={"channels": {**by_webhook.channels, "telegram": polling}})):
        assert "look 1" in (await api.called("sendMessage")).fields["text"]


async def test_ten_parts_are_an_album_at_once(api: FakeBotApi) -> None:
    taken: list[int] = []

    async def sleep(_: float) -> None:
        await asyncio.Event().wait()

    async def take(group: Sequence[Arrived]) -> None:
        taken.append(len(group))

    async with (
        asyncio.timeout(PATIENCE),
        BotApi(Secret(TOKEN), api.url) as bot,
        gathering(read=bot.update, take=take, notebook=LooseLeaf(), sleep=sleep) as albums,
    ):
        for number in range(1, 11):
            await albums.receive(part_of_an_album(number))
    assert taken == [10]


async def listen(api: FakeBotApi, beats: Beats) -> list[float]:
    """Listen until the token is revoked; return the pauses that were made."""
    slept: list[float] = []

    async def sleep(pause: float) -> None:
        slept.append(pause)

    async with asyncio.timeout(PATIENCE), BotApi(Secret(TOKEN), api.url) as bot:
        listener = Listener(api=bot, pulse=beats, url="http://here/", secret=Secret("x" * 20), sleep=sleep)
        with pytest.raises(AuthRejected):
            await listener.run()
    return slept


async def test_readiness_tells_when_telegram_does_not_reach_us(api: FakeBotApi) -> None:
    beats, revoked = Beats(), refusal(401, "Unauthorized")
    api.webhook_failure = "Wrong response from the webhook: 421 Misdirected Request"
    api.pending.append({"update_id": 1})
    fine = {"url": "http://here/", "has_custom_certificate": False, "pending_update_count": 0}
    taken = {**fine, "url": "http://elsewhere/"}
    api.scripted["setWebhook"] += [refusal(500, "ill"), refusal(429, "Too Many Requests", retry_after=17)]
    api.scripted["getWebhookInfo"] += [(200, {"ok": True, "result": info}) for info in (fine, taken)]
    listening = asyncio.create_task(listen(api, beats), name="listen")
    await beats.wait_for(lambda beat: "421" in beat)
    api.scripted["getWebhookInfo"].append(revoked)
    slept = await listening
    assert slept[:4] == [1, 17, 45, 45]
    assert beats.heard[2] == "up"
    assert "Another program" in beats.heard[3]
    assert len(api.calls_of("setWebhook")) >= 4


@pytest.mark.parametrize("url", ["http://bot.example.org", "bot.example.org", "", 5])
def test_what_telegram_cannot_call_is_a_mistake_in_the_config(url: object) -> None:
    settings = ChannelSettings(token=Secret(TOKEN), options={"webhook_url": url})
    context = ChannelContext(
        name="telegram",
        account="default",
        settings=settings,
        browser=StubBrowser(),
        notebook=LooseLeaf(),
        pulse=Beats(),
    )
    with pytest.raises(CannotStart, match=r"channels\.telegram\.options\.webhook_url"):
        open_channel(context)


@pytest.mark.parametrize("key", ["allow", "group_allow"])
def test_names_in_a_list_of_ids_are_a_mistake_in_the_config(key: str) -> None:
    settings = ChannelSettings.model_validate({"token": TOKEN, key: [42, "@ada"]})
    context = ChannelContext(
        name="telegram", account="work", settings=settings, browser=StubBrowser(), notebook=LooseLeaf(), pulse=Beats()
    )
    with pytest.raises(CannotStart, match="@ada"):
        open_channel(context)
