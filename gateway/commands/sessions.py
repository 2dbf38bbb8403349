"""Commands about the sessions of a chat and their messages. Clearing and undoing append entries and delete nothing."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from gateway.access.rights import Action, check_right
from gateway.access.roles import role_in
from gateway.access.rules import Live
from gateway.commands.archive import ArchiveCommands, displaced
from gateway.commands.command import NO_SESSION, Answer, Call, Handlers, is_number, parse_number
from gateway.commands.deletion import SessionDeletion
from gateway.contract import Button
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.repos.repositories import Repositories, opening_entries
from gateway.sessions import SessionManager, SessionMeta, SessionStatus, entries, undo_last_turn
from gateway.sessions.export import MarkdownExport, export_pieces, undone_turns
from gateway.sessions.keys import parse_key, session_key
from gateway.sessions.session import NewSession
from gateway.spool import Operation
from gateway.text import excerpt
from gateway.text.plain import ago, count, in_bytes

TITLE_WIDTH = 60
MAX_EXPORT_CHARS = 20_000
DEFAULT_LINES = 10
MAX_LINES = 100
QUOTE_WIDTH = 60
YES = "yes"
"""Confirms a deletion."""
_QUOTED = re.compile(r"[\"“„«](?P<title>.*)[\"”“»]", re.DOTALL)
_SPEAKERS = {"user": "You", "assistant": "Agent", "gateway": "Gateway"}


class DescribeRepo(Protocol):
    async def __call__(self, session: SessionMeta, *, is_owner: bool) -> Sequence[str]:
        """Return lines about the repository of a session."""


class SessionCommands:
    def __init__(
        self,
        live: Live,
        sessions: SessionManager,
        lanes: Lanes[Job],
        deletion: SessionDeletion,
        archive: ArchiveCommands,
        repos: Repositories,
        describe_repo: DescribeRepo,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._lanes = lanes
        self._deletion = deletion
        self._archive = archive
        self._repos = repos
        self._describe_repo = describe_repo
        self._now = now

    def handlers(self) -> Handlers:
        return {
            "new": self.new,
            "session list": self.list,
            "session resume": self.resume,
            "session rename": self.rename,
            "session close": self.close,
            "session delete": self.delete,
            "session search": self.search,
            "session info": self.info,
            "session export": self.export,
            "history": self.history,
            "clear": self.clear,
            "undo": self.undo,
            "retry": self.retry,
        }

    async def new(self, call: Call) -> Answer:
        named, title = parse_new(call.argument)
        return await self.start(call, title=excerpt(title, TITLE_WIDTH), named=named or "", is_named=named is not None)

    async def start(
        self, call: Call, *, agent: str = "", title: str = "", named: str = "", is_named: bool = False
    ) -> Answer:
        """Return the answer that starts a session, in the repository that is `named` or that the agent's rule gives.

        Without an `agent`, the one of this chat or the coding agent of the current session answers in it.
        """
        scope = call.routed.scope
        current = self._sessions.find(call.session) if call.session else None
        if is_named and not named:
            raise Refused("Which repository? Add its id after the @, like /new @website. /repos lists them.")
        agent, repo = self._repos.workplace(
            call.routed.agent, current, role=role_in(self._live, call.inbound), agent=agent, named=named
        )
        if repo:
            is_git = self._repos.is_coding_agent(agent)
            await self._repos.check(repo, by=call.inbound.sender.id, is_git=is_git)
        copies = await self._sessions.copy_surplus(scope, is_busy=self._lanes.is_busy)

        async def commit(operations: Sequence[Operation]) -> None:
            await self._sessions.start_new(
                scope,
                agent=agent,
                origin=call.inbound.address,
                title=title or None,
                new=NewSession(repo=repo),
                opening=opening_entries(repo),
                is_busy=self._lanes.is_busy,
                also=operations,
                copies=copies,
            )

        number = self._sessions.next_number(scope)
        who = f" with {agent}" if agent != call.routed.agent else ""
        where = f" in {repo}" if repo else ""
        called = f": {title}" if title else ""
        text = f"Started session {number}{who}{where}{called}. Your next messages go there.{displaced(copies)}"
        return Answer(text=text, commit=commit)

    async def list(self, call: Call) -> Answer:
        if call.argument.lower() == "archived":
            return await self._archive.list(call)
        sessions = self._sessions.list(call.routed.scope)
        if not sessions:
            return Answer(text=NO_SESSION)
        active = self._sessions.active(call.routed.scope)
        rows = []
        for session in sessions:
            mark = "▸" if active is not None and session.key == active.key else " "
            title = session.title or "(empty)"
            used = f" · {count(session.messages, 'message')} · {ago(session.updated_at, self._now())}"
            status = session.status_word
            rows.append(f"{mark} {session.number}  {title} · {status}{used if session.messages else ''}")
        return Answer(
            text="\n".join(["Sessions (newest first)", *rows, "/session resume <number> goes back to one"]),
            buttons=tuple(
                Button(
                    label=f"{session.number} {session.title or '(empty)'}",
                    command=f"/session resume {session.number}",
                )
                for session in sessions
            ),
        )

    async def resume(self, call: Call) -> Answer:
        if not call.argument:
            raise Refused("Which one? Add its number, like /session resume 2. /session list shows the numbers.")
        # Load the session first: a damaged file is refused before anything changes.
        session = await self._sessions.load_meta(self._find(call, call.argument).key)
        _check_not_failed(session)
        if session.repo:
            is_git = self._repos.is_coding_agent(session.agent)
            await self._repos.check(session.repo, by=call.inbound.sender.id, is_git=is_git)

        async def commit(operations: Sequence[Operation]) -> None:
            await self._sessions.resume(call.routed.scope, session.number, also=operations)

        title = f": {session.title}" if session.title else ""
        messages = count(session.messages, "message")
        return Answer(text=f"Back in session {session.number}{title} ({messages}).", commit=commit)

    async def rename(self, call: Call) -> Answer:
        first, _, rest = call.argument.partition(" ")
        # A number in front is always the number of a session. Quotes make it part of the title.
        quoted = _QUOTED.fullmatch(call.argument)
        is_numbered = quoted is None and is_number(first.removeprefix("#"))
        session = self._find(call, first if is_numbered else "")
        title = excerpt(quoted["title"] if quoted else rest if is_numbered else call.argument, TITLE_WIDTH)
        if not title and is_numbered:
            raise Refused(
                f"What should the title of session {session.number} be? "
                f"Add it, like /session rename {session.number} Trip to Lisbon."
            )
        if not title:
            raise Refused("What should the title be? Add it, like /session rename Trip to Lisbon.")
        return Answer(
            text=f"Session {session.number} is now called {title}.",
            commit=lambda operations: self._sessions.set_title(session.key, title, also=operations),
        )

    async def close(self, call: Call) -> Answer:
        session = self._find(call, call.argument)
        _check_not_failed(session)

        async def commit(operations: Sequence[Operation]) -> None:
            by = call.inbound.sender.id
            await self._sessions.set_status(session.key, SessionStatus.COMPLETED, by=by, also=operations)

        number = session.number
        return Answer(text=f"Session {number} is closed. /session resume {number} opens it again.", commit=commit)

    async def delete(self, call: Call) -> Answer:
        check_right(self._live, call.inbound, Action.DELETE, is_owner=call.is_owner)
        if not call.argument:
            raise Refused("Which one? Add its number, like /session delete 2. /session list shows the numbers.")
        wanted, _, confirmation = call.argument.partition(" ")
        key, about = await self._find_to_delete(call, wanted)
        _, number = parse_key(key)
        if confirmation.strip().lower() != YES:
            confirm = f"/session delete {number} {YES}"
            return Answer(
                text=f"Delete session {number}{about} for good? "
                f"Use the button or send {confirm}. To keep it, do nothing.",
                buttons=(Button(label=f"Delete session {number}", command=confirm),),
            )
        others = [other for other in self._sessions.list(call.routed.scope) if other.key != key]
        # If the active session is deleted, the newest other one becomes active.
        where = f" You are now in session {others[0].number}." if others and call.session == key else ""
        return await self._deletion.answer(key, f"Session {number} is deleted.{where}", call.inbound)

    async def _find_to_delete(self, call: Call, argument: str) -> tuple[str, str]:
        """Return the key of a session and a few words about it. It may be archived, or damaged and set aside."""
        try:
            session = self._find(call, argument)
        except Refused:
            number = argument.removeprefix("#")
            if not is_number(number) or int(number) == 0:
                raise
            key = session_key(call.routed.scope, int(number))
            try:
                archived = await self._sessions.archive.find(key)
            except Refused:
                return key, ", which can't be read,"
            if archived is None:
                if not await self._sessions.archive.is_stored(key):
                    raise
                return key, ", which can't be read,"
            session = archived.meta
        title = f", “{session.title}”," if session.title else ""
        return session.key, f"{title} with {count(session.messages, 'message')}"

    async def info(self, call: Call) -> Answer:
        session = self._find(call, call.argument)
        now, status = self._now(), session.status_word
        return Answer(
            text="\n".join(
                [
                    f"Session {session.number}: {session.title or '(empty)'}",
                    f"{count(session.messages, 'message')} in {count(session.turns, 'turn')}, {status}",
                    f"started {ago(session.created_at, now)}, last used {ago(session.last_accessed, now)}",
                    f"agent {session.agent}, {in_bytes(session.size)} on disk",
                    *await self._describe_repo(session, is_owner=call.is_owner),
                    f"key {session.key}",
                ],
            ),
        )

    async def search(self, call: Call) -> Answer:
        if not call.argument:
            raise Refused("What should I look for? Add some words, like /session search lisbon hotel.")
        scope = call.routed.scope
        archived = [session.meta for session in await self._sessions.archive.list(scope)]
        result = await self._sessions.search(self._sessions.last_used(scope), call.argument, archived=archived)
        lines = [
            f"{hit.number}  {hit.title or '(empty)'} · {'archived, ' if hit.is_archived else ''}"
            f"{'you' if hit.role == 'user' else 'agent'}, {ago(hit.at, self._now())}: {hit.snippet}"
            for hit in result.hits
        ]
        if not lines:
            lines = [f"Nothing found for {excerpt(call.argument, TITLE_WIDTH)}."]
        if number := next((hit.number for hit in result.hits if hit.is_archived), None):
            lines.append(f"/session restore {number} brings an archived session back.")
        if result.stopped_early:
            lines.append("(The search stopped early, so there may be more.)")
        return Answer(text="\n".join(lines))

    async def export(self, call: Call) -> Answer:
        session = self._find(call, call.argument)
        undone = await undone_turns(self._sessions.entries(session.key))
        export = MarkdownExport(session, undone, names_scope=False)
        text = ""
        async for piece in export_pieces(export, self._sessions.entries(session.key)):
            text += piece
            if len(text) > MAX_EXPORT_CHARS:
                raise Refused(
                    f"Session {session.number} is too long for a chat. "
                    "On the server, this writes it to a file: gatehouse sessions export"
                )
        return Answer(text=text)

    async def history(self, call: Call) -> Answer:
        wanted = call.argument or str(DEFAULT_LINES)
        if not is_number(wanted) or int(wanted) == 0:
            raise Refused("How many lines? Send a number, like /history 20.")
        lines = await self._sessions.lines(call.session, min(int(wanted), MAX_LINES)) if call.session else []
        if not lines:
            return Answer(text="This session has no messages yet.")
        return Answer(text="\n\n".join(f"{_SPEAKERS[line.role]}: {line.text}" for line in lines))

    async def clear(self, call: Call) -> Answer:
        check_right(self._live, call.inbound, Action.CLEAR, is_owner=call.is_owner)
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
        messages = [each for each in loaded if isinstance(each, entries.User) and each.turn == undo.undone]
        authors = {message.sender for message in messages}
        check_right(self._live, call.inbound, Action.UNDO, is_owner=call.is_owner, authors=authors)
        said = "\n\n".join(message.content for message in messages)
        return Answer(
            text=f"Undone: “{excerpt(said, QUOTE_WIDTH)}” and its answer no longer count.",
            commit=lambda operations: self._sessions.append(session, [undo], also=operations),
        )

    async def retry(self, _call: Call) -> Answer:
        """Answer a `/retry` that the dispatcher did not turn into a turn, because no message can be answered again."""
        return Answer(text="There is no answer to regenerate here.")

    def _find(self, call: Call, argument: str) -> SessionMeta:
        """Return the session with the number or key `argument`; without one, the session that the command is about."""
        sessions = self._sessions.list(call.routed.scope)
        if not argument:
            found = next((session for session in sessions if session.key == call.session), None)
            if found is None:
                raise Refused(NO_SESSION)
            return found
        if argument.startswith("agent:"):
            found = next((session for session in sessions if session.key == argument), None)
            if found is None:
                raise Refused("There is no session with that key here. /session list shows your sessions.")
            return found
        number = parse_number(argument.removeprefix("#"), "2")
        found = next((session for session in sessions if session.number == number), None)
        if found is None:
            archive = (
                " and /session list archived the others" if self._sessions.archived_count(call.routed.scope) else ""
            )
            raise Refused(f"There is no session {number} here. /session list shows your sessions{archive}.")
        return found


def parse_new(argument: str) -> tuple[str | None, str]:
    """Return the repository and the title that `/new` names. The repository is None without an @."""
    first, _, rest = argument.partition(" ")
    return (first[1:].lower(), rest) if first.startswith("@") else (None, argument)


def _check_not_failed(session: SessionMeta) -> None:
    """Refuse to open or close a session that has ended with an error for good."""
    if session.status is SessionStatus.ERROR and session.status_why:
        repo = f" @{session.repo}" if session.repo else ""
        raise Refused(
            f"Session {session.number} has ended with an error, so it can only be read. /new{repo} starts another one."
        )
