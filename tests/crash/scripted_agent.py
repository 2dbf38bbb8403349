"""A model that follows the words of the message, and tools that record each run in a file.

A message starts with its own id, followed by words: `tool` and `tools` are steps with one call and with two, `ask` and
`asks` have calls that need approval, `long` makes the answer several parts long, `hang` never ends, `slow` waits for a
file.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.agent.tools import Tool, ToolContext, tool
from gateway.conversation import ToolCall, ToolMessage, UserMessage
from gateway.extraction.request import SYSTEM
from tests.crash.kill_points import reach, whole_write
from tests.polling import until

END = "#"
"""The last character of every complete answer."""

_CALLS = {
    "tool": ("record",),
    "tools": ("record", "record"),
    "ask": ("record_if_approved",),
    "asks": ("record_if_approved", "record_if_approved"),
}
_LONG = 120


class ScriptedModel:
    """Answers messages that contain `slow` only once the file `gate` exists."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        reach("model")
        if prompt.system == SYSTEM:
            yield TextDelta(text=_statements(prompt))
            return
        question = max(number for number, message in enumerate(prompt.messages) if isinstance(message, UserMessage))
        asked, *later = prompt.messages[question:]
        assert isinstance(asked, UserMessage)
        tool_messages = [message for message in later if isinstance(message, ToolMessage)]
        words = asked.text.split()
        mid, steps = words[0], [_CALLS[word] for word in words[1:] if word in _CALLS]
        taken = len(tool_messages)
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
        results = ["cut" if each.is_error else "done" for message in tool_messages for each in message.outcomes]
        middle = ["".join(f"{number} of {mid}. " for number in range(_LONG))] if "long" in words else []
        for piece in (f"answer {mid} ", *middle, f"[{' '.join(results)}] {END}"):
            reach("piece")
            yield TextDelta(text=piece)
            await asyncio.sleep(0)


def _statements(prompt: Prompt) -> str:
    """Answer a request of the archiver: each message of a person is worth keeping."""
    (question,) = prompt.messages
    assert isinstance(question, UserMessage)
    said = [each for each in json.loads(question.text)["messages"] if each["from"] != "assistant"]
    return json.dumps([{"seq": each["seq"], "text": each["text"]} for each in said])


def recording_tools(path: Path) -> list[Tool]:
    """Return two tools that append a line to `path`. The second one needs approval."""

    async def record(_context: ToolContext, mark: str) -> str:
        """Append a mark to a file."""
        reach("tool before")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        whole_write(descriptor, f"{mark}\n".encode())
        os.close(descriptor)
        reach("tool after")
        return f"recorded {mark}"

    async def record_if_approved(context: ToolContext, mark: str) -> str:
        """Append a mark to a file, with approval."""
        return await record(context, mark)

    return [tool(record), tool(needs_approval=True)(record_if_approved)]
