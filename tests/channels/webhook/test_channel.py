"""The channel without a gateway: what it passes on, what it refuses, and what it logs."""

import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from channels.webhook.channel import REPORT_INTERVAL, WebhookChannel
from config import ChannelSettings
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Verdict
from gateway.errors import Undeliverable
from gateway.http.responses import HttpLimits
from gateway.testing import Core, StubBrowser, StubPulse, context, running
from tests.channels.webhook.harness import KEY, SECRETS, Receiver, callback, hook, sign_standard
from tests.http.harness import Running, serving

NOW = 1_700_000_000.0
CI = Address(channel="webhook", kind=PeerKind.CHANNEL, peer="ci", thread="a/b")
ANSWER = Outbound(address=CI, text="Fixed.", kind=OutboundKind.REPLY, reply_to="ci:d1", session=1)


@dataclass
class Posts:
    """Takes the place of the gateway's own client."""

    sent: list[tuple[str, bytes, Mapping[str, str], tuple[str, ...]]] = field(default_factory=list)

    async def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], /, *, hosts: Collection[str] = ()
    ) -> None:
        self.sent.append((url, body, headers, tuple(hosts)))


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


def settings(**hooks: dict[str, Any]) -> ChannelSettings:
    return ChannelSettings.model_validate({"hooks": hooks})


def opened(posts: Posts, clock: Clock | None = None, **hooks: dict[str, Any]) -> WebhookChannel:
    made = context("webhook", StubBrowser(), StubPulse(), settings(**hooks))
    clock = clock or Clock()
    return WebhookChannel(dataclasses.replace(made, post=posts), clock=clock, monotonic=clock)


def calling_back(**keys: Any) -> dict[str, Any]:  # noqa: ANN401 - of any shape.
    return callback(Receiver(url="https://example.org"), **keys)


async def test_an_answer_is_signed_and_has_the_same_id_on_each_retry() -> None:
    posts = Posts()
    channel = opened(posts, ci=calling_back())
    receipt = await channel.send(ANSWER, key="0a1b.1")
    assert await channel.send(ANSWER, key="0a1b.1") == receipt
    (first, second) = posts.sent
    assert first == second
    url, body, headers, hosts = first
    assert (url, hosts, receipt.message_id) == ("https://example.org/answers", ("127.0.0.1",), "0a1b.1")
    assert sign_standard(body, "msg_0a1b_1", NOW, KEY).items() <= headers.items()


@pytest.mark.parametrize(
    "message",
    [
        replace(ANSWER, kind=OutboundKind.NOTICE),
        replace(ANSWER, kind=OutboundKind.NOTICE, is_question=True),
        replace(ANSWER, is_question=True),
    ],
)
async def test_notices_and_questions_are_for_people(message: Outbound) -> None:
    posts = Posts()
    await opened(posts, ci=calling_back()).send(message, key="k")
    assert posts.sent == []


async def test_a_failure_is_passed_on() -> None:
    posts = Posts()
    failure = replace(ANSWER, kind=OutboundKind.NOTICE, is_failure=True, text="I was offline too long.")
    await opened(posts, ci=calling_back()).send(failure, key="k")
    assert b'"failure"' in posts.sent[0][1]


@pytest.mark.parametrize("answer", ["none", "sync"])
async def test_without_a_waiting_call_the_transcript_has_the_answer(answer: str) -> None:
    posts = Posts()
    assert (await opened(posts, ci=hook(answer=answer)).send(ANSWER, key="k")).message_id == "k"
    assert posts.sent == []


async def test_an_answer_of_a_removed_hook_is_set_aside() -> None:
    channel = opened(Posts(), ci=calling_back())
    channel.take_settings(settings())
    with pytest.raises(Undeliverable, match="no longer exists"):
        await channel.send(ANSWER, key="k")


async def test_an_answer_without_a_url_is_set_aside() -> None:
    """The settings have changed since the call was accepted."""
    channel = opened(Posts(), ci=calling_back(callback_field="/url"))
    with pytest.raises(Undeliverable, match="no URL"):
        await channel.send(replace(ANSWER, address=replace(CI, thread=None)), key="k")


async def post(served: Running, name: str, headers: dict[str, str], body: bytes = b"{}") -> int:
    return await served.status("POST", f"/hooks/{name}", data=body, headers=headers)


async def test_rejected_calls_are_logged_once_a_minute_for_each_hook_and_reason(tmp_path: Path) -> None:
    clock = Clock()
    channel = opened(Posts(), clock, ci=hook(), other=hook())
    wrong = {**sign_standard(b"{}", "d1", NOW), "webhook-signature": "v1,wrong"}
    async with serving(tmp_path, channel.routes()) as served:
        with capture_logs() as logs:
            for name in ("ci", "ci", "other", "nobody", "somebody"):
                assert await post(served, name, wrong) == 401
            await post(served, "ci", sign_standard(b"{}", "d1", NOW - 600))
            clock.now += REPORT_INTERVAL
            await post(served, "ci", wrong)
    found = [(line["event"], line["hook"]) for line in logs]
    assert found == [("hook_call_rejected", name) for name in ("ci", "other", "unknown", "ci", "ci")]
    assert "timestamp" in logs[3]["reason"], "the calls of a stranger do not hide it"
    assert not any(secret in str(logs) for secret in SECRETS.values())


async def test_the_operator_learns_why_a_call_was_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path, opened(Posts(), ci=hook()).routes()) as served:
        with capture_logs() as logs:
            await post(served, "ci", sign_standard(b"{}", "d1", NOW - 600))
    assert [line["reason"] for line in logs] == ["its timestamp is too old, or a clock is wrong"]


async def test_a_call_before_the_channel_runs_may_come_again(tmp_path: Path) -> None:
    core, pulse = Core(), StubPulse()
    channel = WebhookChannel(context("webhook", StubBrowser(), pulse, settings(ci=hook())))
    async with serving(tmp_path, channel.routes()) as served:
        assert await post(served, "ci", sign_standard(b"{}", "d1", time())) == 503
        async with running(channel, core.deliver, pulse):
            assert await post(served, "ci", sign_standard(b"{}", "d1", time())) == 202
            core.verdict = Verdict.IGNORED
            assert await post(served, "ci", sign_standard(b"{}", "d2", time())) == 401, "it was removed just now"


async def test_a_slow_body_is_refused(tmp_path: Path) -> None:
    channel = opened(Posts(), ci=hook())
    async with serving(tmp_path, channel.routes(), limits=HttpLimits(body=0.2, linger=0.1)) as served:
        head = served.head("POST /hooks/ci", {"Content-Length": "2", **sign_standard(b"{}", "d1", NOW)})
        response = await served.raw(head + b"{")
    assert response.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in response


async def test_a_disabled_channel_takes_no_calls(tmp_path: Path) -> None:
    channel = opened(Posts(), ci=hook())
    channel.take_settings(settings(ci=hook()).model_copy(update={"enabled": False}))
    async with serving(tmp_path, channel.routes()) as served:
        assert await post(served, "ci", sign_standard(b"{}", "d1", NOW)) == 401


async def test_a_payload_of_any_depth_is_taken_or_refused(tmp_path: Path) -> None:
    core, pulse = Core(), StubPulse()
    channel = WebhookChannel(context("webhook", StubBrowser(), pulse, settings(ci=hook())))
    async with serving(tmp_path, channel.routes()) as served, running(channel, core.deliver, pulse):
        found = set()
        for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit() + 10):
            body = b"[" * depth + b"]" * depth
            found.add(await post(served, "ci", sign_standard(body, f"d{depth}", time()), body))
    assert found <= {202, 400}
