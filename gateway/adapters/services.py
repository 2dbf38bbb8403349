"""What a channel may show of the sessions of the chat it is talking to."""

from collections.abc import Mapping

from gateway.access.live import Live
from gateway.access.rules import may_talk
from gateway.commands import COMMANDS
from gateway.contract import Address, CommandInfo, Line, OpenQuestion, Sender, SessionInfo
from gateway.errors import NotAccepted
from gateway.files.outgoing import enclosure
from gateway.routing import route
from gateway.sessions import SessionManager
from gateway.spool import SetFact, Spool, SpoolFull
from gateway.turns.approvals import Approvals


class SessionBrowser:
    """Every question is judged and routed as a message from there would be.

    So a stranger sees nothing, and no chat sees another scope's sessions.
    """

    def __init__(self, live: Live, sessions: SessionManager, approvals: Approvals) -> None:
        self._live = live
        self._sessions = sessions
        self._approvals = approvals

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
            )
            for session in self._sessions.list(scope)
        ]

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        if not may_talk(self._live, address, sender):
            return []
        active = self._sessions.active(self._scope(address, sender))
        if active is None:
            return []
        return [
            Line(role=line.role, text=line.text, at=line.ts, file=enclosure(line.file) if line.file else None)
            for line in await self._sessions.lines(active.key, limit)
        ]

    def questions(self, address: Address, sender: Sender) -> list[OpenQuestion]:
        return [
            OpenQuestion(key=question.key, message=question.message)
            for question in self._approvals.of_scope(self._scope(address, sender))
            if question.message.address == address
        ]

    def commands(self) -> list[CommandInfo]:
        return [
            CommandInfo(
                name=command.name, arguments=command.arguments, summary=command.summary, aliases=command.aliases
            )
            for command in COMMANDS
        ]

    def _scope(self, address: Address, sender: Sender, guild: str | None = None) -> str:
        return route(self._live.settings, self._live.home(address), sender, guild).scope


class ChannelStore:
    """A page for each bot identity; names are slugs, so no channel can write on another's."""

    def __init__(self, spool: Spool, channel: str, account: str) -> None:
        self._spool = spool
        self._prefix = f"channel:{channel}:{account}:"

    async def read(self) -> dict[str, str]:
        try:
            facts = await self._spool.facts(self._prefix)
        except SpoolFull as full:
            raise NotAccepted(str(full)) from full
        return {name.removeprefix(self._prefix): value for name, value in facts.items()}

    async def write(self, facts: Mapping[str, str | None]) -> None:
        try:
            await self._spool.commit(
                *(SetFact(name=f"{self._prefix}{name}", value=value) for name, value in facts.items())
            )
        except SpoolFull as full:
            raise NotAccepted(str(full)) from full


class InMemoryStore:
    """A notebook that lasts as long as the process."""

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
