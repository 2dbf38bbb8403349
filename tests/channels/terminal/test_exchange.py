from datetime import UTC, datetime

import pytest

from channels.terminal.exchange import Exchange
from channels.websocket.wire import Ack, Message
from gateway.contract import OutboundKind, Verdict

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "is_question", "is_answer"),
    [
        ("delete it", True, False),
        ("yes", False, True),
        ("No.", False, True),
        ("/approve", False, True),
        ("hello", False, False),
    ],
)
async def test_a_notice_answers_commands_and_what_was_said_to_a_question(
    said: str, *, is_question: bool, is_answer: bool
) -> None:
    """And a question is no answer, though it ends the waiting: it is the person's turn to say something."""
    exchange = Exchange(said)
    exchange.hear(Ack(id=exchange.id, verdict=Verdict.ACCEPTED, at=NOW))
    exchange.hear(
        Message(
            key="k",
            kind=OutboundKind.NOTICE,
            text="Sure?",
            at=NOW,
            reply_to=exchange.id,
            is_question=is_question,
        )
    )
    assert (await exchange.outcome()).is_answer is is_answer
