"""Pictures and recordings of an OpenAI-compatible endpoint."""

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from config import ImageSettings, Settings, SpeechSettings
from gateway.agent.media.endpoint import MediaEndpoint
from gateway.agent.media.images import MadePicture, make_picture
from gateway.agent.media.speech import Recording, make_recording
from gateway.doctor.finding import Level
from gateway.doctor.media import media_checks
from gateway.errors import ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.media.harness import KEY, OPUS, MediaServer, as_base64, as_url, drawing, refused, serving_media
from tests.agent.sdk_headers import compared
from tests.files.samples import jpeg


def endpoint(server: MediaServer, timeout: float = 30.0) -> MediaEndpoint:
    return MediaEndpoint(provider="art", settings=server.settings(), model="painter-1", timeout=timeout)


async def picture(server: MediaServer, charged: list[int] | None = None, **settings: object) -> MadePicture:
    wanted = ImageSettings.model_validate({"provider": "art", "model": "painter-1", **settings})
    charges = [] if charged is None else charged
    return await make_picture(endpoint(server, wanted.timeout), wanted, "A fox", charge=lambda: charges.append(1))


async def recording(server: MediaServer, charged: list[int] | None = None, **settings: object) -> Recording:
    wanted = SpeechSettings.model_validate({"provider": "art", "model": "painter-1", **settings})
    charges = [] if charged is None else charged
    return await make_recording(
        endpoint(server, wanted.timeout), wanted, "Good morning", charge=lambda: charges.append(1)
    )


async def test_our_requests_equal_those_of_the_sdk() -> None:
    async with serving_media(as_base64(drawing())) as server, httpx2.AsyncClient(trust_env=False) as http:
        sdk = openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.url}v1", max_retries=0, http_client=http)
        ours = await picture(server, size="1024x1024", quality="low")
        theirs = await sdk.images.generate(model="painter-1", prompt="A fox", n=1, size="1024x1024", quality="low")
        assert theirs.data is not None
        assert theirs.data[0].b64_json is not None
        server.answer = web.Response(body=OPUS)
        spoken = await recording(server)
        heard = await sdk.audio.speech.create(
            model="painter-1", input="Good morning", voice="alloy", response_format="opus"
        )
        assert (spoken.data, heard.content) == (OPUS, OPUS)
    assert ours.data == drawing()
    for one, other in (server.asked[:2], server.asked[2:]):
        assert (one["path"], one["body"]) == (other["path"], other["body"])
        assert compared(one["headers"]) == compared(other["headers"])


async def test_a_picture_comes_as_base64_or_from_a_url_of_the_same_server() -> None:
    async with serving_media(as_base64(drawing(64, 32))) as server:
        server.files["/made/1.png"] = web.Response(body=drawing(64, 32))
        found = [await picture(server)]
        for url in (f"{server.url}made/1.png", "/made/1.png"):
            server.answer = as_url(url)
            found.append(await picture(server))
    assert {(each.data, each.media_type, each.width, each.height) for each in found} == {
        (drawing(64, 32), "image/png", 64, 32)
    }
    assert "Authorization" not in server.asked[-1]["headers"]


async def test_a_url_of_another_private_host_is_refused() -> None:
    charged: list[int] = []
    async with serving_media(as_base64(drawing())) as other, serving_media(as_url(f"{other.url}secret")) as server:
        with pytest.raises(ProviderBusy, match="not on the public web"):
            await picture(server, charged)
        assert other.asked == []
    assert charged == [1]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "damaged, or is no picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "damaged, or is no picture"),
        (drawing(32, 20)[:-20], "damaged, or is no picture"),
        (drawing()[:20], "damaged, or is no picture"),
        (jpeg(0, 0), "damaged, or is no picture"),
        (b"x" * 20_001, "larger than 20 kB"),
    ],
)
async def test_a_damaged_picture_is_refused_whichever_way_it_comes(body: bytes, sentence: str) -> None:
    async with serving_media(as_base64(body)) as server:
        server.files["/made"] = web.Response(body=body)
        for answer in (as_base64(body), as_url("/made")):
            server.answer = answer
            charged: list[int] = []
            with pytest.raises(ProviderFailed, match=sentence):
                await picture(server, charged, max_bytes=20_000)
            assert charged == [1]  # The service has done its work.


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (web.Response(text="<html>"), "without a readable picture"),
        (web.json_response({"data": [{"b64_json": "%%%"}]}), "without a readable picture"),
        (web.json_response({"data": {}}), "without a readable picture"),
        (web.json_response({"data": []}), "without a picture"),
        (web.json_response({"data": [{}]}), "without a picture"),
        (as_url("file:///etc/passwd"), "Only addresses that start with http"),
        (as_url("/not/there"), "answered 404"),
        (web.Response(body=b"[" * 130_000), "larger than the settings allow"),
    ],
)
async def test_an_answer_without_a_picture_is_one_sentence(answer: web.Response, sentence: str) -> None:
    async with serving_media(answer) as server:
        with pytest.raises(ProviderFailed, match=sentence):
            await picture(server, max_bytes=10_000)


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (
            refused(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"),
            ModelUnavailable,
            "API key .* rejected",
        ),
        (refused(403, "No access"), ModelUnavailable, "doesn't give access"),
        (refused(404, "model_not_found", "model_not_found"), ModelUnavailable, "no model named"),
        (refused(400, "rejected by our safety system", "content_policy_violation"), ProviderFailed, "declined"),
        (refused(400, "Invalid size"), ProviderFailed, "rejected this request"),
        (refused(413, "too large"), ProviderFailed, "text is too long"),
        (refused(429, "slow down", Retry_After="30"), ProviderBusy, "Try again in 30 seconds"),
        (refused(429, "no money", "insufficient_quota"), ModelUnavailable, "out of credit"),
        (refused(500, "oops"), ProviderBusy, "overloaded"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), ModelUnavailable, "address"),
    ],
)
async def test_a_refusal_is_one_sentence_and_costs_nothing(
    answer: web.Response, kind: type[ProviderFailed], sentence: str
) -> None:
    charged: list[int] = []
    async with serving_media(answer) as server:
        for call in (picture, recording):
            with capture_logs() as events, pytest.raises(kind, match=sentence) as failed:
                await call(server, charged)
            assert KEY not in str(failed.value)
            assert [event["event"] for event in events] == ["model_failed"]
    assert charged == []


@pytest.mark.parametrize(
    ("body", "suffix"),
    [
        (OPUS, "ogg"),
        (b"ID3\x04" + bytes(50), "mp3"),
        (b"\xff\xf3\xe4\xc4" + bytes(50), "mp3"),
        (b"\xff\xf1\x5c\x80" + bytes(50), "aac"),
        (b"fLaC" + bytes(50), "flac"),
        (b"RIFF\0\0\0\0WAVEfmt " + bytes(50), "wav"),
    ],
)
async def test_the_content_decides_how_the_name_of_a_recording_ends(body: bytes, suffix: str) -> None:
    async with serving_media(web.Response(body=body)) as server:
        assert (await recording(server)).suffix == suffix


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": "no"}', drawing()])
async def test_an_answer_that_is_no_recording_is_refused(body: bytes) -> None:
    async with serving_media(web.Response(body=body)) as server:
        with pytest.raises(ProviderFailed, match="no recording"):
            await recording(server)


async def test_a_recording_that_is_too_large_is_not_read_to_its_end() -> None:
    async with serving_media(web.Response(body=OPUS + bytes(1_000_000))) as server:
        with pytest.raises(ProviderFailed, match="larger than the settings allow"):
            await recording(server, max_bytes=10_000)


async def test_a_silent_endpoint_is_given_up_and_may_ask_for_its_money() -> None:
    async with serving_media(asyncio.Event()) as server:
        for call in (picture, recording):
            charged: list[int] = []
            with pytest.raises(ProviderBusy, match="sent nothing for too long"):
                await call(server, charged, timeout=1.0)
            assert charged == [1]


async def test_an_endpoint_that_is_down_costs_nothing() -> None:
    charged: list[int] = []
    async with serving_media(web.Response()) as server:
        pass
    with pytest.raises(ProviderBusy, match=r"could not be used: 127\.0\.0\.1 cannot be reached"):
        await picture(server, charged)
    assert charged == []


async def found_by_doctor(server: MediaServer) -> list[Any]:
    settings = Settings.model_validate(
        {
            "providers": {"art": server.table()},
            "tools": {"images": {"provider": "art", "model": "painter-1"}, "speech": {"provider": "art"}},
        }
    )
    return [await check for check in media_checks(settings, 30.0)]


async def test_doctor_has_a_word_spoken_and_looks_for_the_model_of_pictures() -> None:
    async with serving_media(web.Response(body=OPUS)) as server:
        server.files["/v1/models"] = web.json_response({"object": "list", "data": [{"id": "painter-1"}]})
        assert [finding.level for finding in await found_by_doctor(server)] == [Level.OK, Level.OK]
        assert [call["path"] for call in server.asked] == ["/v1/models", "/v1/audio/speech"]
        server.files["/v1/models"] = web.json_response({"data": [{"id": "writer-1"}]})
        unlisted, _ = await found_by_doctor(server)
        del server.files["/v1/models"]
        unknown, _ = await found_by_doctor(server)
        assert (unlisted.level, unknown.level) == (Level.WARNING, Level.WARNING)
        server.answer = server.files["/v1/models"] = refused(401, f"Bad key {KEY}")
        findings = await found_by_doctor(server)
    assert [finding.level for finding in findings] == [Level.ERROR, Level.ERROR]
    assert all("providers.art.api_key" in finding.fix for finding in findings)
    assert KEY not in str(findings)


async def test_doctor_checks_only_the_tools_that_are_on() -> None:
    assert list(media_checks(Settings(), 1.0)) == []
