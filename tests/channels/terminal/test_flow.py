from hypothesis import given
from hypothesis import strategies as st

from channels.terminal.flow import SEPARATOR, Flow
from gateway.text import printable


@given(text=st.text(), cuts=st.lists(st.integers(min_value=0, max_value=50)))
def test_drafts_and_the_end_add_up_to_the_answer(text: str, cuts: list[int]) -> None:
    flow = Flow()
    printed = "".join(flow.draft(text[:cut]) for cut in sorted(cuts)) + flow.finish(text)
    assert printed.rstrip() == printable(text).rstrip()
    assert printed.endswith("\n")


@given(drafts=st.lists(st.text()), text=st.text())
def test_whatever_the_drafts_said_the_whole_answer_is_printed(drafts: list[str], text: str) -> None:
    flow = Flow()
    printed = "".join(map(flow.draft, drafts)) + flow.finish(text)
    assert "".join(printed.split()).endswith("".join(printable(text).split()))
    assert printed == printable(printed)


def test_an_answer_that_went_another_way_is_printed_whole_behind_a_line() -> None:
    flow = Flow()
    assert flow.draft("It is ni") == "It is ni"
    assert flow.finish("It was ten.") == f"{SEPARATOR}It was ten.\n"


def test_a_draft_that_goes_another_way_waits_for_the_whole() -> None:
    flow = Flow()
    flow.draft("one")
    assert flow.draft("two") == ""
    assert flow.draft("one more") == " more"


def test_no_escape_sequence_gets_through() -> None:
    flow = Flow()
    assert flow.draft("red\x1b[31m") == "red[31m"
    assert flow.finish("red\x1b[31m\x1b]0;owned\x07\r!") == "]0;owned!\n"


def test_space_at_the_end_of_a_draft_is_not_taken_for_another_way() -> None:
    flow = Flow()
    flow.draft("done ")
    assert flow.finish("done") == "\n"


def test_space_that_became_a_new_paragraph_still_is_a_continuation() -> None:
    flow = Flow()
    flow.draft("first ")
    assert flow.finish("first\n\nsecond") == "\n\nsecond\n"
