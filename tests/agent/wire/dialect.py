"""What the wire formats have in common, so that one test can hold for all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Call", "Dialect", "Refusal"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; its arguments are JSON text, in the pieces in which they are streamed."""

    name: str
    arguments: Sequence[str]
    id: str = "call_0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no stream."""

    status: int
    body: dict[str, Any] | str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Dialect(Protocol):
    @property
    def kind(self) -> str:
        """The provider's kind in the settings."""

    @property
    def path(self) -> str:
        """Where requests are sent to."""

    @property
    def base(self) -> str:
        """What belongs to the base URL of that."""

    def answer(
        self, *texts: str, calls: Sequence[Call] = (), is_cut_short: bool = False, tokens: tuple[int, int] = (11, 7)
    ) -> list[bytes]:
        """Return a whole stream, one chunk for each event: texts, calls, then the end with the tokens in and out."""

    def complaints(self, body: dict[str, Any]) -> Iterator[str]:
        """Find in a request what the real API refuses."""

    def refusal(self, status: int, code: str, message: str = "It did not work.", **headers: str) -> Refusal:
        """Return an error as the API words it."""
