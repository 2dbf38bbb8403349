"""Commands about what was said in a session. Nothing is ever destroyed: clearing and undoing are entries too."""

from gateway.commands.command import Answer, Call, Command, Kind, is_number
from gateway.errors import Refused
from gateway.text import excerpt

__all__ = ["CLEAR", "HISTORY", "RETRY", "UNDO"]

SHOWN_LINES = 10
MAX_SHOWN_LINES = 100
QUOTED_WIDTH = 60

NOTHING_TO_UNDO = Answer(text="There is nothing to take back here.")


async def _history(call: Call) -> Answer:
    wanted = _wanted(call.argument) if call.argument else SHOWN_LINES
    lines = await call.desk.sessions.lines(call.session, wanted) if call.session else []
    if not lines:
        return Answer(text="Nothing has been said in this session yet.")
    return Answer(text="\n\n".join(f"{'You' if line.role == 'user' else 'Agent'}: {line.text}" for line in lines))


def _wanted(argument: str) -> int:
    if not is_number(argument) or int(argument) == 0:
        raise Refused("How many lines? Send a number, like /history 20.")
    return min(int(argument), MAX_SHOWN_LINES)


async def _clear(call: Call) -> Answer:
    answer = Answer(text="Cleared: the agent starts afresh in this session. The transcript keeps what was said.")
    if call.session:
        await call.desk.sessions.clear(call.session, also=call.settle(answer))
    return answer


async def _undo(call: Call) -> Answer:
    if call.session is None:
        return NOTHING_TO_UNDO
    undone = await call.desk.sessions.undo(call.session, also=lambda undone: call.settle(_taken_back(undone.said)))
    return _taken_back(undone.said) if undone else NOTHING_TO_UNDO


def _taken_back(said: str) -> Answer:
    return Answer(text=f"Taken back: “{excerpt(said, QUOTED_WIDTH)}” and the answer to it do not count any more.")


async def _nothing_to_retry(_call: Call) -> Answer:
    return Answer(text="There is nothing to try again here.")


HISTORY = Command(
    name="history",
    arguments="[lines]",
    summary="Show the last lines of this session",
    run=_history,
    kind=Kind.READING,
)
CLEAR = Command(
    name="clear", summary="Let the agent forget what was said in this session", run=_clear, kind=Kind.QUEUED
)
UNDO = Command(name="undo", summary="Take back your last message and its answer", run=_undo, kind=Kind.QUEUED)
RETRY = Command(name="retry", summary="Have your last message answered anew", run=_nothing_to_retry, kind=Kind.QUEUED)
