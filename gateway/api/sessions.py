"""The session routes of the API: start, list, read, prompt, follow, end, rename, archive, export and delete."""

import base64
import binascii
import builtins
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic

import msgspec
from aiohttp import web

from config import ApprovalRight
from config.types import API_CHANNEL
from gateway.access.rules import Live
from gateway.admin.session_routes import LocalArchive
from gateway.api import types as t
from gateway.api.events import EventStreams, position_of
from gateway.api.message_mapping import LOOK_BACK, all_messages, is_message
from gateway.api.operation import ApiCall, invalid
from gateway.api.overview import repo_info, token_count
from gateway.api.program_sessions import ProgramSessions
from gateway.api.programs import role_of_caller
from gateway.api.prompts import AcceptedPrompt, KeyReused, Prompts
from gateway.contract import Attachment, Caller, TokenScope
from gateway.files.store import folder_of
from gateway.files.uploads import FileRoutes
from gateway.http.forwarding import idempotency_key
from gateway.http.responses import HttpError
from gateway.inbound.inbox import QueueFull
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.repos.repositories import Repositories
from gateway.sessions import Entry, SessionManager, SessionMeta, SessionStatus, entries
from gateway.sessions.directory import SessionFilter, SessionPage
from gateway.sessions.export import JsonExport, MarkdownExport, export_pieces, undone_turns
from gateway.sessions.history import effective_entries, undo_turn
from gateway.text import clean
from gateway.turns.approvals import Approvals
from gateway.turns.question import Decision

MESSAGES_PER_WRITE = 100
MAX_SEARCHED_SESSIONS = 1_000
"""The newest sessions that a search looks through, and as many archived ones."""
MAX_LISTING_SECONDS = 2.0
"""For how long a search lists archived sessions. Those of a large archive are in many files."""
EXPORT_TYPES = {"jsonl": "application/jsonl", "markdown": "text/markdown; charset=utf-8", "json": "application/json"}
_SLOW_DOWN = {"Retry-After": "5"}
_DECISIONS = {"approve": Decision.APPROVED, "deny": Decision.DENIED}
_encode = msgspec.json.Encoder().encode


class SessionApi:
    """The handlers of the session routes. `operations` has what each of them takes and returns."""

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        programs: ProgramSessions,
        prompts: Prompts,
        events: EventStreams,
        approvals: Approvals,
        archive: LocalArchive,
        uploads: FileRoutes,
        lanes: Lanes[Job],
        repos: Repositories,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._programs = programs
        self._prompts = prompts
        self._events = events
        self._approvals = approvals
        self._archive = archive
        self._uploads = uploads
        self._lanes = lanes
        self._repos = repos

    async def create(self, call: ApiCall) -> t.SessionSummary:
        body = call.body_as(t.NewSessionBody)
        session = await self._programs.start(call.caller, agent=body.agent, repo=body.repo_id, title=body.title)
        return self._info(session)

    async def list(self, call: ApiCall) -> t.SessionList:
        query = call.query_as(t.ListQuery)
        wanted = SessionFilter(
            statuses=frozenset(map(SessionStatus, _split(query.status))),
            repos=_split(query.repo_id),
            channels=_split(query.channel),
            agents=_split(query.agent),
            words=tuple(query.q.split()),
            chat=query.chat,
        )
        visible = self._programs.visible(call.caller, wanted)
        if query.archived:
            page = await self._list_archived(visible, limit=query.limit, offset=query.offset)
        else:
            page = await self._sessions.directory.list(visible, limit=query.limit, offset=query.offset)
        return t.SessionList(
            sessions=[self._info(each) for each in page.sessions],
            total=page.total,
            limit=query.limit,
            offset=query.offset,
        )

    async def _list_archived(self, wanted: SessionFilter, *, limit: int, offset: int) -> SessionPage:
        """List archived sessions. This reads the archive, which takes a while if that is large."""
        found = [
            listed.meta
            async for listed in self._archive.sessions(are_archived=True)
            if listed.meta.id and wanted.accepts(listed.meta)
        ]
        found.sort(key=lambda session: session.created_at, reverse=True)
        return SessionPage(sessions=found[offset : offset + limit], total=len(found))

    async def search(self, call: ApiCall) -> t.SearchHits:
        query = call.query_as(t.SearchQuery)
        wanted = SessionFilter(channels=_split(query.channel), agents=_split(query.agent))
        visible = self._programs.visible(call.caller, wanted)
        page = await self._sessions.directory.list(visible, limit=MAX_SEARCHED_SESSIONS, offset=0)
        archived, are_all = await self._archived_to_search(visible)
        found = await self._sessions.search(page.sessions, query.q, archived=archived, limit=query.limit)
        by_key = {session.key: session for session in (*archived, *page.sessions)}
        hits = [
            t.SearchHit(
                session_id=by_key[hit.key].id,
                title=hit.title,
                role="user" if hit.role == "user" else "agent",
                text=hit.snippet,
                timestamp=hit.at,
                is_archived=hit.is_archived,
            )
            for hit in found.hits
        ]
        is_complete = not found.stopped_early and page.total <= MAX_SEARCHED_SESSIONS and are_all
        return t.SearchHits(hits=hits, is_complete=is_complete)

    async def _archived_to_search(self, wanted: SessionFilter) -> tuple[builtins.list[SessionMeta], bool]:
        """Return archived sessions, newest first, and whether these are all."""
        found: builtins.list[SessionMeta] = []
        are_all, deadline = True, monotonic() + MAX_LISTING_SECONDS
        async with aclosing(self._archive.sessions(are_archived=True)) as listed:
            async for each in listed:
                if len(found) == MAX_SEARCHED_SESSIONS or monotonic() > deadline:
                    are_all = False
                    break
                if each.meta.id and wanted.accepts(each.meta):
                    found.append(each.meta)
        return sorted(found, key=lambda session: session.updated_at, reverse=True), are_all

    async def get(self, call: ApiCall) -> web.StreamResponse:
        """Send a session with all its messages, which may be many, so they are sent as they are read."""
        session = await self._programs.find(call.caller, call.path("id"))
        repo = None
        if session.repo:
            is_git = self._repos.is_coding_agent(session.agent)
            repo = await repo_info(self._repos, session.repo, is_git=is_git)
        head = _encode(self._info(session))[:-1] + b',"repo":%s,"messages":[' % _encode(repo)
        async with aclosing(self._sessions.entries(session.key)) as source:
            return await _send_messages(call.request, head, all_messages(session.id, source))

    async def rename(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        return self._info(await self._sessions.set_title(session.key, call.body_as(t.SessionChanges).title))

    async def prompt(self, call: ApiCall) -> t.ApiMessage:
        body = call.body_as(t.PromptBody)
        session = await self._programs.find(call.caller, call.path("id"))
        limit = self._live.settings.gateway.max_message_chars
        if len(body.text) > limit:
            raise invalid(f"The text has {len(body.text):,} characters; {limit:,} is the limit. Send it in parts.")
        if not body.text.strip() and not body.attachments:
            raise invalid("The prompt is empty. Send a text, or attachments.")
        key = idempotency_key(call.request)
        try:
            accepted = await self._accept(call.caller, session, body, key)
        except KeyReused as reuse:
            raise invalid(str(reuse)) from reuse
        except QueueFull as full:
            raise HttpError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{full.waiting} prompts are already waiting for an answer. Try again later.",
                headers=_SLOW_DOWN,
            ) from full
        return t.ApiMessage(
            id=accepted.message_id,
            session_id=session.id,
            role="user",
            content=t.TextContent(text=clean(body.text), partial=False),
            timestamp=accepted.at,
            turn=accepted.turn,
        )

    async def _accept(
        self, caller: Caller, session: SessionMeta, body: t.PromptBody, key: str | None
    ) -> AcceptedPrompt:
        refs = [file.ref for file in body.attachments if file.ref is not None]
        if len(refs) != len(set(refs)):
            raise invalid("An uploaded file can be attached once.")
        content = hashlib.sha256(_encode(body)).hexdigest()
        try:
            attachments = [await self._receive(file) for file in body.attachments]
        except HttpError:
            # An uploaded file can be sent once. So in a repetition of its prompt, it is not found.
            if key is None:
                raise
            message_id = self._prompts.message_id(caller, session, key)
            if not await self._prompts.was_accepted(message_id, content):
                raise
            return await self._prompts.find(session, message_id)
        return await self._prompts.accept(caller, session, body.text, attachments=attachments, key=key, content=content)

    async def _receive(self, file: t.PromptFile) -> Attachment:
        if (file.ref is None) == (file.data is None):
            raise invalid(f"The attachment {file.name} needs either `ref` or `data`.")
        if file.ref is not None:
            return await self._uploads.find(file.ref, file.name)
        try:
            content = base64.b64decode(file.data or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise invalid(f"The data of the attachment {file.name} is not valid base64.") from error

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return await self._uploads.keep(file.name, chunks())

    async def messages(self, call: ApiCall) -> web.StreamResponse:
        session = await self._programs.find(call.caller, call.path("id"))
        since = call.query_as(t.MessagesQuery).since
        if isinstance(since, datetime) and ":" not in call.request.query["since"]:
            # msgspec takes a number with a fraction for seconds since 1970. Here, numbers are positions.
            raise invalid("`since` must be a seq or a time, like 2026-11-18T09:30:00Z.")
        seq, moment = (0, since) if isinstance(since, datetime) else (since, None)

        def is_new(entry: Entry) -> bool:
            return entry.seq > seq and (moment is None or entry.ts > moment)

        async with aclosing(self._sessions.entries_since(session.key, max(0, seq - LOOK_BACK))) as source:
            return await _send_messages(call.request, b'{"messages":[', all_messages(session.id, source, is_new))

    async def events(self, call: ApiCall) -> web.StreamResponse:
        session = await self._programs.find(call.caller, call.path("id"))
        last_event_id = call.request.headers.get("Last-Event-ID")
        since = call.query_as(t.EventsQuery).since
        # A new reader gets what happens from now on.
        position = session.seq if since is None else since
        if last_event_id is not None:
            position = position_of(session.id, last_event_id)
        token = call.caller.token

        def may_go_on() -> bool:
            return not token or self._live.token_book.find(token) is not None

        return await self._events.serve(call.request, session, position, may_go_on)

    async def complete(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        return self._info(await self._programs.complete(session, by=call.caller.name))

    async def resume(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        return self._info(await self._programs.resume(session))

    async def delete(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        if not call.query_as(t.DeleteQuery).permanent:
            return self._info(await self._programs.cancel(session, by=call.caller.name))
        self._require(call.caller, TokenScope.MANAGE)
        async with self._programs.changing(session):
            await self._archive.delete(session.key)
        return self._info(session)

    async def stop(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        return self._info(await self._programs.stop(session, by=call.caller.name))

    async def archive(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        async with self._programs.changing(session):
            await self._sessions.archive_session(session.key, is_busy=self._lanes.is_busy)
        return self._info(session)

    async def restore(self, call: ApiCall) -> t.SessionSummary:
        archived = await self._sessions.directory.find_archived(call.path("id"))
        if archived is None or not self._programs.may_see(call.caller, archived.meta):
            await self._programs.find(call.caller, call.path("id"))  # Raises a 404 if there is no such session at all.
            raise HttpError(HTTPStatus.CONFLICT, "This session is not in the archive.")
        needs_room = archived.meta.channel == API_CHANNEL and archived.meta.status is SessionStatus.ACTIVE
        async with self._programs.room() if needs_room else nullcontext():
            return self._info(await self._archive.restore(archived.key))

    async def undo(self, call: ApiCall) -> t.SessionSummary:
        session = await self._programs.find_own(call.caller, call.path("id"))
        wanted = call.body_as(t.UndoBody).message
        async with self._programs.changing(session):
            loaded = effective_entries([each async for each in self._sessions.entries(session.key)])
            first = next((at for at, each in enumerate(loaded) if is_message(session.id, each, wanted)), None)
            if first is None:
                raise HttpError(HTTPStatus.NOT_FOUND, "This session has no message of a user with this id.")
            # In the order in which they were said, each turn once.
            turns = dict.fromkeys(each.turn for each in loaded[first:] if isinstance(each, entries.User) and each.turn)
            if self._lanes.is_busy(session.key):
                raise HttpError(HTTPStatus.CONFLICT, "An answer is being written. Stop it first, or wait for its end.")
            await self._sessions.append(session.key, [undo_turn(loaded, turn) for turn in turns])
        return self._info(self._sessions.find(session.key) or session)

    async def export(self, call: ApiCall) -> web.StreamResponse:
        session = await self._programs.find(call.caller, call.path("id"))
        kind = call.query_as(t.ExportQuery).format
        response = web.StreamResponse(headers={"Content-Type": EXPORT_TYPES[kind]})
        if kind == "jsonl":
            async with aclosing(self._archive.export(session.key)) as lines:
                async for block in lines:
                    await _write(call.request, response, block)
        else:
            undone = await undone_turns(self._sessions.entries(session.key))
            document = MarkdownExport(session, undone) if kind == "markdown" else JsonExport(session, undone)
            async for piece in export_pieces(document, self._sessions.entries(session.key)):
                await _write(call.request, response, piece.encode())
        await _write(call.request, response, b"")
        return response

    async def approve(self, call: ApiCall) -> t.ApprovalDecision:
        session = await self._programs.find(call.caller, call.path("id"))
        question = self._approvals.open_questions.get(call.path("approvalId"))
        if question is None or question.session != session.key:
            raise HttpError(HTTPStatus.NOT_FOUND, "This session has no open question with this id.")
        is_asker = question.asker.token == call.caller.token and call.caller.may(TokenScope.PROMPT)
        if not is_asker and not call.caller.may(TokenScope.MANAGE):
            raise HttpError(
                HTTPStatus.FORBIDDEN, "Another token has sent this prompt. To answer for it, a token needs `manage`."
            )
        role = role_of_caller(self._live, call.caller)
        if role.settings.approve is ApprovalRight.NONE and not role.is_owner:
            raise HttpError(HTTPStatus.FORBIDDEN, f"Programs with the role {role.name} can't approve tool calls.")
        decision = _DECISIONS[call.body_as(t.DecisionBody).decision]
        await self._approvals.settle(question, decision, by=call.caller.name)
        return t.ApprovalDecision(approval_id=question.id, decision=decision)

    async def upload(self, call: ApiCall) -> t.StoredUpload:
        stored = await self._uploads.receive(call.request)
        return t.StoredUpload(ref=stored.ref, name=stored.name, size=stored.size, media_type=stored.media_type)

    async def download(self, call: ApiCall) -> web.StreamResponse:
        session = await self._programs.find(call.caller, call.path("id"))
        stored = call.path("name")
        ref = f"{folder_of(session.key)}/{stored}"
        return await self._uploads.send(ref, call.query_as(t.FileQuery).name or stored)

    def _require(self, caller: Caller, scope: TokenScope) -> None:
        if not caller.may(scope):
            raise HttpError(HTTPStatus.FORBIDDEN, f"This needs a token with the scope `{scope}`.")

    def _info(self, session: SessionMeta) -> t.SessionSummary:
        has_ended = session.status_by or session.status_why
        return t.SessionSummary(
            id=session.id,
            repo_id=session.repo or None,
            status=session.status,
            created_at=session.created_at.astimezone(UTC),
            updated_at=session.last_accessed.astimezone(UTC),
            agent=session.agent,
            channel=session.channel,
            title=session.title,
            key=session.key,
            number=session.number,
            message_count=session.messages,
            is_running=self._lanes.is_busy(session.key),
            usage=token_count(session.spent),
            status_info=t.StatusInfo(by=session.status_by, reason=session.status_why) if has_ended else None,
            model=session.model,
        )


def _split(names: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in names.split(","))))


async def _send_messages(
    request: web.Request, head: bytes, messages: AsyncIterator[t.ApiMessage]
) -> web.StreamResponse:
    """Send the JSON that begins with `head` and ends with an array of messages, as these are read."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    batch: list[bytes] = []
    separator = b""
    async for message in messages:
        batch.append(_encode(message))
        if len(batch) >= MESSAGES_PER_WRITE:
            await _write(request, response, head + separator + b",".join(batch))
            head, separator = b"", b","
            batch.clear()
    rest = separator + b",".join(batch) if batch else b""
    await _write(request, response, head + rest + b"]}")
    return response


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send a part of a response. The first one sends the header too: until then, an error gets its own response."""
    if not response.prepared:
        await response.prepare(request)
    if data and request.method != "HEAD":
        await response.write(data)
