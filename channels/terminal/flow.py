"""From drafts, each the whole answer so far, to what a terminal still has to print: it cannot take back what it has."""

from gateway.text import printable

__all__ = ["Flow"]

SEPARATOR = "\n---\n"


class Flow:
    """One answer on its way to the screen. Nothing that a terminal would obey gets through."""

    def __init__(self) -> None:
        self._printed = ""

    @property
    def is_under_way(self) -> bool:
        return bool(self._printed)

    def draft(self, text: str) -> str:
        """Return what `text` adds; nothing if it is not a continuation: the whole follows in any case."""
        shown = printable(text)
        if not shown.startswith(self._printed):
            return ""
        added = shown.removeprefix(self._printed)
        self._printed = shown
        return added

    def finish(self, text: str) -> str:
        """Return the rest of the answer with the end of its line; the whole of it where the drafts told otherwise."""
        whole = printable(text).rstrip()
        printed = self._printed.rstrip()
        if not whole.startswith(printed):
            return f"{SEPARATOR}{whole}\n"
        if whole == printed:
            # The drafts may have brought the end of the line along.
            return "" if self._printed.endswith("\n") else "\n"
        return f"{_rest(whole, self._printed)}\n"


def _rest(whole: str, printed: str) -> str:
    """Leave out what was printed; where only the white space differs, the space on the screen may stand."""
    if whole.startswith(printed):
        return whole.removeprefix(printed)
    return whole.removeprefix(printed.rstrip())
