"""Streams of OpenAI's Chat Completions API: https://platform.openai.com/docs/api-reference/chat-streaming."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.agent.wire.dialect import Call, Refusal
from tests.agent.wire.request_rules import openai_complaints


def sse(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, *, reason: str | None = None, **fields: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1"}
    return sse({**head, "choices": choices, **fields})


class _OpenAI:
    kind = "openai"
    path = "/v1/chat/completions"
    base = "/v1"

    def answer(
        self, *texts: str, calls: Sequence[Call] = (), is_cut_short: bool = False, tokens: tuple[int, int] = (11, 7)
    ) -> list[bytes]:
        reason = "length" if is_cut_short else "tool_calls" if calls else "stop"
        return [
            chunk({"role": "assistant", "content": ""}),
            *(chunk({"content": text}) for text in texts),
            *(piece for number, call in enumerate(calls) for piece in self._call(number, call)),
            chunk({}, reason=reason),
            chunk(usage={"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}),
            b"data: [DONE]\n\n",
        ]

    def complaints(self, body: dict[str, Any]) -> Iterator[str]:
        return openai_complaints(body)

    def refusal(self, status: int, code: str, message: str = "It did not work.", **headers: str) -> Refusal:
        body = {"error": {"message": message, "type": "some_error", "param": None, "code": code}}
        return Refusal(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def _call(self, number: int, call: Call) -> list[bytes]:
        function = {"name": call.name, "arguments": ""}
        start = {"index": number, "id": call.id, "type": "function", "function": function}
        rest = [{"index": number, "function": {"arguments": piece}} for piece in call.arguments]
        return [chunk({"tool_calls": [piece]}) for piece in (start, *rest)]


OPENAI = _OpenAI()
