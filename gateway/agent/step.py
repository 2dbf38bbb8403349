"""One step of a model, put together from its chunks and made fit to be kept."""

from uuid import uuid4

import msgspec
from msgspec.structs import replace

from gateway.agent.events import StepDone
from gateway.agent.provider import Chunk, TextDelta, Usage
from gateway.conversation import Json, Thought, ToolCall
from gateway.errors import ProviderFailed
from gateway.text import clean

__all__ = ["MAX_CALL_BYTES", "TOO_MUCH_TO_CALL", "Step", "new_call_id"]

MAX_TEXT_CHARS = 1024 * 1024
MAX_CALL_BYTES = 256 * 1024
"""For all tool calls of a step together, as JSON."""

_TOO_MUCH_TEXT = "The model wrote more than one answer can hold, and was stopped. Please ask for less at once."
TOO_MUCH_TO_CALL = "The model wanted to give its tools more than they can take, and was stopped. Please ask for less."


def new_call_id() -> str:
    return f"call_{uuid4().hex}"


class Step:
    """Takes chunks as they come. What a model writes is input like any other: it is made valid Unicode here.

    It is bounded here, too: more than that is `ProviderFailed`.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._usage: Usage | None = None
        self._thoughts: list[Thought] = []
        self._text_left = MAX_TEXT_CHARS
        self._call_left = MAX_CALL_BYTES

    def take(self, chunk: Chunk) -> TextDelta | None:
        """Add a chunk; return what of it can be shown at once."""
        if isinstance(chunk, Usage):
            self._usage = chunk
            return None
        if isinstance(chunk, Thought):
            self._thoughts.append(chunk)
            return None
        if isinstance(chunk, ToolCall):
            self._add_call(chunk)
            return None
        self._text_left -= len(chunk.text)
        if self._text_left < 0:
            raise ProviderFailed(_TOO_MUCH_TEXT)
        text = clean(chunk.text)
        self._texts.append(text)
        return TextDelta(text=text) if text else None

    def done(self) -> StepDone:
        return StepDone(
            text="".join(self._texts),
            tool_calls=tuple(self._calls.values()),
            usage=self._usage,
            thoughts=tuple(self._thoughts),
        )

    def _add_call(self, call: ToolCall) -> None:
        """Give a call without an id, or with one that is taken, its own: results are matched by id."""
        is_usable = call.id and call.id not in self._calls
        call_id = clean(call.id) if is_usable else new_call_id()
        try:
            arguments = {clean(key): _clean_json(value) for key, value in call.input.items()}
            whole = replace(call, id=call_id, name=clean(call.name), input=arguments)
            self._call_left -= len(msgspec.json.encode(whole))
        except RecursionError as deep:
            raise ProviderFailed(TOO_MUCH_TO_CALL) from deep
        if self._call_left < 0:
            raise ProviderFailed(TOO_MUCH_TO_CALL)
        self._calls[call_id] = whole


def _clean_json(value: Json) -> Json:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean_json(item) for key, item in value.items()}
    return value
