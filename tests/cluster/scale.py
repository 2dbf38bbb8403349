"""How thorough the tests of a cluster are, and where they write down what they have measured."""

import os
from dataclasses import asdict, is_dataclass
from pathlib import Path

SCALE = int(os.environ.get("GATEHOUSE_CLUSTER_SCALE", "1"))
"""`make cluster` sets 20."""
IS_LONG = SCALE > 1
MESSAGES = 500 * SCALE if IS_LONG else 240
MESSAGES_OF_FAULT = MESSAGES // 8 if IS_LONG else 200
"""Messages of the tests with one fault, or with faults of one kind."""
CHATS = min(200, MESSAGES // 10)
"""Conversations into which the messages are divided: half of them on Telegram, and half of the API."""
RATE = 40.0
"""Messages per second."""

_REPORT = os.environ.get("GATEHOUSE_CLUSTER_REPORT")


def report(test: str, **figures: object) -> None:
    """Print figures, and append them to the file that `make cluster` shows at its end."""
    line = f"{test}: " + ", ".join(
        _text(value) if is_dataclass(value) else f"{name}={_text(value)}" for name, value in figures.items()
    )
    print(line)  # noqa: T201 - pytest shows it with -s, or after a failure.
    if _REPORT:
        with Path(_REPORT).open("a") as file:
            file.write(f"{line}\n")


def _text(value: object) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return " ".join(f"{name}={_text(each)}" for name, each in asdict(value).items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)
