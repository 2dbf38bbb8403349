"""Tools: typed functions that a model may call, and the toolbox that runs them so that no failure ends a turn."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, cast, get_type_hints, overload

import msgspec
import structlog
from msgspec import Struct

from gateway.agent.protocol import ToolSpec
from gateway.agent.workspace_lock import WorkspaceLocks
from gateway.conversation import Json, ToolCall, ToolOutcome
from gateway.documents.conversion import DocumentConverter
from gateway.errors import Refused
from gateway.memory.statement import Statement
from gateway.text import clean, excerpt
from gateway.tracing import open_span

P = ParamSpec("P")

_MAX_OUTPUT_CHARS = 50_000
_MAX_CONCURRENT = 8
_NO_FILES = "files cannot be sent here"

log = structlog.get_logger()

SendFile = Callable[[int, str], Awaitable[str]]
"""Sends an open file along with the answer. Returns the name that it gets, which is a harmless form of the given one.
Raises `Refused` if it cannot."""

CheckSending = Callable[[], None]
"""Raises `Refused` if no further file can be sent, before a tool makes one."""


async def cannot_send(_descriptor: int, _name: str) -> str:
    raise Refused(_NO_FILES)


def check_cannot_send() -> None:
    raise Refused(_NO_FILES)


class Budget(Protocol):
    """The budget of the person who is charged for the turn."""

    async def check_limits(self) -> None:
        """Raise `Refused` if it is used up."""

    def charge_call(self, model: str, cost: float) -> None:
        """Add a call that has a cost and no tokens. `model` is `provider/model`."""


Remind = Callable[[str, str], Awaitable[str]]
"""Schedules a reminder: its text, and its time as the model wrote it. Raises `Refused` if it cannot."""


async def cannot_remind(_text: str, _when: str) -> str:
    raise Refused("reminders cannot be set here")


MakeSchedule = Callable[[str, str], Awaitable[str]]
"""Makes a schedule: its prompt, and its time as the model wrote it. Raises `Refused` if it cannot."""


async def cannot_schedule(_prompt: str, _when: str) -> str:
    raise Refused("Schedules cannot be made here.")


class FoundStatement(Struct, frozen=True, kw_only=True):
    """A statement of the memory. `channel` is that of another chat of the same person; empty: it is of this chat."""

    statement: Statement
    channel: str = ""


class FoundMessage(Struct, frozen=True, kw_only=True):
    """A message of a session, or a part of it. The number of the session counts in its own chat only."""

    session: int
    is_archived: bool
    channel: str
    """As in `FoundStatement`."""
    at: datetime
    role: str
    text: str


class Recalled(Struct, frozen=True, kw_only=True):
    """What is known about a query, the best first."""

    statements: tuple[FoundStatement, ...] = ()
    messages: tuple[FoundMessage, ...] = ()


Recall = Callable[[str], Awaitable[Recalled]]
"""Looks up a query in the memory and the conversations of the scope."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """The things that a tool may touch. Workspace and memory belong to the conversation's scope."""

    workspace: Path
    """Tools refuse it once it has become a link. The path of one that is not private contains no links at all."""
    is_private: bool = False
    """The workspace belongs to one scope. It is created when a tool needs it first."""
    attachments: Path | None = None
    """The files of the session, which tools can read and not change. The folder exists once there are any."""
    find_skills: Callable[[], Mapping[str, Path]] = dict
    """Returns the folders of the agent's skills by name, without links, as far as the person may use them now."""
    locks: WorkspaceLocks = msgspec.field(default_factory=WorkspaceLocks)
    """Shared by all sessions, since several can use one workspace."""
    memory: Path
    """The folder with the memory files of the scope, which need not exist."""
    now: Callable[[], datetime]
    documents: DocumentConverter = msgspec.field(default_factory=DocumentConverter)
    """Shared by all sessions, since few documents are converted at the same time."""
    send_file: SendFile = cannot_send
    check_sending: CheckSending = check_cannot_send
    budget: Budget | None = None
    """None: calls of services are not charged."""
    remind: Remind = cannot_remind
    schedule: MakeSchedule = cannot_schedule
    recall: Recall | None = None
    """None: there are no conversations, only the memory."""

    @property
    def skills(self) -> Mapping[str, Path]:
        """The folders of skills. Tools can read them and not change them."""
        return self.find_skills()


class ToolFailed(Exception):
    """Its text is a sentence for the model: what failed, and what to try instead."""


Check = Callable[[dict[str, Json]], object]
"""Takes the arguments as the model wrote them. Raises `ToolFailed` if they are invalid."""

Run = Callable[[ToolContext, dict[str, Json]], Coroutine[Any, Any, str]]  # Any: as for every async function.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    spec: ToolSpec
    run: Run
    """Takes the arguments as the model wrote them. Raises `ToolFailed` if they are invalid."""
    check: Check | None = None
    """None if only `run` can tell whether the arguments are valid."""
    concurrent: bool = False
    """It may run in parallel with other tools of its step, because it changes nothing that they could see."""
    needs_approval: bool = False
    """A person has to approve each call."""
    asks_if: str = ""
    """The argument with which a call needs an approval."""
    deadline: float | None = None
    """Seconds that a call may take. None for the toolbox's limit."""


Function = Callable[Concatenate[ToolContext, P], Awaitable[str]]


@overload
def tool(function: Function[P], /) -> Tool: ...


@overload
def tool(
    *, concurrent: bool = False, needs_approval: bool = False, asks_if: str = ""
) -> Callable[[Function[P]], Tool]: ...


def tool(
    function: Function[P] | None = None,
    /,
    *,
    concurrent: bool = False,
    needs_approval: bool = False,
    asks_if: str = "",
) -> Tool | Callable[[Function[P]], Tool]:
    """Make a `Tool` of an async function. The model sees its name, its docstring and its typed parameters."""

    def make(function: Callable[..., Awaitable[str]]) -> Tool:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        _, *parameters = inspect.signature(function).parameters.values()  # The first one is the context.
        arguments = msgspec.defstruct(
            name,
            [
                (each.name, hints[each.name])
                if each.default is each.empty
                else (each.name, hints[each.name], each.default)
                for each in parameters
            ],
            kw_only=True,
            forbid_unknown_fields=True,
        )
        (root,), parts = msgspec.json.schema_components([arguments])
        schema = cast("dict[str, Json]", _compact_schema(root, parts))

        def check(given: dict[str, Json]) -> Struct:
            try:
                return msgspec.convert(given, type=arguments)
            except msgspec.ValidationError as mistake:
                raise ToolFailed(f"The arguments of {name} are wrong: {mistake}.") from mistake

        async def run(context: ToolContext, given: dict[str, Json]) -> str:
            return await function(context, **msgspec.structs.asdict(check(given)))

        spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", schema=schema)
        return Tool(
            spec=spec, run=run, check=check, concurrent=concurrent, needs_approval=needs_approval, asks_if=asks_if
        )

    return make if function is None else make(function)


def _compact_schema(schema: Json, parts: dict[str, Json]) -> Json:
    """Replace each reference by the part it names, and leave out what a model does not need: it charges by the token.

    When a call runs, a missing argument gets its default and an unknown one is refused.
    """
    if isinstance(schema, list):
        return [_compact_schema(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _compact_schema(parts[reference.rpartition("/")[2]], parts)
    # msgspec gives each struct its class name as a title, which says nothing to a model.
    is_struct = "properties" in schema and isinstance(schema.get("title"), str)
    idle = {"title", "additionalProperties"} if is_struct else set()
    if schema.get("required") == []:
        idle.add("required")
    if "properties" not in schema:
        idle.add("default")
    return {key: _compact_schema(value, parts) for key, value in schema.items() if key not in idle}


class ToolPolicy(Protocol):
    """Which tools may run for the people whose messages a turn answers."""

    @property
    def limits_tools(self) -> bool:
        """Whether it forbids any tool, or asks before any."""

    def allows_tool(self, tool: str) -> bool: ...

    def asks_before(self, tool: str) -> bool: ...


class Toolbox:
    """Runs tools by name. Every call ends in an outcome, within `deadline` seconds or the tool's own limit."""

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        deadline: float = 60.0,
        more: Callable[[], Iterable[Tool]] | None = None,
        policy: Callable[[], ToolPolicy] | None = None,
    ) -> None:
        """Start with `tools`. `more` returns further tools that come and go.

        `policy` is asked at each use, so that a change holds for the next call of a running turn.
        """
        self._own = {each.spec.name: each for each in tools}
        self._own_specs = tuple(each.spec for each in self._own.values())
        self._more = more
        self._deadline = deadline
        self._policy = policy
        self._is_narrowed = False
        """Whether the policy has kept tools from the model at the last look."""

    @property
    def _tools(self) -> dict[str, Tool]:
        """All tools, also those that the policy forbids."""
        if self._more is None:
            return self._own
        return {**{each.spec.name: each for each in self._more()}, **self._own}

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that a model is offered."""
        specs = self._own_specs
        if self._more is not None:
            more = {each.spec.name: each.spec for each in self._more() if each.spec.name not in self._own}
            specs = (*more.values(), *self._own_specs)
        policy = self._policy() if self._policy is not None else None
        self._is_narrowed = policy is not None and policy.limits_tools
        if policy is None or not policy.limits_tools:
            return specs
        return tuple(each for each in specs if policy.allows_tool(each.name))

    def offered(self, before: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools for the next step of a turn that was offered `before`: they change only with the policy."""
        may_differ = self._is_narrowed or (self._policy is not None and self._policy().limits_tools)
        return self.specs() if may_differ else before

    def under(self, policy: Callable[[], ToolPolicy]) -> "Toolbox":
        """Return the same tools under a policy."""
        return Toolbox(self._own.values(), deadline=self._deadline, more=self._more, policy=policy)

    def snapshot(self) -> "Toolbox":
        """Return the tools as they are now. A tool that is added during an approval has not been approved.

        The policy is still asked at each use.
        """
        return Toolbox(self._tools.values(), deadline=self._deadline, policy=self._policy)

    def needs_approval(self, call: ToolCall) -> bool:
        """Return whether a person has to approve `call`. A call that cannot run needs no approval."""
        tool = self._tools.get(call.name)
        if call.fault or tool is None:
            return False
        needs_approval = tool.needs_approval or bool(tool.asks_if and call.input.get(tool.asks_if))
        if self._policy is None:
            return needs_approval
        policy = self._policy()
        return policy.allows_tool(call.name) and (needs_approval or policy.asks_before(call.name))

    def may_change_files(self, call: ToolCall) -> bool:
        """Return whether `call` may change something that other calls see."""
        return call.name in self._tools and not self._tools[call.name].concurrent

    def find_fault(self, call: ToolCall) -> ToolOutcome | None:
        """Return the outcome of a call whose arguments are invalid, or None. Nothing runs."""
        tool = self._tools.get(call.name)
        try:
            if tool is not None and tool.check is not None:
                tool.check(call.input)
        except ToolFailed as failure:
            return _failure(call, str(failure))
        return None

    def find_refusal(self, call: ToolCall, *, is_approved: bool) -> ToolOutcome | None:
        """Return the outcome of a call that the policy forbids now, or None. It may have changed during the step."""
        policy = self._policy() if self._policy is not None else None
        if policy is None or call.name not in self._tools:
            return None
        if not policy.allows_tool(call.name):
            return _failure(call, f"The tool {call.name} is not for the person who asks. Do not call it again.")
        if policy.asks_before(call.name) and not is_approved:
            return _failure(call, f"By now, {call.name} needs a person's approval. Call it again to ask for that.")
        return None

    def batches(self, calls: Iterable[ToolCall]) -> Iterator[tuple[ToolCall, ...]]:
        """Divide the calls of a step, in order, into batches that may run in parallel."""

        def may_run_in_parallel(call: ToolCall) -> bool:
            return call.name in self._tools and self._tools[call.name].concurrent and not self.needs_approval(call)

        for is_parallel, run in groupby(calls, may_run_in_parallel):
            together, size = tuple(run), _MAX_CONCURRENT if is_parallel else 1
            for start in range(0, len(together), size):
                yield together[start : start + size]

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext) -> tuple[ToolOutcome, ...]:
        """Run the calls of one batch in parallel. The outcomes are in the order of the calls."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self.run(call, context), name=f"tool:{call.name}") for call in calls]
        return tuple(task.result() for task in running)

    async def run(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(each.name for each in self.specs())
            offer = f"There are: {names}." if names else "There are no tools here."
            return _failure(call, f"There is no tool {excerpt(call.name, 80)!r}. {offer}")
        if call.fault:
            return _failure(call, call.fault)
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool.spec.name}
        with open_span(f"execute_tool {tool.spec.name}", about) as span:
            outcome = await self._run(tool, call, context)
            if outcome.is_error:
                span.fail("tool_failed")
        return outcome

    async def _run(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutcome:
        limit = self._deadline if tool.deadline is None else tool.deadline
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                output = await tool.run(context, call.input)
        except ToolFailed as failure:
            return _failure(call, str(failure))
        except Exception as error:  # A bug in one tool must not cost the person the answer.
            if isinstance(error, TimeoutError) and deadline.expired():
                return _failure(call, f"The tool {call.name} did not finish within {limit:g} seconds.")
            log.exception("tool_crashed", tool=call.name)
            return _failure(
                call, f"The tool {call.name} failed unexpectedly. The operator can find the reason in the log."
            )
        return ToolOutcome(id=call.id, output=_limited(output))


def _failure(call: ToolCall, sentence: str) -> ToolOutcome:
    return ToolOutcome(id=call.id, output=_limited(sentence), is_error=True)


def _limited(output: str) -> str:
    if len(output) <= _MAX_OUTPUT_CHARS:
        return clean(output)
    return f"{clean(output[:_MAX_OUTPUT_CHARS])}\n[Cut: only the first {_MAX_OUTPUT_CHARS} characters are shown.]"
