import pytest

from gateway.agent.calibrations import Calibrations
from gateway.agent.tokens import measure

TEXT = measure("what was learned is kept " * 50)


def test_what_was_learned_survives_a_restart() -> None:
    before = Calibrations()
    for _ in range(5):
        before["house/model"].learn(TEXT, 700)
    after = Calibrations(before.news())
    assert after["house/model"].estimate(TEXT) == pytest.approx(700, rel=0.02)
    assert after["house/other"].estimate(TEXT) != pytest.approx(700, rel=0.1)


def test_only_news_are_worth_writing_down() -> None:
    calibrations = Calibrations()
    assert calibrations.news() is None
    for _ in range(30):
        calibrations["m"].learn(TEXT, 700)
    assert calibrations.news() is not None
    calibrations["m"].learn(TEXT, 701)
    assert calibrations.news() is None


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"m": [1]}', '{"m": "x"}', None])
def test_what_cannot_be_read_is_as_good_as_nothing(kept: str | None) -> None:
    assert Calibrations(kept)["m"].estimate(TEXT) == Calibrations()["m"].estimate(TEXT)


def test_there_is_room_for_so_many_models_and_no_more() -> None:
    calibrations = Calibrations()
    for number in range(1_000):
        calibrations[f"m{number}"].learn(TEXT, 700)
    kept = calibrations.news()
    assert kept is not None
    assert len(kept) < 10_000
    assert '"m999"' in kept
