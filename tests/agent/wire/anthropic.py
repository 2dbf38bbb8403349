"""Streams of Anthropic's Messages API: https://docs.anthropic.com/en/docs/build-with-claude/streaming."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.agent.wire.dialect import Call, Refusal
from tests.agent.wire.request_rules import anthropic_complaints


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(tokens: int = 11, **usage: int) -> bytes:
    counted = {"input_tokens": tokens, "output_tokens": 1, **usage}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake-1", "content": []}
    return event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": counted})


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> Iterator[bytes]:
    yield event("content_block_start", index=index, content_block=content)
    for delta in deltas:
        yield event("content_block_delta", index=index, delta=delta)
    yield event("content_block_stop", index=index)


def finish(reason: str, tokens: int = 7) -> list[bytes]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [event("message_delta", delta=delta, usage={"output_tokens": tokens}), event("message_stop")]


class _Anthropic:
    kind = "anthropic"
    path = "/v1/messages"
    base = ""

    def answer(
        self, *texts: str, calls: Sequence[Call] = (), is_cut_short: bool = False, tokens: tuple[int, int] = (11, 7)
    ) -> list[bytes]:
        deltas = [{"type": "text_delta", "text": text} for text in texts]
        first = len(texts) > 0
        return [
            start(tokens[0]),
            event("ping"),
            *(block(0, {"type": "text", "text": ""}, *deltas) if first else ()),
            *(piece for number, call in enumerate(calls, first) for piece in self._call(number, call)),
            *finish("max_tokens" if is_cut_short else "tool_use" if calls else "end_turn", tokens[1]),
        ]

    def complaints(self, body: dict[str, Any]) -> Iterator[str]:
        return anthropic_complaints(body)

    def refusal(self, status: int, code: str, message: str = "It did not work.", **headers: str) -> Refusal:
        body = {"type": "error", "error": {"type": code, "message": message}, "request_id": "req_1"}
        return Refusal(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def _call(self, number: int, call: Call) -> Iterator[bytes]:
        content = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return block(number, content, *({"type": "input_json_delta", "partial_json": each} for each in call.arguments))


ANTHROPIC = _Anthropic()
