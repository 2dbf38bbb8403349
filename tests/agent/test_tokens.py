"""The estimate against the counts of real tokenisers, recorded with bpe-openai, anthropic 0.30 and others."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.protocol import ToolSpec
from gateway.agent.tokens import Calibration, Calibrations, measure, measure_frame, measure_message
from gateway.conversation import AssistantMessage, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage

TOKENISERS = ("o200k", "cl100k", "mistral", "qwen", "claude", "deepseek")
# The tokens of each text, in the order of TOKENISERS.
RECORDED: dict[str, tuple[str, tuple[int, ...]]] = {
    "English": (
        (
            "The meeting has moved to Thursday because the heating in the old building still doesn't work. "
            "Could you write a short note to everyone and ask who needs a lift from the station?"
        ),
        (35, 36, 36, 36, 36, 36),
    ),
    "German": (
        (
            "Die Besprechung wurde auf Donnerstag verschoben, weil die Heizung im alten Gebäude immer noch nicht "
            "funktioniert. Könntest du allen eine kurze Nachricht schreiben und fragen, wer vom Bahnhof abgeholt "
            "werden möchte?"
        ),
        (42, 57, 46, 54, 66, 57),
    ),
    "Russian": (
        (
            "Встреча перенесена на четверг, потому что отопление в старом здании всё ещё не работает. "
            "Напиши, пожалуйста, всем короткое сообщение и спроси, кого нужно забрать с вокзала."  # noqa: RUF001
        ),
        (46, 76, 52, 62, 84, 57),
    ),
    "Chinese": (
        "会议改到星期四了，因为旧楼的暖气还没有修好。请你给大家写一条简短的通知，问问谁需要从车站接送。",  # noqa: RUF001
        (39, 52, 44, 31, 48, 28),
    ),
    "Japanese": (
        (
            "古い建物の暖房がまだ直っていないため、会議は木曜日に変更されました。"
            "みんなに短いお知らせを書いて、駅からの送迎が必要な人を聞いてください。"
        ),
        (49, 74, 50, 44, 70, 49),
    ),
    "code": (
        (
            'def load(path: Path) -> list[Row]:\n    with path.open(encoding="utf-8") as file:\n'
            '        return [Row(*line.split(",")) for line in file if not line.startswith("#")]\n'
        ),
        (44, 43, 44, 43, 49, 45),
    ),
    "JSON": (
        (
            '{"items": [{"id": 48213, "name": "heating", "state": "broken", "since": "2026-01-14T08:30:00Z", '
            '"tags": ["urgent", "house"]}, {"id": 48219, "name": "lift", "state": "ok", "since": null, "tags": []}], '
            '"next": null}'
        ),
        (85, 85, 102, 98, 83, 88),
    ),
    "numbers": (
        (
            "10.25,1183.7,0.0042,77\n98.6,2.71828,3.14159,1500\n"
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
        ),
        (77, 77, 109, 109, 77, 77),
    ),
    "emoji": (
        "Great news 🎉🎉 the heating works again 🔥 see you all on Thursday 👍🏽 bring cake 🍰😀",
        (25, 30, 37, 25, 33, 28),
    ),
}


@pytest.mark.parametrize("kind", RECORDED)
def test_without_reports_the_estimate_is_near_the_mean_of_real_tokenisers(kind: str) -> None:
    text, counts = RECORDED[kind]
    assert Calibration().estimate(measure(text)) == pytest.approx(sum(counts) / len(counts), rel=0.25)


@pytest.mark.parametrize("tokeniser", TOKENISERS)
@pytest.mark.parametrize("kind", RECORDED)
def test_a_growing_conversation_is_estimated_within_15_percent(kind: str, tokeniser: str) -> None:
    text, counts = RECORDED[kind]
    message, each = measure_message(UserMessage(text=text * 10)), 10 * counts[TOKENISERS.index(tokeniser)]
    frame, wrapping = measure_frame("Be brief. " * 100, ()), 200 + 350
    calibration = Calibration()
    for number in range(1, 13):
        calibration.learn(frame + number * message, wrapping + number * each)
    assert calibration.estimate(frame + 14 * message) == pytest.approx(wrapping + 14 * each, rel=0.15)


def test_an_estimate_that_was_too_low_is_corrected_faster_than_one_that_was_too_high() -> None:
    low, high = Calibration(), Calibration()
    low.learn(10_000, 13_000)
    high.learn(10_000, 7_000)
    assert low.factor - 1 > 2 * (1 - high.factor) > 0


def test_a_short_request_with_much_wrapping_says_little_about_long_ones() -> None:
    calibration = Calibration()
    calibration.learn(measure("hello there"), 20)
    calibration.learn(100, 500)
    assert calibration.estimate(10_000) < 12_000


@given(st.lists(st.tuples(st.floats(-10, 1e6), st.integers(-10, 10_000_000)), max_size=30))
def test_no_series_of_reports_makes_the_factor_absurd(reports: list[tuple[float, int]]) -> None:
    calibration = Calibration()
    for measured, tokens in reports:
        calibration.learn(measured, tokens)
    assert 0.1 <= calibration.factor <= 10


@given(st.text(st.characters()), st.text(st.characters()))
def test_measures_add_up(left: str, right: str) -> None:
    assert measure(left + right) == pytest.approx(measure(left) + measure(right))
    assert measure(left) >= 0.24 * len(left)


def test_tool_calls_and_outcomes_count_too() -> None:
    call = ToolCall(id="1", name="read_file", input={"path": "notes.txt"})
    assert 8 < measure_message(AssistantMessage(text="", tool_calls=(call,))) < 30
    assert 100 < measure_message(ToolMessage(outcomes=(ToolOutcome(id="1", output="milk " * 100),))) < 250


def test_a_picture_counts_if_it_is_shown() -> None:
    named = Picture(name="a", file="f/a", media_type="image/png")
    shown = msgspec.structs.replace(named, data=b"...")
    assert measure_message(UserMessage(text="look", pictures=(named,))) < 10
    assert measure_message(UserMessage(text="look", pictures=(shown,))) > 1_000


def test_tools_are_part_of_the_request() -> None:
    spec = ToolSpec(name="look", description="Look around.", schema={"type": "object"})
    assert measure_frame("", (spec, spec)) > measure_frame("", (spec,)) > measure_frame("", ()) > 0


def test_learned_factors_survive_a_restart() -> None:
    before = Calibrations()
    for _ in range(20):
        before["house/model"].learn(10_000, 14_000)
    after = Calibrations(before.unsaved_changes())
    assert after["house/model"].estimate(1_000) == pytest.approx(1_400, rel=0.01)
    assert after["house/other"].estimate(1_000) == 1_000


def test_only_a_factor_that_moved_is_written() -> None:
    calibrations = Calibrations()
    assert calibrations.unsaved_changes() is None
    for _ in range(30):
        calibrations["m"].learn(10_000, 14_000)
    kept = calibrations.unsaved_changes()
    assert kept is not None
    calibrations["m"].learn(10_000, 14_010)
    assert calibrations.unsaved_changes() is None
    assert Calibrations(kept).unsaved_changes() is None


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"m": [1]}', '{"m": [12.0, 4.0]}', '{"m": "x"}', '{"m": 0}', None])
def test_unreadable_factors_count_as_none(kept: str | None) -> None:
    assert Calibrations(kept)["m"].estimate(1_000) == 1_000


def test_the_number_of_models_is_bounded() -> None:
    calibrations = Calibrations()
    for number in range(1_000):
        calibrations[f"m{number}"].learn(10_000, 14_000)
    kept = calibrations.unsaved_changes()
    assert kept is not None
    assert len(kept) < 2_000
    assert '"m999"' in kept
