"""A model that does what the message says, word by word, and a tool that leaves a trace each time it runs.

A message is its own id and then words: `tool` and `tools` are steps with one call and with two, `ask` and `asks` have
calls that need consent, `long` makes the answer several parts long, `hang` never ends, `slow` waits for a file.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.agent.tools import Tool, ToolContext, tool
from gateway.conversation import Message, ToolCall, ToolMessage, ToolOutcome, UserMessage
from tests.crash.points import reach, whole_write
from tests.polling import until

__all__ = ["END", "Obedient", "leaving_traces"]

END = "#"
"""The last character of every whole answer."""

_CALLS = {"tool": ("leave",), "tools": ("leave", "leave"), "ask": ("ask_leave",), "asks": ("ask_leave", "ask_leave")}
_LONG = 120


class Obedient:
    def __init__(self, gate: Path) -> None:
        self._gate = gate

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        reach("model")
        words, outcomes = _asked(prompt.messages)
        mid, steps = words[0], [_CALLS[word] for word in words[1:] if word in _CALLS]
        taken = sum(1 for message in _since_asked(prompt.messages) if isinstance(message, ToolMessage))
        if "hang" in words:
            await asyncio.Event().wait()
        if "slow" in words:
            await until(self._gate.exists, within=300)
        if taken < len(steps):
            yield TextDelta(text=f"step {taken} of {mid}")
            for number, name in enumerate(steps[taken]):
                mark = f"{mid}-{taken}-{number}"
                yield ToolCall(id=mark, name=name, input={"mark": mark})
            return
        for piece in _answer(mid, outcomes, is_long="long" in words):
            reach("piece")
            yield TextDelta(text=piece)
            await asyncio.sleep(0)


def _answer(mid: str, outcomes: Sequence[ToolOutcome], *, is_long: bool) -> list[str]:
    results = ["cut" if outcome.is_error else "done" for outcome in outcomes]
    middle = ["".join(f"{number} of {mid}. " for number in range(_LONG))] if is_long else []
    return [f"answer {mid} ", *middle, f"[{' '.join(results)}] {END}"]


def _since_asked(messages: Sequence[Message]) -> Sequence[Message]:
    last = max(number for number, message in enumerate(messages) if isinstance(message, UserMessage))
    return messages[last:]


def _asked(messages: Sequence[Message]) -> tuple[list[str], list[ToolOutcome]]:
    asked, *rest = _since_asked(messages)
    assert isinstance(asked, UserMessage)
    outcomes = [outcome for message in rest if isinstance(message, ToolMessage) for outcome in message.outcomes]
    return asked.text.split(), outcomes


def leaving_traces(path: Path) -> list[Tool]:
    """Return the tool, and the same again for which somebody has to be asked."""

    async def leave(_context: ToolContext, mark: str) -> str:
        """Leave a mark in a file."""
        reach("tool before")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        whole_write(descriptor, f"{mark}\n".encode())
        os.close(descriptor)
        reach("tool after")
        return f"left {mark}"

    async def ask_leave(context: ToolContext, mark: str) -> str:
        """Leave a mark in a file, if somebody agrees."""
        return await leave(context, mark)

    return [tool(leave), tool(needs_approval=True)(ask_leave)]
