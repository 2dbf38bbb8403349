"""A provider that says what it is told to, for tests of the loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from gateway.agent.protocol import Chunk, Prompt, TextDelta


class ScriptedProvider:
    """Plays one list of chunks per step, first in first out, then repeats the last. Keeps the prompts it was given."""

    def __init__(self, *steps: Sequence[Chunk | Exception]) -> None:
        self._steps = list(steps)
        self.prompts: list[Prompt] = []
        self.is_closed = False

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.prompts.append(prompt)
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        try:
            for chunk in step:
                await asyncio.sleep(0)
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.is_closed = True


class PatientProvider:
    """Says one piece after the other, and goes on only once `seen` has returned for the piece before."""

    def __init__(self, pieces: Sequence[str], seen: Callable[[str], Awaitable[object]]) -> None:
        self._pieces = pieces
        self._seen = seen

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        for piece in self._pieces:
            yield TextDelta(text=piece)
            await self._seen(piece.strip())
