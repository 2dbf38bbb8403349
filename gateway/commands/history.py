"""Commands about the messages of a session. They delete nothing: clearing and undoing append entries."""

from gateway.commands.command import Answer, Call, Handlers, is_number
from gateway.errors import Refused
from gateway.sessions import SessionManager, entries, undo_last_turn
from gateway.text import excerpt

DEFAULT_LINES = 10
MAX_LINES = 100
QUOTE_WIDTH = 60


class HistoryCommands:
    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions

    def handlers(self) -> Handlers:
        return {"history": self.history, "clear": self.clear, "undo": self.undo, "retry": self.retry}

    async def history(self, call: Call) -> Answer:
        wanted = call.argument or str(DEFAULT_LINES)
        if not is_number(wanted) or int(wanted) == 0:
            raise Refused("How many lines? Send a number, like /history 20.")
        lines = await self._sessions.lines(call.session, min(int(wanted), MAX_LINES)) if call.session else []
        if not lines:
            return Answer(text="This session has no messages yet.")
        return Answer(text="\n\n".join(f"{'You' if line.role == 'user' else 'Agent'}: {line.text}" for line in lines))

    async def clear(self, call: Call) -> Answer:
        text = "Cleared. The agent has forgotten this session so far; the transcript keeps it."
        if (session := call.session) is None:
            return Answer(text=text)
        return Answer(text=text, commit=lambda operations: self._sessions.clear(session, also=operations))

    async def undo(self, call: Call) -> Answer:
        loaded = (await self._sessions.load(call.session)).entries if call.session else []
        undo = undo_last_turn(loaded)
        if call.session is None or undo is None:
            return Answer(text="There is nothing to undo here.")
        session = call.session
        said = "\n\n".join(
            each.content for each in loaded if isinstance(each, entries.User) and each.turn == undo.undone
        )
        return Answer(
            text=f"Undone: “{excerpt(said, QUOTE_WIDTH)}” and its answer no longer count.",
            commit=lambda operations: self._sessions.append(session, [undo], also=operations),
        )

    async def retry(self, _call: Call) -> Answer:
        """Answer a `/retry` that the dispatcher did not turn into a turn, because no message can be answered again."""
        return Answer(text="There is no answer to regenerate here.")
