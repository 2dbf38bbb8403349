"""Going on where a stream was cut: what was shown is not taken back and not said twice."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.agent.provider import Chunk, Prompt, TextDelta
from gateway.conversation import AssistantMessage, UserMessage

__all__ = ["Resumption"]

_GO_ON = (
    "[The connection broke after your last words, which have arrived. Go on exactly where you stopped, "
    "in the middle of the word if need be. Do not repeat anything, and do not mention this.]"
)
_LONGEST_OVERLAP = 80
_SHORTEST_OVERLAP = 4


@dataclass(slots=True)
class Resumption:
    """Keeps what has been said in a step; when it has to be asked for again, asks for the rest alone.

    The rest may begin with the last words again: those are left out, for which its first few characters are held back.
    """

    said: str = ""
    _held: list[TextDelta] | None = field(default=None)

    def prompt(self, prompt: Prompt) -> Prompt:
        """Return what to ask: `prompt` itself, or after a cut, that it be gone on with."""
        if not self.said.strip():
            self.said = ""
            return prompt
        self._held = []
        cut = (AssistantMessage(text=self.said), UserMessage(text=_GO_ON))
        return replace(prompt, messages=(*prompt.messages, *cut))

    def take(self, chunk: Chunk) -> list[Chunk]:
        """Return what to pass on now that `chunk` has come."""
        if not isinstance(chunk, TextDelta):
            return [*self.release(), chunk]
        if self._held is None:
            self.said += chunk.text
            return [chunk]
        self._held.append(chunk)
        is_enough = sum(len(delta.text) for delta in self._held) >= _LONGEST_OVERLAP
        return [*self.release()] if is_enough else []

    def release(self) -> list[Chunk]:
        """Return what was held back, without what had been said before; call it at the end of the stream, too."""
        text = "".join(delta.text for delta in self._held or ())
        self._held = None
        fresh = text[_overlap(self.said, text) :]
        self.said += fresh
        return [TextDelta(text=fresh)] if fresh else []


def _overlap(said: str, text: str) -> int:
    """Return how much of the beginning of `text` is the end of `said`: a few characters may be so by chance."""
    for length in range(min(len(said), len(text), _LONGEST_OVERLAP), _SHORTEST_OVERLAP - 1, -1):
        if said.endswith(text[:length]):
            return length
    return 0
