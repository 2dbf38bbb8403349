"""The webhook channel: takes signed calls of `POST /hooks/{name}`, and passes answers on."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import web

from channels.webhook import responses
from channels.webhook.payload import Unreadable, matches, parse_payload
from channels.webhook.signatures import SignatureRejected, has_signature, sign, unsigned_id, verify
from channels.webhook.wire import NoCallbackUrl, callback_body, event_id, to_inbound
from config import ChannelSettings, HookAnswer, HookPreset, HookSettings, Secret
from config.settings.webhooks import MAX_DEADLINE
from gateway.contract import (
    Access,
    Caller,
    Channel,
    ChannelContext,
    Deliver,
    EarlierMessage,
    Inbound,
    KnowsOwner,
    Outbound,
    OutboundKind,
    Receipt,
    Route,
    TextLimit,
    Verdict,
)
from gateway.errors import NotAccepted, RateLimited, Transient, Undeliverable
from gateway.text import excerpt

log = structlog.get_logger()

PATH = "/hooks/{name}"
MAX_WAITING = 32
"""Calls that wait for their answers at the same time. Each holds one of the server's connections."""
RETRY_AFTER = 5.0
"""Seconds after which a call that could not be taken now may come again."""
REPORT_INTERVAL = 60.0
"""Seconds between two log lines about calls of one hook that were rejected for the same reason.

So a stranger can neither fill the log nor keep another reason out of it.
"""


class PossibleReplay(Exception):
    """A delivery came before under another id. It may be a recorded one, or another event with the same content."""


class WebhookChannel:
    """All hooks of the configuration. Each hook is a chat, and so is each of its conversations."""

    text_limit = TextLimit(size=1_000_000)
    repeats_dropped_for = math.inf
    """Each answer has an id, by which its receiver recognises a repeat."""
    sends_to_many_hosts = True

    def __init__(
        self,
        context: ChannelContext,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._clock = clock
        self._monotonic = monotonic
        self._deliver: Deliver | None = None
        self._hooks: Mapping[str, HookSettings] = {}
        self._is_enabled = True
        self._waiting: dict[str, _Waiting] = {}
        """Calls that wait for their answers, by message id."""
        self._reported: dict[tuple[str, str], float] = {}
        """When a rejected call was logged, by hook and reason; unknown hooks are one. There are few reasons."""
        # Checked in place of a hook that does not exist, so that a caller cannot tell by the time which ones do.
        self._decoy = HookSettings(secrets=(Secret(secrets.token_urlsafe(32)),))
        self.take_settings(context.settings)

    def take_settings(self, settings: ChannelSettings) -> None:
        """Apply new hooks. A call that has been accepted is answered as it was configured then."""
        self._hooks = settings.hooks
        self._is_enabled = settings.enabled

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="POST",
                path=PATH,
                access=Access.CHANNEL,
                handle=self._handle,
                handle_elsewhere=partial(self._handle, is_elsewhere=True),
                knows=self._has_signature,
                takes_any_type=True,
                drops_repeats=True,
                deadline=MAX_DEADLINE + 5,
            )
        ]

    async def run(self, deliver: Deliver) -> None:
        """Take calls until cancelled."""
        self._deliver = deliver
        self._context.pulse.up()
        try:
            await asyncio.Event().wait()
        finally:
            self._deliver = None

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Pass an answer to the call that waits for it, or to the URL that gets it.

        Without either, the transcript has it. Notices are for people, unless they say why there is no answer.
        """
        is_answer = message.kind is OutboundKind.REPLY or message.is_failure
        if is_answer and not message.is_question:
            waiting = self._waiting.get(message.reply_to or "")
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(message)
            hook = self._hooks.get(message.address.peer)
            if hook is None:
                raise Undeliverable(f"The hook {message.address.peer} no longer exists.")
            if hook.answer is HookAnswer.CALLBACK:
                await self._call_back(hook, message, key)
        return Receipt(message_id=key)

    async def _call_back(self, hook: HookSettings, message: Outbound, key: str) -> None:
        url = hook.callback_url or message.address.thread
        if url is None or hook.callback_secret is None:
            raise Undeliverable(f"The hook {message.address.peer} has no URL for this answer.")
        body = callback_body(message)
        # An id must not contain a dot: the signature separates it from the timestamp by one.
        signed = sign(hook.callback_secret, f"msg_{key.replace('.', '_')}", body, now=self._clock())
        headers = {"Content-Type": "application/json", **signed}
        await self._context.post(url, body, headers, hosts=hook.callback_hosts)

    def _has_signature(self, headers: Mapping[str, str]) -> bool:
        presets = {hook.preset for hook in self._hooks.values()} if self._is_enabled else set()
        return any(has_signature(preset, headers) for preset in presets)

    async def _handle(self, request: web.Request, _: Caller, *, is_elsewhere: bool = False) -> web.StreamResponse:
        """Authenticate a call, then read it. Respond once it is safe, and with the answer if that is due here.

        In a cluster, the node that owns the conversation does that: only it knows the answer, and whether the call is
        refused. Raises `HeldElsewhere` at the others. With `is_elsewhere`, the call is accepted at any node.
        """
        name, body = request.match_info["name"], await request.read()
        found = self._hooks.get(name) if self._is_enabled else None
        hook = found or self._decoy
        try:
            delivery = verify(hook.preset, hook.secrets, request.headers, body, now=self._clock())
        except SignatureRejected as rejection:
            self._report(name if found else "", str(rejection))
            return responses.problem(HTTPStatus.UNAUTHORIZED, responses.UNAUTHORIZED)
        try:
            payload = parse_payload(body, request.content_type)
        except Unreadable as fault:
            return responses.problem(HTTPStatus.BAD_REQUEST, str(fault))
        if hook.preset is HookPreset.SLACK and isinstance(payload, dict) and payload.get("type") == "url_verification":
            # Slack does this once, when the URL is registered: https://api.slack.com/events/url_verification
            return web.Response(text=str(payload.get("challenge", "")))
        is_ping = hook.preset is HookPreset.GITHUB and request.headers.get("X-GitHub-Event") == "ping"
        if is_ping or not matches(payload, hook.when):
            return responses.ignored()
        try:
            inbound = to_inbound(
                name,
                hook,
                payload,
                event=event_id(name, hook, delivery, payload, body),
                unsigned_id=unsigned_id(hook.preset, request.headers),
                channel=self.name,
                sent_at=datetime.fromtimestamp(self._clock(), UTC),
                max_chars=self._context.browser.max_message_chars(),
            )
        except NoCallbackUrl as fault:
            return responses.problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(fault))
        except RecursionError:  # It could just be read, but takes more of the stack to write.
            return responses.problem(HTTPStatus.BAD_REQUEST, "The body is nested too deeply.")
        browser = self._context.browser
        if isinstance(browser, KnowsOwner) and not is_elsewhere:
            browser.require_here(inbound.address, inbound.sender)
        try:
            return await self._accept(hook, inbound, waits=hook.answer is HookAnswer.SYNC and not is_elsewhere)
        except PossibleReplay:
            self._report(name, "its body came before, under another id that is not signed")
            return responses.problem(HTTPStatus.CONFLICT, responses.SAME_BODY)
        except RateLimited as limit:
            wait = limit.retry_after or RETRY_AFTER
            return responses.problem(HTTPStatus.TOO_MANY_REQUESTS, str(limit), retry_after=wait)
        except Transient as trouble:
            wait = trouble.retry_after or RETRY_AFTER
            return responses.problem(HTTPStatus.SERVICE_UNAVAILABLE, str(trouble), retry_after=wait)

    async def _accept(self, hook: HookSettings, inbound: Inbound, *, waits: bool) -> web.Response:
        if self._deliver is None:
            raise Transient("The gateway is starting or stopping.")
        if not waits:
            verdict = await self._deliver(inbound)
            if verdict is not Verdict.DUPLICATE:
                return _taken(verdict)
            await self._find_earlier(inbound)
            return responses.duplicate()
        with self._answer_of(inbound.message_id or inbound.event_id) as answer:
            verdict = await self._deliver(inbound)
            if verdict is Verdict.DUPLICATE:
                earlier = await self._find_earlier(inbound)
                if earlier.is_finished:
                    texts = [each.message.text for each in earlier.answers]
                    return responses.duplicate("\n\n".join(texts) if texts else None)
            elif verdict is not Verdict.ACCEPTED:
                return _taken(verdict)
            await asyncio.wait([answer], timeout=hook.deadline)
            if not answer.done():
                return responses.accepted()
            message = answer.result()
            return responses.answered(message.text, is_failure=message.is_failure)

    async def _find_earlier(self, inbound: Inbound) -> EarlierMessage:
        """Return what became of a delivery that came before. Raises `PossibleReplay` if it had another id then."""
        earlier = await self._context.browser.earlier(inbound.address, inbound.sender, inbound.event_id)
        if earlier.message_id not in {None, inbound.message_id}:
            raise PossibleReplay
        return earlier

    @contextmanager
    def _answer_of(self, message_id: str) -> Iterator[asyncio.Future[Outbound]]:
        """Wait for the answer to a delivery. A sender that repeats it waits for the same answer."""
        if sum(each.calls for each in self._waiting.values()) >= MAX_WAITING:
            raise NotAccepted("Too many calls are waiting for their answers.")
        waiting = self._waiting.setdefault(message_id, _Waiting())
        waiting.calls += 1
        try:
            yield waiting.answer
        finally:
            waiting.calls -= 1
            if not waiting.calls:
                del self._waiting[message_id]

    def _report(self, hook: str, reason: str) -> None:
        now = self._monotonic()
        if now - self._reported.get((hook, reason), -math.inf) >= REPORT_INTERVAL:
            self._reported[hook, reason] = now
            log.warning("hook_call_rejected", hook=excerpt(hook, 64) or "unknown", reason=reason)


class _Waiting:
    """The calls that wait for one answer."""

    def __init__(self) -> None:
        self.calls = 0
        self.answer: asyncio.Future[Outbound] = asyncio.get_running_loop().create_future()


def _taken(verdict: Verdict) -> web.Response:
    if verdict is Verdict.ACCEPTED:
        return responses.accepted()
    # The hook was removed in this moment.
    return responses.problem(HTTPStatus.UNAUTHORIZED, responses.UNAUTHORIZED)


def open_channel(context: ChannelContext) -> Channel:
    return WebhookChannel(context)
