"""Services that a channel gets from the gateway: a session browser, and a small key-value store."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

from msgspec.structs import replace

from config import Backend, ProviderKind
from gateway.access.rules import Live, is_owner, may_talk
from gateway.commands.registry import usable_commands
from gateway.contract import (
    Address,
    CommandInfo,
    EarlierMessage,
    Line,
    OpenQuestion,
    Outbound,
    OutboundKind,
    Sender,
    SentMessage,
    SessionInfo,
)
from gateway.errors import NotAccepted, Refused
from gateway.files.outgoing import enclosure
from gateway.outbound.draft_stream import join_paragraphs
from gateway.routing import route
from gateway.sessions import SessionManager
from gateway.sessions.history import VisibleLine
from gateway.spool import InboxRow, SetFact, Spool, SpoolUnavailable
from gateway.spool.rows import INBOX_OPEN
from gateway.turns.approvals import Approvals

EARLIER_LINES = 200
"""The newest lines of a session in which the answer to a repeated message is looked for."""
USER = "user"


class SessionBrowser:
    """Shows a chat its own sessions. Implements `gateway.contract.Browser`.

    Each call is authorized and routed like a message from the same chat. So strangers see nothing, and no chat sees
    the sessions of another scope.
    """

    def __init__(
        self,
        live: Live,
        sessions: SessionManager,
        approvals: Approvals,
        spool: Spool,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._approvals = approvals
        self._spool = spool

    def sessions(self, address: Address, sender: Sender, guild: str | None = None) -> list[SessionInfo]:
        if not may_talk(self._live, address, sender, guild):
            return []
        scope = self._scope(address, sender, guild)
        active = self._sessions.active(scope)
        return [
            SessionInfo(
                number=session.number,
                title=session.title,
                messages=session.messages,
                updated_at=session.updated_at,
                is_active=active is not None and session.key == active.key,
                id=session.id,
                agent=session.agent,
                model=session.model,
            )
            for session in self._sessions.list(scope)
        ]

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        if not may_talk(self._live, address, sender):
            return []
        scope = self._scope(address, sender)
        active = self._sessions.active(scope)
        if active is None:
            lost = self._sessions.lost.get(scope)
            sentence = f"*Session {lost} can't be read any more. Your next message starts a new session.*"
            return [Line(role="assistant", text=sentence, at=self._sessions.recovered_at)] if lost else []
        sees_details = is_owner(self._live, address, sender)
        try:
            lines = await self._sessions.lines(active.key, limit)
        except Refused as refusal:
            return [Line(role="assistant", text=f"*{refusal}*", at=active.last_accessed)]
        if not active.turns:  # The first answer of a session says why the session was started.
            lines = [line for line in lines if line.role != "gateway" or line.is_failure]
        return [
            Line(
                role="user" if line.role == "user" else "assistant",
                # The same form as in the answer that the chat got.
                text=f"*{line.text}*" if line.role == "gateway" else line.text,
                at=line.ts,
                file=enclosure(line.file) if line.file else None,
                is_failure=line.is_failure,
                details=line.details if sees_details else "",
                event_id=line.event_id,
                turn=line.turn,
            )
            for line in lines
        ]

    def questions(self, address: Address, sender: Sender) -> list[OpenQuestion]:
        if not self._approvals.open_questions or not may_talk(self._live, address, sender):
            return []
        return [
            OpenQuestion(key=question.message_key, message=question.message)
            for question in self._approvals.in_chat(self._scope(address, sender), address)
            if question.message.address == address
        ]

    async def earlier(self, address: Address, sender: Sender, event_id: str) -> EarlierMessage:
        if not may_talk(self._live, address, sender):
            return EarlierMessage()
        try:
            row = await self._spool.find_message(address, event_id)
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        if row is None or row.inbound.sender.id != sender.id:
            return EarlierMessage()
        turn = row.answered_by or row.turn
        is_finished = row.state not in INBOX_OPEN
        answers: list[SentMessage] = []
        if is_finished:
            with suppress(Refused):  # The session is gone, or cannot be read.
                lines = await self._sessions.lines(row.session, EARLIER_LINES)
                said = [line for line in lines if line.turn == turn and line.role != USER]
                answers = _as_messages(row, turn, said)
        return EarlierMessage(
            turn=turn,
            session=row.number,
            message_id=row.inbound.message_id,
            is_finished=is_finished,
            answers=tuple(answers),
        )

    def commands(self, address: Address | None = None, sender: Sender | None = None) -> list[CommandInfo]:
        return [
            CommandInfo(
                name=command.name,
                arguments=command.arguments,
                summary=command.summary,
                aliases=command.aliases,
                is_personal=command.is_personal,
            )
            for command in usable_commands(self._live, address, sender)
        ]

    def max_message_chars(self) -> int:
        return self._live.settings.gateway.max_message_chars

    def needs_setup(self, address: Address, sender: Sender) -> bool:
        settings = self._live.settings
        agent = settings.agents[route(settings, self._live.first_address(address), sender).agent]
        uses_rules = agent.backend is Backend.LLM and settings.providers[agent.provider].kind is ProviderKind.OFFLINE
        return uses_rules and is_owner(self._live, address, sender)

    def transcribes(self) -> bool:
        return self._live.settings.transcription.provider is not None

    @property
    def is_shared(self) -> bool:
        return self._sessions.shards is not None

    def require_here(self, address: Address, sender: Sender) -> None:
        if self.is_shared:
            self._sessions.require_here(self._scope(address, sender))

    def watched(self, address: Address, sender: Sender, on_moved: Callable[[], None]) -> AbstractContextManager[None]:
        return self._sessions.watched(self._scope(address, sender), on_moved)

    def _scope(self, address: Address, sender: Sender, guild: str | None = None) -> str:
        return route(self._live.settings, self._live.first_address(address), sender, guild).scope


def _as_messages(row: InboxRow, turn: str, lines: Sequence[VisibleLine]) -> list[SentMessage]:
    """Return the answer of a turn as it was sent: one text, and its files behind it. The spool has forgotten the text.

    They have the keys that they had then.
    """
    plain = Outbound(
        address=row.inbound.address,
        text=join_paragraphs(line.text for line in lines if line.file is None),
        kind=OutboundKind.REPLY,
        reply_to=row.inbound.message_id,
        session=row.number,
        is_failure=any(line.is_failure for line in lines),
    )
    messages = [SentMessage(key=turn, message=plain, at=lines[-1].ts)] if plain.text else []
    files = [line for line in lines if line.file is not None]
    for number, line in enumerate(files, start=1):
        file = replace(plain, text="", is_failure=False, file=enclosure(line.file) if line.file else None)
        messages.append(SentMessage(key=f"{turn}.file{number}", message=file, at=line.ts))
    return messages


class ChannelStore:
    """A channel's own facts in the spool, which survive a restart. Implements `gateway.contract.Notebook`."""

    def __init__(self, spool: Spool, channel: str, account: str) -> None:
        self._spool = spool
        # Both names are slugs without colons, so no channel can reach another's facts.
        self._prefix = f"channel:{channel}:{account}:"

    async def read(self) -> dict[str, str]:
        try:
            facts = await self._spool.facts(self._prefix)
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        return {name.removeprefix(self._prefix): value for name, value in facts.items()}

    async def write(self, facts: Mapping[str, str | None]) -> None:
        try:
            await self._spool.commit(
                *(SetFact(name=f"{self._prefix}{name}", value=value) for name, value in facts.items())
            )
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error


async def post_safely(url: str, body: bytes, headers: Mapping[str, str], *, hosts: Collection[str] = ()) -> None:
    """Implement `gateway.contract.Post`."""
    # Most gateways never need this client.
    from gateway.safe_http.post import post  # noqa: PLC0415 - see above.

    await post(url, body, headers, hosts=hosts)


class InMemoryStore:
    """A `gateway.contract.Notebook` without the spool, for tests and for `gatehouse doctor`."""

    def __init__(self, _channel: str = "", _account: str = "") -> None:
        self._facts: dict[str, str] = {}

    async def read(self) -> dict[str, str]:
        return dict(self._facts)

    async def write(self, facts: Mapping[str, str | None]) -> None:
        for name, value in facts.items():
            if value is None:
                self._facts.pop(name, None)
            else:
                self._facts[name] = value
