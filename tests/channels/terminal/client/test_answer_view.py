"""The styled view, on an emulated screen that knows the few control sequences that it uses."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from channels.terminal.client.answer_view import StyledAnswer
from channels.terminal.client.markdown import TerminalText

SGR = re.compile(r"\x1b\[[0-9;]*m")
TOKENS = re.compile(r"\x1b\[(\d*)([AJK])|([\r\n])|([^\x1b\r\n]+)")
COLUMNS, ROWS = 40, 12
style = TerminalText(has_colour=True)


class Screen:
    """Lines that were written, and a cursor. It never scrolls away what is more than `ROWS` above the cursor."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        for number, control, move, words in TOKENS.findall(SGR.sub("", text)):
            if control == "A":
                self._row -= int(number)
                assert self._row >= 0
                assert len(self.lines) - self._row <= ROWS, "the cursor can't leave the screen"
            elif control == "J":
                self.lines[self._row :] = [self.lines[self._row][: self._column]]
            elif control == "K":
                self.lines[self._row] = self.lines[self._row][: self._column]
            elif move == "\r":
                self._column = 0
            elif move == "\n":
                self._row, self._column = self._row + 1, 0
                if self._row == len(self.lines):
                    self.lines.append("")
            else:
                line = self.lines[self._row]
                self.lines[self._row] = line[: self._column] + words + line[self._column + len(words) :]
                self._column += len(words)

    @property
    def text(self) -> list[str]:
        return [line.rstrip() for line in self.lines]


def view(seconds: float = 0.0) -> StyledAnswer:
    times = iter([0.0])
    return StyledAnswer(style, lambda: (COLUMNS, ROWS), lambda: next(times, seconds))


def rendered(text: str) -> list[str]:
    return [SGR.sub("", line).rstrip() for line in style.markdown(text, COLUMNS - 1)]


def test_the_indicator_waits_moves_and_disappears() -> None:
    screen, answer = Screen(), view(seconds=12.3)
    screen.write(answer.tick())
    assert screen.text == ["⠸ Waiting for the answer. Ctrl-C stops"]
    screen.write(answer.tick())
    screen.write(answer.above("You have mail."))
    screen.write(answer.tick())
    assert screen.text[:2] == ["You have mail.", ""]
    screen.write(answer.draft("It is"))
    assert screen.text == ["You have mail.", "", "It is", "⠸ 12 s"]
    screen.write(answer.finish("It is **nine**."))
    assert screen.text == ["You have mail.", "", "It is nine.", ""]


def test_complete_blocks_are_printed_once_and_the_last_one_is_repainted() -> None:
    screen, answer = Screen(), view()
    written = [answer.draft(text) for text in ("# On", "# One\n\n- a", "# One\n\n- a\n- b")]
    for text in written:
        screen.write(text)
    assert screen.text == ["One", "", "• a", "• b", "⠋"]
    assert "One" not in written[2]


def test_the_end_of_a_block_is_shown_while_it_is_longer_than_the_screen() -> None:
    screen, answer = Screen(), view()
    items = "\n".join(f"- item {number}" for number in range(30))
    for end in (10, 100, 200, len(items)):
        screen.write(answer.draft(items[:end]))
    assert len(screen.text) < ROWS
    assert screen.text[-2] == "• item 29"
    screen.write(answer.finish(items))
    assert screen.text == [*rendered(items), ""]


def test_text_that_an_answer_does_not_continue_stays_on_the_screen() -> None:
    screen, answer = Screen(), view()
    screen.write(answer.draft("It is ni"))
    screen.write(answer.clear())
    screen.write(answer.finish("(Stopped waiting.)", is_markdown=False))
    assert screen.text == ["It is ni", "", "---", "(Stopped waiting.)", ""]


@given(
    st.lists(st.sampled_from(["word ", "a **b** ", "\n\n", "- x\n", "```\n", "code\n", "> q\n", "# h\n"])),
    st.lists(st.integers(min_value=0, max_value=80)),
)
def test_the_screen_ends_with_the_whole_answer(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    screen, answer = Screen(), view()
    for start, end in pairwise(sorted([0, *cuts])):
        screen.write(answer.draft(text[:end]) if end > start else answer.tick())
    screen.write(answer.finish(text))
    assert [line for line in screen.text if line] == [line for line in rendered(text) if line]


def test_a_long_block_is_styled_when_it_is_complete() -> None:
    """Styling a long list again for each draft would block the chat for seconds."""
    text = "".join(f"- item {number}\n" for number in range(1000))
    screen, answer = Screen(), view()
    screen.write(answer.draft(text))
    assert screen.text[-3:-1] == ["- item 998", "- item 999"]
    screen.write(answer.finish(text))
    assert screen.text == [*rendered(text), ""]


def test_the_start_of_a_long_block_stays_when_the_answer_is_another_one() -> None:
    text = "".join(f"- item {number}\n" for number in range(1000))
    screen, answer = Screen(), view()
    screen.write(answer.draft(text))
    screen.write(answer.finish("Stopped.", is_markdown=False))
    assert screen.text == [*rendered(text), "", "---", "Stopped.", ""]
