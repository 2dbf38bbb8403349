"""The estimate against tokenisers that it does not know, over conversations of several kinds of text."""

import random
import re
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.provider import ToolSpec
from gateway.agent.tokens import (
    DEFAULT_WEIGHTS,
    ONE_REQUEST,
    Calibration,
    measure,
    measure_message,
    measure_tools,
    total,
)
from gateway.dialogue import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage

Tokeniser = Callable[[str], float]
Kind = Callable[[random.Random], str]

WORDS = ["the", "of", "time", "people", "system", "gateway", "conversation", "remember", "quickly", "house", "because"]


def prose(rng: random.Random) -> str:
    return ", ".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(rng.randint(1, 40))) + "."


def code(rng: random.Random) -> str:
    lines = [f"if self._{rng.choice(WORDS)}[{rng.randint(0, 999)}] == 'x': return {{}}" for _ in range(30)]
    return "\n".join("    " * rng.randint(0, 3) + line for line in lines[: rng.randint(1, 30)])


def chinese(rng: random.Random) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(rng.randint(5, 400)))


def russian(rng: random.Random) -> str:
    return " ".join("".join(chr(rng.randint(0x430, 0x44F)) for _ in range(6)) for _ in range(rng.randint(2, 90)))


def figures(rng: random.Random) -> str:
    return ", ".join(str(rng.random()) for _ in range(rng.randint(2, 60)))


def emoji(rng: random.Random) -> str:
    return "".join(rng.choice("😀🎉🚀 ok ") for _ in range(rng.randint(5, 300)))


def by_bytes(text: str) -> float:
    return len(text.encode()) / 3


def by_pieces(text: str) -> float:
    return len(re.findall(r"[A-Za-z]{1,6}|\d{1,3}|\s+(?=\S)|[^\sA-Za-z\d]", text))


def by_words(text: str) -> float:
    pieces = re.findall(r"\w+|[^\w\s]", text)
    return sum(
        max(1, len(piece) / 5) if piece.isascii() and piece.isalpha() else len(piece.encode()) / 2.2 for piece in pieces
    )


@pytest.mark.parametrize("tokeniser", [by_bytes, by_pieces, by_words, len])
@pytest.mark.parametrize("kind", [prose, code, chinese, russian, figures, emoji])
def test_after_three_turns_it_is_within_15_percent(tokeniser: Tokeniser, kind: Kind) -> None:
    for seed in range(8):
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        calibration, said = Calibration(), [prose(rng)]
        per_message, per_request = rng.choice([0, 3, 10]), rng.choice([0, 20, 350])
        for turn in count():
            said.append(kind(rng))
            measured = total([ONE_REQUEST, *(measure_message(UserMessage(text=text)) for text in said)])
            true = round(per_request + sum(tokeniser(text) + per_message for text in said))
            if turn >= 3:
                assert calibration.estimate(measured) == pytest.approx(true, rel=0.15)
            if turn == 8:
                break
            calibration.learn(measured, true)
            said.append(kind(rng))


def test_what_one_kind_of_text_taught_is_not_forgotten_over_another() -> None:
    rng = random.Random(0)  # noqa: S311 - nothing secret
    calibration = Calibration()
    for kind in (chinese, prose):
        for _ in range(6):
            text = kind(rng)
            calibration.learn(measure(text), round(by_bytes(text)))
    text = chinese(rng)
    assert calibration.estimate(measure(text)) == pytest.approx(by_bytes(text), rel=0.15)


def test_without_any_report_english_is_estimated_as_the_big_tokenisers_count_it() -> None:
    text = "The quick brown fox jumps over the lazy dog, and nobody in the house has noticed it yet. " * 20
    assert Calibration().estimate(measure(text)) == pytest.approx(20 * 20, rel=0.25)


@given(st.lists(st.tuples(st.text(max_size=200), st.integers(-10, 10_000)), max_size=30))
def test_no_report_leads_the_weights_astray(reports: list[tuple[str, int]]) -> None:
    calibration = Calibration()
    for text, tokens in reports:
        calibration.learn(measure(text), tokens)
    for weight, usual in zip(calibration.weights, DEFAULT_WEIGHTS, strict=True):
        assert 0.2 * usual <= weight <= 50 * usual


@given(st.text(st.characters()))
def test_every_character_counts_once(text: str) -> None:
    _, _, words, letters, digits, marks, blanks, two, three, four, _ = measure(text)
    spaces = sum(text.count(blank) for blank in " \t\n\r\v\f")
    assert letters + digits + marks + two + three + four + spaces == len(text)
    assert 0 <= blanks <= spaces
    assert words <= len(text)


def test_tool_calls_and_outcomes_count_too() -> None:
    call = ToolCall(id="1", name="read_file", input={"path": "notes.txt"})
    messages: list[Message] = [
        AssistantMessage(text="", tool_calls=(call,)),
        ToolMessage(outcomes=(ToolOutcome(id="1", output="milk " * 100),)),
    ]
    asked, told = (Calibration().estimate(measure_message(message)) for message in messages)
    assert 8 < asked < 30
    assert 100 < told < 250


def test_tools_are_part_of_the_request() -> None:
    spec = ToolSpec(name="look", description="Look around.", schema={"type": "object"})
    assert Calibration().estimate(measure_tools((spec, spec))) > Calibration().estimate(measure_tools((spec,))) > 0
