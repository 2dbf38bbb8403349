import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import Statement
from gateway.memory.prompt import quote_memory
from gateway.turns.context import PromptFacts, system_prompt

FACTS = PromptFacts(
    agent="main",
    channel="telegram",
    chat="a direct chat",
    sender="Ada",
    workspace="house",
    date="Sunday, 2026-03-01",
)


def test_facts_without_a_placeholder_are_added_after_the_prompt() -> None:
    assert system_prompt("Be brief.", FACTS) == (
        'Be brief.\n\nThis is a direct chat on telegram with "Ada". Your workspace is "house". '
        "Today is Sunday, 2026-03-01 (UTC)."
    )


def test_facts_with_a_placeholder_are_filled_in_and_not_repeated() -> None:
    told = system_prompt("You are {{agent}}, talking to {{ sender }} on {{channel}}. {{date}}. {{workspace}}.", FACTS)
    assert told.startswith("You are main, talking to Ada on telegram. Sunday, 2026-03-01. house.")
    assert told.count("2026-03-01") == told.count("house") == told.count("Ada") == 1


def test_unknown_placeholders_and_other_braces_stay_unchanged() -> None:
    text = 'Answer as {"a": {"b": 1}} or {{unknown}} or {date}.'
    assert system_prompt(text, FACTS).startswith(text)


@given(st.text())
def test_a_value_that_looks_like_a_placeholder_is_not_filled_in(name: str) -> None:
    facts = PromptFacts(
        agent="{{date}}", channel="c", chat="a group", sender=name, workspace="{{sender}}", date="today"
    )
    assert system_prompt("{{agent}} {{workspace}}", facts).startswith("{{date}} {{sender}}\n\n")


def test_only_the_newest_notes_are_quoted_and_the_rest_is_counted() -> None:
    notes = [Statement(text=f"note {number}: {'x' * 190}") for number in range(30)]
    told = system_prompt("Be brief.", FACTS, quote_memory(notes, 2_000))
    assert "note 29" in told
    assert "note 0:" not in told
    assert "older ones can be recalled" in told
    assert len(told) < 2_600


@given(st.lists(st.text(min_size=1, max_size=80), max_size=12))
def test_a_note_is_always_one_quoted_line(notes: list[str]) -> None:
    quoted = quote_memory([Statement(text=note) for note in notes], 2_000)
    lines = [line[2:] for line in system_prompt("", FACTS, quoted).split("\n") if line.startswith('- "')]
    assert [json.loads(line) for line in lines] == notes
