"""The answer to a request: pieces of text and tool calls as they come, and the tokens that they took."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from gateway.agent.protocol import TextDelta, TokenUsage
from gateway.conversation import ToolCall
from gateway.sessions import SessionMeta, entries


class AnswerTokens(Struct, frozen=True, kw_only=True):
    """Tokens of all steps of an answer. The last piece of it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def plus(self, usage: entries.Usage | TokenUsage) -> "AnswerTokens":
        cached = usage.cached_tokens if isinstance(usage, entries.Usage) else usage.cache_read_tokens
        return AnswerTokens(
            input_tokens=self.input_tokens + usage.input_tokens,
            output_tokens=self.output_tokens + usage.output_tokens,
            cached_tokens=self.cached_tokens + cached,
            cache_write_tokens=self.cache_write_tokens + usage.cache_write_tokens,
        )


Piece = TextDelta | ToolCall | AnswerTokens


class StreamedAnswer(Struct, frozen=True, kw_only=True):
    """An answer that is being written. `name` makes the ids of the objects that the client gets.

    `pieces` raises `HttpError` if there is no answer. `session` is None for a stateless request.
    """

    name: str
    created: int
    session: SessionMeta | None
    pieces: AsyncGenerator[Piece, None]


class WholeAnswer(Struct, frozen=True, kw_only=True):
    text: str
    calls: tuple[ToolCall, ...]
    tokens: AnswerTokens


async def read_whole(answer: StreamedAnswer) -> WholeAnswer:
    """Wait for all of an answer."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    tokens = AnswerTokens()
    async with aclosing(answer.pieces) as pieces:
        async for piece in pieces:
            match piece:
                case TextDelta():
                    texts.append(piece.text)
                case ToolCall():
                    calls.append(piece)
                case AnswerTokens():
                    tokens = piece
    return WholeAnswer(text="".join(texts), calls=tuple(calls), tokens=tokens)


class AnswerText:
    """The text of an answer, which may have several steps with tool calls between them. Steps become paragraphs.

    Each method returns the text to send next. All of it together is the answer.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._step: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, delta: str) -> str:
        """Add the next piece of the current step."""
        # Blank text is held back: a step may have nothing else.
        self._step.append(delta)
        if not delta.strip() and not any(each.strip() for each in self._step):
            return ""
        is_first = not any(each.strip() for each in self._step[:-1])
        return self._send("".join(self._step) if is_first else delta, is_first=is_first)

    def end_step(self, content: str) -> str:
        """End the current step, whose whole text is `content`. Return the part of it that no delta had."""
        streamed = "".join(self._step)
        self._step.clear()
        if not streamed.strip():
            return self._send(content, is_first=True) if content.strip() else ""
        if content.startswith(streamed):
            return self._send(content[len(streamed) :], is_first=False)
        return self._send(content, is_first=True)  # It was replaced.

    def _send(self, text: str, *, is_first: bool) -> str:
        if is_first and self._pieces:
            text = f"\n\n{text}"
        if text:
            self._pieces.append(text)
        return text
