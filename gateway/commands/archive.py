"""The archive in chats: lists archived sessions, brings one back, and says which ones a new session has displaced."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gateway.commands.command import Answer, Call, Handlers, parse_number
from gateway.contract import Button
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.sessions import ArchivedCopy, ArchivedSession, SessionManager
from gateway.sessions.keys import session_key
from gateway.spool import Operation
from gateway.text.plain import ago, count

MAX_LISTED = 20
NONE_ARCHIVED = "There are no archived sessions here. /session list shows your sessions."


class ArchiveCommands:
    def __init__(self, sessions: SessionManager, lanes: Lanes[Job], *, now: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self._lanes = lanes
        self._now = now

    def handlers(self) -> Handlers:
        return {"session restore": self.restore}

    async def list(self, call: Call) -> Answer:
        """Answer `/session list archived`."""
        archived = await self._sessions.archive.list(call.routed.scope)
        unreadable = self._sessions.archived_count(call.routed.scope) - len(archived)
        if not archived and unreadable <= 0:
            return Answer(text=NONE_ARCHIVED)
        shown = archived[:MAX_LISTED]
        rows = [
            f"{session.state.number}  {_title(session)} · {count(session.state.messages, 'message')} · "
            f"archived {ago(session.archived_at, self._now())}"
            for session in shown
        ]
        if len(archived) > len(shown):
            rows.append(f"and {len(archived) - len(shown)} older ones")
        if unreadable > 0:
            rows.append(f"({count(unreadable, 'archived session')} can't be read)")
        return Answer(
            text="\n".join(["Archived sessions (newest first)", *rows, "/session restore <number> brings one back"]),
            buttons=tuple(
                Button(
                    label=f"{session.state.number} {_title(session)}",
                    command=f"/session restore {session.state.number}",
                )
                for session in shown
            ),
        )

    async def restore(self, call: Call) -> Answer:
        archived = await self.find(call, call.argument, "/session restore 2")
        if archived is None:
            number = call.argument.removeprefix("#")
            raise Refused(f"There is no archived session {number} here. /session list archived shows them.")
        state = archived.state
        copies = await self._sessions.copy_displaced(archived, is_busy=self._lanes.is_busy)

        async def commit(operations: Sequence[Operation]) -> None:
            await self._sessions.archive.restore(archived, copies, also=operations)

        is_active = self._sessions.active(call.routed.scope) is None
        go_there = "Your next messages go there." if is_active else f"/session resume {state.number} goes there."
        text = f"Session {state.number}: {_title(archived)} is back ({count(state.messages, 'message')}). {go_there}"
        return Answer(
            text=text + displaced(copies),
            buttons=() if is_active else (Button(label="Go there", command=f"/session resume {state.number}"),),
            commit=commit,
        )

    async def find(self, call: Call, argument: str, example: str) -> ArchivedSession | None:
        """Return the archived session with the number `argument`. Raises `Refused` if it is no number."""
        number = parse_number(argument.removeprefix("#"), example, shown_by="/session list archived")
        if number < 1:
            return None
        return await self._sessions.archive.find(session_key(call.routed.scope, number))


def displaced(copies: Sequence[ArchivedCopy]) -> str:
    """Return a sentence about sessions that move to the archive, or an empty string."""
    if not copies:
        return ""
    names = [f"{copy.meta.number} ({copy.meta.title or 'untitled'})" for copy in copies[:MAX_LISTED]]
    if len(copies) == 1:
        return f"\nSession {names[0]} is in the archive now. /session restore {copies[0].meta.number} brings it back."
    if len(copies) > len(names):
        names.append(f"{len(copies) - len(names)} more")
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"\nSessions {listed} are in the archive now. /session list archived shows them."


def _title(session: ArchivedSession) -> str:
    return session.state.title or "(untitled)"
