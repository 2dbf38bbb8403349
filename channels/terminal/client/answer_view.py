"""How an answer appears while it is written: as plain text, or as styled Markdown with a waiting indicator."""

from collections.abc import Callable
from typing import Protocol

from channels.terminal.client.markdown import MAX_WIDTH, TerminalText
from gateway.text import printable

SEPARATOR = "\n---\n"
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
WAITING = "Waiting for the answer. Ctrl-C stops it."
MAX_STYLED_DRAFT = 4000
"""In characters. While a longer block is being written, its end is shown without styles: styling takes too long."""
FIRST_SECONDS = 3
"""The indicator shows the seconds after this many."""


class AnswerView(Protocol):
    """Each method returns the text to write to the terminal. Control characters of answers are removed."""

    @property
    def has_started(self) -> bool:
        """Whether a part of the answer is on the screen."""

    def draft(self, text: str) -> str:
        """Show the answer so far."""

    def finish(self, text: str, *, is_markdown: bool = True) -> str:
        """Show the whole answer, and end its line."""

    def tick(self) -> str:
        """Move the waiting indicator. Called several times a second until the answer is complete."""

    def above(self, text: str) -> str:
        """Show lines of text above an answer that has not started."""

    def clear(self) -> str:
        """Remove the waiting indicator."""


class PlainAnswer:
    """Prints the part of each draft that is new: a dumb terminal cannot take text back."""

    def __init__(self) -> None:
        self._printed = ""

    @property
    def has_started(self) -> bool:
        return bool(self._printed)

    def draft(self, text: str) -> str:
        """Return the text that this draft adds. It is empty if the draft does not continue the printed text."""
        shown = printable(text)
        if not shown.startswith(self._printed):
            return ""
        added = shown.removeprefix(self._printed)
        self._printed = shown
        return added

    def finish(self, text: str, *, is_markdown: bool = True) -> str:
        """Return the rest of the answer and a line ending, or the whole answer if it differs from the drafts."""
        del is_markdown
        whole = printable(text).rstrip()
        printed = self._printed.rstrip()
        if not whole.startswith(printed):
            return f"{SEPARATOR}{whole}\n"
        if whole == printed:
            # The drafts may have ended with the line ending.
            return "" if self._printed.endswith("\n") else "\n"
        # If the answer differs only in the white space after the printed text, the printed space stays.
        start = self._printed if whole.startswith(self._printed) else printed
        return f"{whole.removeprefix(start)}\n"

    def tick(self) -> str:
        return ""

    def above(self, text: str) -> str:
        return f"{printable(text).rstrip()}\n\n"

    def clear(self) -> str:
        return ""


class StyledAnswer:
    """Prints complete blocks once. The block that is being written, and the indicator, are painted over each other.

    The cursor stays at the end of the indicator, so the painted rows are above it.
    """

    def __init__(self, style: TerminalText, size: Callable[[], tuple[int, int]], clock: Callable[[], float]) -> None:
        """Take the `size` of the terminal in columns and rows, and a `clock` in seconds."""
        self._style = style
        self._size = size
        self._clock = clock
        self._started = clock()
        self._draft = ""
        """The answer so far."""
        self._printed = ""
        """The part of it that has been printed: its complete blocks."""
        self._block: list[str] = []
        """The lines of the block that is being written, or of its end."""
        self._rows = 0
        """How many rows are painted."""

    @property
    def has_started(self) -> bool:
        return bool(self._printed or self._block)

    def draft(self, text: str) -> str:
        shown = printable(text)
        if not shown.startswith(self._printed):
            return ""
        self._draft = shown
        rest = shown.removeprefix(self._printed)
        end = self._style.complete_length(rest)
        complete = rest[:end]
        self._printed += complete
        block = rest[end:]
        render = self._style.markdown if len(block) <= MAX_STYLED_DRAFT else self._style.plain
        self._block = render(block[-MAX_STYLED_DRAFT:], self._width)
        blocks = [*self._style.markdown(complete, self._width), ""] if complete.strip() else []
        return self._erase() + "".join(f"{line}\n" for line in blocks) + self._paint()

    def finish(self, text: str, *, is_markdown: bool = True) -> str:
        render = self._style.markdown if is_markdown else self._style.plain
        shown = printable(text)
        if shown.startswith(self._draft.rstrip()):
            lines = render(shown.removeprefix(self._printed), self._width)
        else:  # The answer, or why there is none, follows the text that is on the screen.
            block = self._style.markdown(self._draft.removeprefix(self._printed), self._width)
            lines = [*block, *SEPARATOR.splitlines(), *render(shown, self._width)]
        return self._erase() + "".join(f"{line}\n" for line in lines)

    def tick(self) -> str:
        if not self._rows:
            return self._paint()
        return f"\r\x1b[K{self._indicator()}"

    def clear(self) -> str:
        return "\r\x1b[K" if self._rows else ""

    def above(self, text: str) -> str:
        lines = [*self._style.plain(text, self._width), ""]
        return self._erase() + "".join(f"{line}\n" for line in lines)

    @property
    def _width(self) -> int:
        return min(self._size()[0] - 1, MAX_WIDTH)

    def _erase(self) -> str:
        if not self._rows:
            return ""
        up = f"\x1b[{self._rows - 1}A" if self._rows > 1 else ""
        self._rows = 0
        return f"\r{up}\x1b[J"

    def _paint(self) -> str:
        # What has scrolled out of the screen could not be painted over. The end of a long block is enough to follow it.
        height = max(self._size()[1] - 2, 1)
        lines = [*self._block[-height:], self._indicator()]
        self._rows = len(lines)
        return "\n".join(lines)

    def _indicator(self) -> str:
        seconds = self._clock() - self._started
        frame = FRAMES[int(seconds * 10) % len(FRAMES)]
        waited = f" {seconds:.0f} s" if seconds >= FIRST_SECONDS else ""
        words = f"{frame}{waited}" if self.has_started else f"{frame} {WAITING}{waited}"
        return self._style.dim(words, self._width)[0]
