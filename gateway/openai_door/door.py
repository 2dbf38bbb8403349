"""What the routes of the door have in common: decoding requests, and choosing between a session and a stateless run."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec
from aiohttp import web

from gateway.agent.protocol import ToolSpec
from gateway.contract import Caller
from gateway.http.forwarding import idempotency_key
from gateway.openai_door.answer import StreamedAnswer
from gateway.openai_door.errors import refusal
from gateway.openai_door.request_messages import ReceivedMessages
from gateway.openai_door.session_choice import SESSION_HEADER, SessionChooser
from gateway.openai_door.session_turns import DoorRequest, SessionTurns
from gateway.openai_door.stateless_runs import StatelessRuns
from gateway.openai_door.types import ChatRequest, ResponseRequest

MAX_KEY = 255
DECODED_INLINE = 100_000
"""Bytes of a request that are decoded on the event loop. A larger one, such as one with images, takes a thread."""
RETRY_HEADER = "X-Stainless-Retry-Count"
"""OpenAI's own clients count in it how often they have repeated a request."""

_Body = TypeVar("_Body", ChatRequest, ResponseRequest)


class Door:
    def __init__(self, *, chooser: SessionChooser, turns: SessionTurns, stateless: StatelessRuns) -> None:
        self.chooser = chooser
        self._turns = turns
        self._stateless = stateless

    async def decode(
        self, request: web.Request, kind: type[_Body], convert: Callable[[_Body], ReceivedMessages]
    ) -> tuple[_Body, ReceivedMessages]:
        """Return the body of a request, and its messages as ours. Raises `HttpError` if they are invalid."""
        data = await request.read()

        def decode() -> tuple[_Body, ReceivedMessages]:
            try:
                body = msgspec.json.decode(data or b"{}", type=kind)
            except msgspec.ValidationError as error:
                reason, _, path = str(error).partition(" - at ")
                param = path.strip("`").removeprefix("$").removeprefix(".")
                raise refusal(f"{reason}{f' in `{param}`' if param else ''}.", param=param or None) from error
            return body, convert(body)

        return decode() if len(data) <= DECODED_INLINE else await asyncio.to_thread(decode)

    def request(
        self,
        request: web.Request,
        caller: Caller,
        body: ChatRequest | ResponseRequest,
        received: ReceivedMessages,
        tools: tuple[ToolSpec, ...],
    ) -> DoorRequest:
        """Return a request with its session. Raises `HttpError`."""
        key = idempotency_key(request)
        if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise refusal(f"The Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters.")
        return DoorRequest(
            caller=caller,
            choice=self.chooser.choose(caller, request.headers, body),
            received=received,
            tools=tools,
            key=key,
            is_retry=request.headers.get(RETRY_HEADER, "0") != "0",
            may_shorten=isinstance(body, ResponseRequest) and body.truncation == "auto",
        )

    def answer(self, wanted: DoorRequest) -> AbstractAsyncContextManager[StreamedAnswer]:
        """Open the answer to a request: the turn of a session, or a stateless run."""
        return self._stateless.open(wanted) if wanted.choice.is_stateless else self._turns.open(wanted)


def name_session(response: web.Response, answer: StreamedAnswer) -> web.Response:
    """Tell the client which session a response belongs to."""
    if answer.session is not None:
        response.headers[SESSION_HEADER] = answer.session.id
    return response
