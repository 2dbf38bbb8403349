"""Answers that an owner writes in the place of an agent."""

from http import HTTPStatus
from uuid import uuid4

import structlog

from config.types import PROGRAM_CHANNELS
from gateway.access.rules import Live
from gateway.admin_api import types as t
from gateway.api.operation import ApiCall, invalid
from gateway.api.program_sessions import ProgramSessions
from gateway.contract import Outbound
from gateway.http.responses import HttpError
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.delivery import Delivery
from gateway.sessions import SessionManager, SessionMeta, entries
from gateway.spool import AddToOutbox
from gateway.text import clean

log = structlog.get_logger()

MARK = "(A person wrote this, not the agent.)"
"""In the chat, in the transcript and so for the model as well."""


class OwnerReplies:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        programs: ProgramSessions,
        lanes: Lanes[Job],
        delivery: Delivery,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._programs = programs
        self._lanes = lanes
        self._delivery = delivery

    async def reply(self, call: ApiCall) -> t.WrittenReply:
        """Write to the transcript and to the chat of a session, in one commit."""
        written = clean(call.body_as(t.ReplyBody).text).strip()
        if not written:
            raise invalid("The text is empty.")
        text = f"{written}\n\n{MARK}"
        session = await self._programs.find(call.caller, call.path("id"))
        async with self._programs.changing(session) as current:
            if self._lanes.is_busy(current.key):
                raise HttpError(
                    HTTPStatus.CONFLICT, "The agent works on an answer. Stop it, or wait until it has ended."
                )
            parts = await self._parts(current, text)
            await self._sessions.append(current.key, [entries.Assistant(content=text)], also=parts)
        self._delivery.post(parts)
        log.info("owner_replied", session=session.key, by=call.caller.name, sent=bool(parts))
        return t.WrittenReply(text=text, is_sent=bool(parts))

    async def _parts(self, session: SessionMeta, text: str) -> list[AddToOutbox]:
        """Return the parts for the chat in which the session was started. Programs read the transcript instead."""
        origin = await self._sessions.origin(session.key)
        if origin is None or origin.channel in PROGRAM_CHANNELS:
            return []
        message = Outbound(address=self._live.current_address(origin), text=text, session=session.number)
        return self._delivery.compose(message, key=f"owner-{uuid4().hex}", scope=session.scope)
