"""The provider that needs no key and no network, so that a first run works: plain rules, and honest about it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator

from config import ProviderSettings
from gateway.agent.provider import Chunk, Prompt, Provider, TextDelta
from gateway.agent.rules import Ask, decide
from gateway.agent.step import new_call_id
from gateway.conversation import ToolCall

__all__ = ["OfflineProvider", "open_offline"]

_MAX_DELTAS = 250


class OfflineProvider:
    """Answers by rules, word by word, with `pace` seconds between two words."""

    def __init__(self, pace: float = 0.012) -> None:
        self._pace = pace

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        decision = decide(prompt.messages, offered={spec.name for spec in prompt.tools})
        if isinstance(decision, Ask):
            yield ToolCall(id=new_call_id(), name=decision.tool, input=decision.input)
            return
        for number, piece in enumerate(_pieces(decision)):
            if number:
                await asyncio.sleep(self._pace)
            yield TextDelta(text=piece)


def open_offline(_settings: ProviderSettings, _name: str) -> Provider:
    return OfflineProvider()


def _pieces(text: str) -> Iterator[str]:
    """Cut into words; into runs of words where there are so many that a reader would wait for the pace alone."""
    words = re.findall(r"\s*\S+\s*", text)
    run = -(-len(words) // _MAX_DELTAS) or 1
    for start in range(0, len(words), run):
        yield "".join(words[start : start + run])
