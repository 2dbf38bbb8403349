"""The common interface of the wire formats, so that one test covers all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` are the streamed pieces of its JSON text."""

    name: str
    arguments: Sequence[str]
    id: str = "call_0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response."""

    status: int
    body: dict[str, Any] | str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Dialect(Protocol):
    @property
    def kind(self) -> str:
        """The provider's kind in the settings."""

    @property
    def path(self) -> str:
        """The path of requests."""

    @property
    def base(self) -> str:
        """The part of `path` that belongs to the base URL."""

    def answer(
        self, *texts: str, calls: Sequence[Call] = (), is_cut_short: bool = False, tokens: tuple[int, int] = (11, 7)
    ) -> list[bytes]:
        """Return a complete stream with one chunk per event: texts, calls, and the end with input and output tokens."""

    def complaints(self, body: dict[str, Any]) -> Iterator[str]:
        """Yield each reason for which the real API would refuse a request."""

    def refusal(self, status: int, code: str, message: str = "It did not work.", **headers: str) -> Refusal:
        """Return an error in the format of the API."""
