"""Requests to a session with a memory: finds what is new in them, accepts it as a prompt, and follows its turn.

A prompt is accepted durably before the model is asked. So its turn runs to its end, and its answer is stored, even if
the client goes away.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from uuid import uuid4

from msgspec import Struct

from config.types import OPENAI_CHANNEL
from gateway.access.rules import Live
from gateway.agent.protocol import TextDelta, ToolSpec
from gateway.aio import KeyedLocks
from gateway.api.message_mapping import is_uuid
from gateway.api.program_sessions import ProgramSessions
from gateway.api.programs import Delta, TurnFollower, sender_of
from gateway.api.prompts import KeyReused, Prompts
from gateway.contract import Address, Attachment, Caller, PeerKind
from gateway.conversation import AssistantMessage, Picture
from gateway.errors import NotAccepted, Refused, RefusedForNow, SessionDamaged
from gateway.files.uploads import FileRoutes
from gateway.inbound.inbox import QueueFull
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.openai_door.answer import AnswerText, AnswerTokens, Piece, StreamedAnswer
from gateway.openai_door.errors import refusal, too_busy, turn_ended, unavailable
from gateway.openai_door.history_rule import (
    MAX_KNOWN,
    MAX_UNANSWERED,
    NewPrompt,
    Repetition,
    find_new_messages,
    known_turns,
    seed_entries,
)
from gateway.openai_door.request_messages import ReceivedMessages
from gateway.openai_door.session_choice import SessionChoice, not_found, scope_of
from gateway.repos.repositories import Repositories
from gateway.sessions import (
    Entry,
    SessionEnded,
    SessionManager,
    SessionMeta,
    TurnOutcome,
    entries,
)
from gateway.sessions.history import undo_turn
from gateway.sessions.session import NewSession
from gateway.spool import Spool, SpoolUnavailable

MISMATCH = (
    "The history in this request doesn't match the session. Send only the new messages, or use another session name."
)
NOT_NEWEST = (
    "This response is not the newest of its conversation. Continue from the newest one, or start a new conversation."
)
CHECK_INTERVAL = 5.0
"""Seconds of silence after which a request checks whether its turn still exists."""


class DoorRequest(Struct, frozen=True, kw_only=True):
    """What chat completions and responses have in common."""

    caller: Caller
    choice: SessionChoice
    received: ReceivedMessages
    tools: tuple[ToolSpec, ...] = ()
    """The tools of the client."""
    key: str | None = None
    """The `Idempotency-Key`."""
    is_retry: bool = False
    """The client says that it repeats a request."""
    may_shorten: bool = False
    """Whether old messages may be left out if the conversation does not fit into the model's context."""

    @property
    def content(self) -> str:
        """Return a digest of everything that has to be the same when the key is repeated."""
        parts = [self.received.instructions, *map(repr, self.received.messages)]
        return sha256("\0".join(parts).encode()).hexdigest()[:32]


class SessionTurns:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        programs: ProgramSessions,
        prompts: Prompts,
        repos: Repositories,
        spool: Spool,
        lanes: Lanes[Job],
        uploads: FileRoutes,
        unwritten_text: Callable[[str], tuple[str, str] | None],
        is_stopping: Callable[[], bool],
        now: Callable[[], datetime],
        check_interval: float = CHECK_INTERVAL,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._programs = programs
        self._prompts = prompts
        self._repos = repos
        self._spool = spool
        self._lanes = lanes
        self._uploads = uploads
        self._unwritten_text = unwritten_text
        self._is_stopping = is_stopping
        self._now = now
        self._check_interval = check_interval
        # Requests of a scope are compared with the history and accepted one after the other.
        self._scopes = KeyedLocks()

    @asynccontextmanager
    async def open(self, request: DoorRequest) -> AsyncIterator[StreamedAnswer]:
        """Accept what is new in a request, and yield the answer to it. Raises `HttpError`."""
        choice = request.choice
        if request.tools:
            raise refusal(
                "In a session the agent uses its own tools. Leave out `tools`, or send this request without a session.",
                param="tools",
            )
        if request.received.uses_tools:
            raise refusal("A session takes messages of the user only, and no results of tools.", param="messages")
        with ExitStack() as following:
            found = await self._find(request)
            scope = found.scope if found is not None else scope_of(request.caller, choice.agent, choice.name).scope
            await self._scopes.acquire(scope)
            try:
                self._sessions.require_here(scope)
                followed = await self._begin(request, scope, found, following)
            except (SessionEnded, KeyReused) as error:
                code = "session_ended" if isinstance(error, SessionEnded) else "idempotency_key_reused"
                raise refusal(str(error), param=choice.param, code=code, status=HTTPStatus.CONFLICT) from error
            except QueueFull as error:
                raise too_busy(
                    f"{error.waiting} messages are already waiting for an answer. Try again later."
                ) from error
            except (NotAccepted, RefusedForNow, SpoolUnavailable) as error:
                raise unavailable(str(error)) from error
            except Refused as error:
                raise refusal(str(error), code="refused", status=HTTPStatus.CONFLICT) from error
            finally:
                self._scopes.release(scope)
            yield StreamedAnswer(
                name=followed.name,
                created=int(self._now().timestamp()),
                session=followed.session,
                pieces=self._pieces(followed),
            )

    async def _find(self, request: DoorRequest) -> SessionMeta | None:
        """Return the session whose id the request has. None if it has the name of a session."""
        choice = request.choice
        session_id = choice.after.session_id if choice.after is not None else choice.name
        found = await self._sessions.directory.find(session_id) if is_uuid(session_id) else None
        if found is None or not self._programs.may_see(request.caller, found):
            if choice.after is not None:
                raise not_found(choice.after)
            return None
        if found.agent != choice.agent:
            raise refusal(f"The agent of this session is `{found.agent}`. Use that as the model.", param="model")
        return found

    async def _begin(
        self, request: DoorRequest, scope: str, found: SessionMeta | None, following: ExitStack
    ) -> "_FollowedTurn":
        """Accept what is new, or find the turn that answers what is repeated. `following` keeps following it."""
        session = found or self._sessions.open_session(scope)
        placed: NewPrompt | Repetition | None = None
        if session is not None:
            if request.key is not None:
                message_id = self._prompts.message_id(request.caller, session, request.key)
                if await self._prompts.was_accepted(message_id, request.content, channel=OPENAI_CHANNEL):
                    return await self._join(session, message_id, None, following)
            try:
                placed = await self._place(request, session)
            except SessionDamaged:
                if found is not None:
                    raise
                session = None  # As in a chat, the next message starts a new session.
        if session is None:
            placed = find_new_messages(request.received.messages, [])
        elif isinstance(placed, Repetition):
            return await self._join(session, placed.turn.message_id, placed.turn.id, following)
        assert isinstance(placed, NewPrompt)  # noqa: S101 - without a session there is nothing to repeat.
        self._check(placed)
        attachments = [await self._keep(picture) for message in placed.messages for picture in message.pictures]
        seed = seed_entries(placed.seed, sender_of(request.caller))
        if session is None:
            session = await self._start(request, scope, seed)
        else:
            self._sessions.require_open(session.key)
            change: list[Entry] = seed
            if placed.replaces is not None:
                loaded = await self._sessions.load(session.key)
                change = [undo_turn(loaded.entries, placed.replaces)]
            await self._sessions.append(session.key, change)
        key = request.key
        message_id = str(uuid4()) if key is None else self._prompts.message_id(request.caller, session, key)
        follower = TurnFollower(message_id)
        following.enter_context(self._sessions.feed.followed(session.key, follower))
        await self._prompts.accept(
            request.caller,
            session,
            placed.text,
            message_id=message_id,
            channel=OPENAI_CHANNEL,
            attachments=attachments,
            instructions=request.received.instructions,
            key=key,
            content=request.content,
        )
        return _FollowedTurn(session=session, follower=follower, message_id=message_id)

    async def _place(self, request: DoorRequest, session: SessionMeta) -> NewPrompt | Repetition:
        """Find out what is new in a request to a session. Raises `HttpError` if its history does not fit."""
        # The messages that wait come first: one that begins its turn now has an entry then.
        waiting = await self._spool.open_messages(session.key) if self._lanes.is_busy(session.key) else []
        after, messages = request.choice.after, request.received.messages
        has_answers = after is not None or any(isinstance(each, AssistantMessage) for each in messages)
        limit = MAX_KNOWN if has_answers else MAX_UNANSWERED

        def compare(found: Sequence[Entry]) -> NewPrompt | Repetition | None:
            known = known_turns(found, waiting, self._unwritten_text(session.key), limit=limit)
            before = turn_of(found, after.name) if after is not None else None
            is_unknown = after is not None and before is None
            # A session is empty only if nothing was ever said in it.
            if is_unknown or (not known and not isinstance(found[0], entries.Header)):
                return None
            return find_new_messages(messages, known, after=before, is_retry=request.is_retry)

        found: Sequence[Entry] = (await self._sessions.load(session.key)).entries
        placed = compare(found)
        if placed is None and not isinstance(found[0], entries.Header):
            # The client may know more than the part that is in memory, for example after a summary.
            found = [entry async for entry in self._sessions.entries_since(session.key, 0)]
            placed = compare(found)
        if placed is not None:
            return placed
        if after is None:
            raise refusal(MISMATCH, param="messages", code="history_mismatch")
        if turn_of(found, after.name) is None:
            raise not_found(after)
        raise refusal(NOT_NEWEST, param="previous_response_id", code="history_mismatch")

    def _check(self, prompt: NewPrompt) -> None:
        """Refuse a prompt that the intake would not accept, before anything is stored."""
        limit = self._live.settings.gateway.max_message_chars
        if len(prompt.text) > limit:
            raise refusal(
                f"The new message has {len(prompt.text):,} characters; {limit:,} is the limit. Send it in parts.",
                param="messages",
                code="string_above_max_length",
            )
        pictures = sum(len(message.pictures) for message in prompt.messages)
        most = self._live.settings.files.max_per_message
        if pictures > most:
            raise refusal(f"The new message has {pictures} images; {most} is the limit.", param="messages")
        if any(message.pictures for message in prompt.seed):
            raise refusal(
                "A session can't take over images of earlier messages. Send them with the last message.",
                param="messages",
            )

    async def _keep(self, picture: Picture) -> Attachment:
        async def chunks() -> AsyncIterator[bytes]:
            yield picture.data

        return await self._uploads.keep(picture.name, chunks())

    async def _start(self, request: DoorRequest, scope: str, seed: Sequence[Entry]) -> SessionMeta:
        """Start the session of a name. It works in the repository of its token, or in the default one of its agent."""
        caller, choice = request.caller, request.choice
        token = self._live.token_book.find(caller.token)
        repo = token.repo if token is not None else None
        if repo is None and self._repos.is_coding_agent(choice.agent):
            repo = self._repos.default(choice.agent)
            if repo is None:
                raise refusal(
                    f"The agent `{choice.agent}` works in a repository, and has no default. "
                    "Use a token that is bound to one.",
                    param="model",
                )
        await self._programs.require_labels(scope, choice.agent, repo)
        if repo is not None:
            await self._programs.check_repo(repo, choice.agent, caller)
        session_id = str(uuid4())
        return await self._sessions.start_new(
            scope,
            agent=choice.agent,
            origin=Address(channel=OPENAI_CHANNEL, kind=PeerKind.DIRECT, peer=session_id),
            title=None if is_uuid(choice.name) else choice.name,
            new=NewSession(id=session_id, repo=repo or "", created_by=caller.token),
            opening=[*([entries.Workspace(value=repo)] if repo is not None else []), *seed],
            is_busy=self._lanes.is_busy,
        )

    async def _join(
        self, session: SessionMeta, message_id: str, turn: str | None, following: ExitStack
    ) -> "_FollowedTurn":
        """Follow the turn of a message that was accepted before, from its beginning. It may have ended."""
        follower = TurnFollower(message_id)
        found: Sequence[Entry] = (await self._sessions.load(session.key)).entries
        begun = turn_of(found, turn or message_id)
        if begun is None:
            # It began before the part that is in memory, or it has not begun yet.
            found = [entry async for entry in self._sessions.entries_since(session.key, 0)]
            begun = turn_of(found, turn or message_id)
        # Nothing is awaited from here on, so that no event is missed or comes twice.
        if begun is not None:
            follower.turn = begun
            follower.on_entries([entry for entry in found if entry.turn == begun])
            unwritten = self._unwritten_text(session.key)
            if unwritten is not None:
                follower.on_text(*unwritten)
        following.enter_context(self._sessions.feed.followed(session.key, follower))
        return _FollowedTurn(session=session, follower=follower, message_id=message_id, turn=turn or "")

    async def _pieces(self, followed: "_FollowedTurn") -> AsyncGenerator[Piece, None]:
        answer, tokens, note = AnswerText(), AnswerTokens(), ""
        may_be_lost = False
        async with aclosing(followed.follower.events(self._check_interval)) as events:
            async for event in events:
                if event is None:
                    # An event may have come during the check. So the turn is given up only after the next silence.
                    if may_be_lost:  # In a cluster, the next owner answers it.
                        self._sessions.require_here(followed.session.scope)
                    if may_be_lost and self._is_stopping():
                        raise unavailable(
                            "The gateway is shutting down. It answers this after its next start: ask again."
                        )
                    if may_be_lost:
                        raise refusal(
                            "This message is not answered: it was dropped, or its session was deleted.",
                            code="message_dropped",
                            status=HTTPStatus.CONFLICT,
                        )
                    may_be_lost = not await self._is_open(followed)
                    continue
                may_be_lost = False
                match event:
                    case Delta():
                        if text := answer.add(event.text):
                            yield TextDelta(text=text)
                    case entries.Assistant():
                        if text := answer.end_step(event.content):
                            yield TextDelta(text=text)
                        tokens = tokens if event.usage is None else tokens.plus(event.usage)
                    case entries.System():
                        note = event.content
                    case entries.TurnEnd(outcome=TurnOutcome.ANSWERED):
                        yield tokens
                    case entries.TurnEnd():
                        raise turn_ended(event.outcome, event.reason, note)

    async def _is_open(self, followed: "_FollowedTurn") -> bool:
        """Return whether the turn of a message runs, or will run."""
        key = followed.session.key
        if not self._lanes.is_busy(key) or self._sessions.find(key) is None:
            return False
        if followed.follower.turn is not None:
            return True
        waiting = await self._spool.open_messages(key)
        return any(row.inbound.event_id == followed.message_id for row in waiting)


class _FollowedTurn(Struct, frozen=True, kw_only=True):
    session: SessionMeta
    follower: TurnFollower
    message_id: str
    turn: str = ""

    @property
    def name(self) -> str:
        """The name of its answer. It is known before the turn begins."""
        return self.message_id.replace("-", "") if is_uuid(self.message_id) else self.turn


def turn_of(found: Sequence[Entry], name: str) -> str | None:
    """Return the turn with this id, or the one that answers the message with this id. Undone turns do not count."""
    undone = {entry.undone for entry in found if isinstance(entry, entries.Undo)}
    for entry in reversed(found):
        if isinstance(entry, entries.User) and entry.turn is not None and entry.turn not in undone:
            event_id = entry.event_id or ""
            if name in (entry.turn, event_id, event_id.replace("-", "")):
                return entry.turn
    return None
