import pytest

from gateway.spool.rows import INBOX_MOVES, INBOX_OPEN, OUTBOX_MOVES, OUTBOX_OPEN, InboxState, OutboxState, sources


def test_every_state_has_its_moves() -> None:
    assert set(INBOX_MOVES) == set(InboxState)
    assert set(OUTBOX_MOVES) == set(OutboxState)


@pytest.mark.parametrize("state", sorted(set(InboxState) - INBOX_OPEN))
def test_a_finished_message_does_not_change_state(state: InboxState) -> None:
    assert not INBOX_MOVES[state]


@pytest.mark.parametrize("state", sorted(INBOX_OPEN))
def test_an_unfinished_message_can_reach_every_final_state(state: InboxState) -> None:
    assert set(InboxState) - INBOX_OPEN <= INBOX_MOVES[state]


@pytest.mark.parametrize("state", sorted(OUTBOX_OPEN))
def test_a_reply_can_be_given_up_at_any_time(state: OutboxState) -> None:
    assert OutboxState.DEAD in OUTBOX_MOVES[state]


def test_a_delivered_reply_stays_delivered() -> None:
    assert not OUTBOX_MOVES[OutboxState.DELIVERED]
    assert sources(OUTBOX_MOVES, OutboxState.DELIVERED) == (OutboxState.PENDING, OutboxState.SENDING)
