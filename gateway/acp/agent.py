"""One running coding agent: its program in the sandbox, the connection to it, and its one ACP session."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import structlog
from acp import RequestError, schema
from acp.connection import Connection
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from acp.utils import serialize_params
from msgspec import Struct
from pydantic import BaseModel, ValidationError

from gateway.acp.acp_session import AcpSession, InvalidAnswer, Start, error_text
from gateway.acp.client import ClientRequests
from gateway.acp.launch import AgentLaunch
from gateway.acp.transport import AgentTransport
from gateway.agent.protocol import TokenUsage
from gateway.errors import AgentFailed, ClientRefused, GatehouseError, ProviderFailed, Refused
from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.program import ProgramExit, RunningProgram, open_program
from gateway.text import excerpt

log = structlog.get_logger()

CANCEL_TIMEOUT = 5.0
"""Seconds that a program gets to end a cancelled prompt. After that it is ended."""
TERM_TIMEOUT = 2.0
"""Seconds between SIGTERM and SIGKILL."""
EXIT_TIMEOUT = 2.0
"""Seconds to wait for the exit code of a program that has closed its output."""
MAX_BACKLOG = 1_000
"""Updates that the turn has not handled yet. Beyond this, nothing more is read from the program."""
MAX_BACKLOG_BYTES = 16 * 1024 * 1024
"""The same for what has come since the turn had handled all updates."""
MAX_INVALID = 1_000
"""Invalid messages, until the program counts as broken."""

_SIGNALLED = 128
"""Bubblewrap adds this to the number of the signal that has killed the program."""
_LAST_SIGNAL = 64
_STEERING = "_session/steering"
"""An extension of codex-acp."""


class Permission(Struct, frozen=True, kw_only=True):
    """The program asks whether it may do something. It waits until `answer` is resolved with an option's id or None."""

    call: schema.ToolCallUpdate
    options: Sequence[schema.PermissionOption]
    answer: "asyncio.Future[str | None]"
    is_over: asyncio.Event
    """Set once the program waits no more: it has ended the prompt, or has died."""


Item = Any  # A `Permission`, an update of the SDK, or the `PromptResponse` that ends the prompt.


class CodingAgent:
    """`run` starts the program and returns when it has ended. Everything else is called while it runs."""

    def __init__(self, launch: AgentLaunch) -> None:
        self.launch = launch
        self._tasks: asyncio.TaskGroup
        self._started: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self.ended = asyncio.Event()
        """Set once no process of it is left."""
        self.failure: AgentFailed | None = None
        """Why the program has died or cannot be used any more."""
        self._refusal: Refused | None = None
        self._program: RunningProgram | None = None
        self._connection: Connection
        self._session: AcpSession
        self._transport: AgentTransport
        self._client = ClientRequests(launch)
        self._reported: TokenUsage | None = None
        self._is_continued = False
        self._is_prompting = False
        self._is_over = asyncio.Event()
        """Set when the last prompt is answered. Each prompt has its own event."""
        self._items = deque[Item]()
        self._arrived = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._permissions: set[asyncio.Future[str | None]] = set()
        self._invalid = 0

    async def run(self) -> None:
        """Run the program until it ends, breaks the protocol, or `end` is called. Raises nothing but cancellation."""
        launch = self.launch
        try:
            async with open_program(launch.sandboxed(), launch.service) as program:
                self._program = program
                log.info(
                    "agent_started",
                    agent=launch.agent,
                    session=launch.session,
                    repo=launch.workspace.repo.id,
                    workspace=str(launch.workspace.folder),
                    command=list(launch.program.argv),
                    network=launch.settings.sandbox.network,
                    pid=program.pid,
                )
                self._transport = AgentTransport(program.stdout, program.stdin)
                self._connection = Connection(self._handle, self._transport)
                self._session = AcpSession(self._connection, launch)
                try:
                    await self._serve(program)
                finally:
                    await self._connection.close()
                    await self._client.aclose()
                    await program.end(TERM_TIMEOUT)
        except SandboxUnavailable as missing:
            self._refusal = Refused(str(missing))
        except Exception:  # One agent's bug must not end the others.
            log.exception("agent_crashed", agent=launch.agent, session=launch.session)
            # Not by `_fail`: a task that crashes sets `_ending` first.
            reason = "something went wrong on my side; the operator can find the details in the log"
            self.failure = self.failure or AgentFailed(f"The agent {launch.agent} failed: {reason}.")
        finally:
            self._ending.set()
            self._settled.set()
            if not self._started.done():
                self._started.set_exception(self._reason())
                self._started.exception()  # The turn that waited for it may be gone.
            for answer in self._permissions:
                answer.cancel()
            self.ended.set()
            self._is_over.set()
            self._arrived.set()
            log.info("agent_ended", agent=launch.agent, session=launch.session)

    async def _serve(self, program: RunningProgram) -> None:
        """Start the session, and return when the program has to be ended or has ended."""

        async def watch_exit() -> None:
            ended = await program.wait()
            self._fail(self._transport.fault or _describe_exit(ended))
            self._ending.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._start(), name="acp:start")
                tasks.create_task(watch_exit(), name="acp:exit")
                try:
                    await self._ending.wait()
                finally:
                    self._ending.set()  # Also if it is cancelled: the group takes no more tasks then.
                raise _Over  # noqa: TRY301 - it leaves the group, which cancels what is still under way.
        except* _Over:
            pass

    async def _start(self) -> None:
        """Do the handshake. If it fails, the program is ended."""
        try:
            async with asyncio.timeout(self.launch.settings.start_timeout):
                start = await self._session.open()
        except TimeoutError:
            self._fail(f"it did not start within {self.launch.settings.start_timeout:g} seconds")
        except ConnectionError:
            await self._explain_exit()
        except RequestError as error:  # It works, but lacks something, such as a login.
            self._refusal = Refused(f"The agent {self.launch.agent} can't start a session. {error_text(error)}")
        except (InvalidAnswer, OSError) as error:
            self._fail(f"it broke the protocol: {error}")
        except Refused as refusal:
            self._refusal = refusal
        else:
            self._started.set_result(start)
            return
        self._ending.set()

    def count_usage(self, reported: TokenUsage | None) -> TokenUsage | None:
        """Return the tokens of the last prompt. Some programs report those of the whole session each time."""
        before, self._reported = self._reported, reported
        if not self.launch.preset.is_usage_cumulative or reported is None or before is None:
            return reported
        return TokenUsage(
            input_tokens=max(reported.input_tokens - before.input_tokens, 0),
            output_tokens=max(reported.output_tokens - before.output_tokens, 0),
            cache_read_tokens=max(reported.cache_read_tokens - before.cache_read_tokens, 0),
            cache_write_tokens=max(reported.cache_write_tokens - before.cache_write_tokens, 0),
            model=reported.model,
        )

    async def ready(self) -> Start:
        """Wait until the program takes a prompt: it has started, and has ended a prompt that was cancelled.

        Return how it knows the conversation. Raises `AgentFailed` or `Refused` if it cannot be used.
        """
        start = await asyncio.shield(self._started)
        if not await self.settle():
            raise self._reason()
        return Start.RUNNING if self._is_continued else start

    async def settle(self) -> bool:
        """Wait until the program has ended a prompt that was cancelled. Return False if it had to be ended for that."""
        await self._settled.wait()
        return self.is_usable

    def _reason(self) -> GatehouseError:
        """Return why the program cannot be used."""
        return self._refusal or self.failure or Refused(f"The agent {self.launch.agent} was stopped.")

    @property
    def session(self) -> AcpSession:
        """Its ACP session, once it has started."""
        return self._session

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and is not about to be ended."""
        return not self._ending.is_set()

    @property
    def is_busy(self) -> bool:
        return self._is_prompting or not self._settled.is_set() or not self._started.done()

    def end(self) -> None:
        """Cancel what the program does, and end it. `ended` is set when it is gone."""
        if self._is_prompting and self.is_usable:
            self._tasks.create_task(self._notify_cancel(), name="acp:cancel")
        self._ending.set()

    async def prompt(self, blocks: Sequence[BaseModel]) -> AsyncGenerator[Item, None]:
        """Send a prompt, and yield what comes until its `PromptResponse`. Call `ready` before.

        If it is closed before the response, the prompt is cancelled. `ready` then waits until the program has ended it.
        Raises `AgentFailed` if the program dies, and `ProviderFailed` if only this prompt has failed.
        """
        if not self.is_usable:
            raise self._reason()
        self._items.clear()
        self._transport.resume()
        self._is_prompting = self._is_continued = True
        self._is_over = asyncio.Event()
        is_done = False
        sent = self._tasks.create_task(self._send_prompt(blocks), name="acp:prompt")
        try:
            while not is_done:
                while not self._items:
                    if self.ended.is_set():  # What it has said before its end comes first.
                        raise self._reason()
                    self._arrived.clear()
                    await self._arrived.wait()
                item = self._items.popleft()
                if not self._items:
                    self._transport.resume()
                if isinstance(item, GatehouseError):
                    raise item
                if isinstance(item, Permission) and item.answer.done():  # The program has ended since.
                    continue
                is_done = isinstance(item, schema.PromptResponse)
                yield item
        finally:
            self._is_prompting = False
            self._items.clear()
            self._transport.resume()
            if not sent.done() and self.is_usable:
                self._settled.clear()
                self._tasks.create_task(self._cancel(), name="acp:cancel")
            else:
                self._refuse_permissions()  # Those that it has asked for after its response.

    async def steer(self, blocks: Sequence[BaseModel]) -> bool:
        """Hand over more input while a prompt is under way. Return False if the program could not take it."""
        params = {
            "sessionId": self._session.id,
            "prompt": [serialize_params(block) for block in blocks],
            "_meta": {"steering": {"idleBehavior": "promptRequired"}},
        }
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                answer = await self._connection.send_request(_STEERING, params)
        except (RequestError, OSError) as error:
            log.info("agent_not_steered", agent=self.launch.agent, session=self.launch.session, reason=str(error))
            return False
        return isinstance(answer, dict) and answer.get("outcome") == "injected"

    async def _send_prompt(self, blocks: Sequence[BaseModel]) -> None:
        request = schema.PromptRequest(session_id=self._session.id, prompt=list(blocks))
        result: Item
        try:
            await self._session.restore_mode()
            result = await self._session.request("session_prompt", request, schema.PromptResponse)
        except RequestError as error:
            # The program works, but its model does not: no key, no network, or no credit.
            result = ProviderFailed(f"The agent {self.launch.agent} couldn't answer. {error_text(error)}")
        except (InvalidAnswer, OSError) as error:
            if isinstance(error, ConnectionError):
                await self._explain_exit()
            else:
                self._fail(f"it broke the protocol: {error}")
            self._ending.set()
            result = self._reason()
        self._add(result)
        self._is_over.set()
        self._settled.set()

    async def _cancel(self) -> None:
        """Cancel the prompt whose turn has been stopped. End the program if it does not obey in time."""
        await self._notify_cancel()
        self._refuse_permissions()  # Some programs wait for these answers before they obey.
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await self._settled.wait()
        if not self._settled.is_set():
            log.warning("agent_ignored_cancel", agent=self.launch.agent, session=self.launch.session)
            self._ending.set()

    def _refuse_permissions(self) -> None:
        for answer in self._permissions:
            if not answer.done():
                answer.set_result(None)

    async def _notify_cancel(self) -> None:
        notice = schema.CancelNotification(session_id=self._session.id)
        with suppress(OSError):
            await self._connection.send_notification(AGENT_METHODS["session_cancel"], serialize_params(notice))

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:  # noqa: ANN401, FBT001 - as the SDK calls it.
        try:
            if is_notification:
                if method == CLIENT_METHODS["session_update"]:
                    notice = schema.SessionNotification.model_validate(params)
                    if notice.session_id == self._session.id:
                        self._session.note_mode(notice.update)
                        if self._is_prompting:
                            self._add(notice.update)
                return None
            if method == CLIENT_METHODS["session_request_permission"]:
                return await self._ask(schema.RequestPermissionRequest.model_validate(params))
            return await self._client.answer(method, params)
        except ValidationError as error:
            self._invalid += 1
            if self._invalid == 1:
                where = ", ".join(".".join(map(str, each["loc"][:4])) for each in error.errors()[:3])
                log.warning("agent_message_invalid", agent=self.launch.agent, method=excerpt(method, 60), where=where)
            if self._invalid > MAX_INVALID:
                self._fail("it sent too many invalid messages")
                self._ending.set()
            if is_notification:  # The SDK would log a traceback.
                return None
            raise RequestError.invalid_params() from None
        except ClientRefused as refusal:
            raise RequestError.invalid_params({"details": str(refusal)}) from None

    async def _ask(self, request: schema.RequestPermissionRequest) -> Any:  # noqa: ANN401 - JSON.
        option: str | None = None
        # A program that asks without a prompt, or after a cancel, gets no answer from a person.
        if self._is_prompting and request.session_id == self._session.id:
            answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            self._permissions.add(answer)
            try:
                asked = Permission(
                    call=request.tool_call, options=request.options, answer=answer, is_over=self._is_over
                )
                self._add(asked)
                option = await answer
            finally:
                self._permissions.discard(answer)
        if option is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": option}}

    def _add(self, item: Item) -> None:
        self._items.append(item)
        if len(self._items) >= MAX_BACKLOG or self._transport.taken_bytes >= MAX_BACKLOG_BYTES:
            self._transport.pause()
        self._arrived.set()

    async def _explain_exit(self) -> None:
        """Set the failure of a program that has closed its output."""
        reason = self._transport.fault
        if not reason and self._program is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_TIMEOUT):
                    reason = _describe_exit(await self._program.wait())
        self._fail(reason or "it closed its output")

    def _fail(self, reason: str) -> None:
        """Note why the program cannot be used, with the last lines of its stderr. The first reason counts."""
        if self.failure is not None or self._ending.is_set():
            return
        stderr = self._program.stderr_tail() if self._program is not None else ""
        agent = self.launch.agent
        log.error("agent_failed", agent=agent, session=self.launch.session, reason=reason, stderr=stderr)
        self.failure = AgentFailed(f"The agent {agent} failed: {reason}.", details=stderr)


class _Over(Exception):
    """Leaves the task group of a program that has to be ended."""


def _describe_exit(ended: ProgramExit) -> str:
    number = -ended.code if ended.code < 0 else ended.code - _SIGNALLED
    if not ended.stopped_for and 0 < number <= _LAST_SIGNAL:
        return f"it was killed by signal {number}"
    return ended.stopped_for or f"it ended by itself with exit code {ended.code}"
