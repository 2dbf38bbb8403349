"""Tools: small typed functions that a model may call, and the box that runs them so that no failure ends a turn."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, cast, get_type_hints, overload

import msgspec
import structlog
from msgspec import Struct

from gateway.agent.protocol import ToolSpec
from gateway.conversation import Json, ToolCall, ToolOutcome
from gateway.errors import Refused
from gateway.text import clean, excerpt

__all__ = ["Tool", "ToolContext", "ToolFailed", "Toolbox", "tool"]

P = ParamSpec("P")

_MAX_OUTPUT_CHARS = 50_000
_MAX_BESIDE = 8

log = structlog.get_logger()


SendFile = Callable[[int, str], Awaitable[None]]
"""Lets an open file go with the answer, under a name; `Refused` says why it cannot."""


async def cannot_send(_descriptor: int, _name: str) -> None:
    raise Refused("no files can be sent from here")


Remind = Callable[[str, str], Awaitable[str]]
"""Has a text come to the chat later, at a time as the model wrote it; `Refused` says why it cannot."""


async def cannot_remind(_text: str, _when: str) -> str:
    raise Refused("nobody can be reminded from here")


class ToolContext(Struct, frozen=True, kw_only=True):
    """What a tool may touch: the workspace folder and the notes file of the scope it is called for, and no other's."""

    workspace: Path
    notes: Path
    now: Callable[[], datetime]
    send_file: SendFile = cannot_send
    remind: Remind = cannot_remind


class ToolFailed(Exception):
    """Its text is a sentence for the model: what did not work, and what to try instead."""


Run = Callable[[ToolContext, dict[str, Json]], Coroutine[Any, Any, str]]  # As every async function is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call, with what the model is told about it and how it may be run."""

    spec: ToolSpec
    run: Run
    """Takes the arguments as the model wrote them; raises `ToolFailed` when they do not fit."""
    concurrent: bool = False
    """It may run beside other tools of the same step: it changes nothing that they could see."""
    needs_approval: bool = False
    """A person has to agree before it runs."""
    deadline: float | None = None
    """Seconds that a call may take, where that is not the toolbox's own limit."""


Function = Callable[Concatenate[ToolContext, P], Awaitable[str]]


@overload
def tool(function: Function[P], /) -> Tool: ...


@overload
def tool(*, concurrent: bool = False, needs_approval: bool = False) -> Callable[[Function[P]], Tool]: ...


def tool(
    function: Function[P] | None = None, /, *, concurrent: bool = False, needs_approval: bool = False
) -> Tool | Callable[[Function[P]], Tool]:
    """Make a `Tool` of an async function: its name, docstring and typed parameters are what the model sees."""

    def made(function: Function[P]) -> Tool:
        name = function.__name__
        arguments = msgspec.defstruct(name, _fields(function), kw_only=True, forbid_unknown_fields=True)
        spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", schema=_schema(arguments))
        return Tool(
            spec=spec, run=_checked(name, arguments, function), concurrent=concurrent, needs_approval=needs_approval
        )

    return made if function is None else made(function)


def _checked(name: str, arguments: type[msgspec.Struct], function: Callable[..., Awaitable[str]]) -> Run:
    async def run(context: ToolContext, given: dict[str, Json]) -> str:
        try:
            checked = msgspec.convert(given, type=arguments)
        except msgspec.ValidationError as mistake:
            raise ToolFailed(f"The arguments of {name} are wrong: {mistake}.") from mistake
        return await function(context, **msgspec.structs.asdict(checked))

    return run


class Toolbox:
    """Runs tools by name. Every call ends in an outcome, within `deadline` seconds or the tool's own limit."""

    def __init__(
        self, tools: Iterable[Tool], *, deadline: float = 60.0, more: Callable[[], Iterable[Tool]] = tuple
    ) -> None:
        self._own = {each.spec.name: each for each in tools}
        self._own_specs = tuple(each.spec for each in self._own.values())
        self._more = more
        self._deadline = deadline

    @property
    def _tools(self) -> dict[str, Tool]:
        """Also those that come and go."""
        return {**{each.spec.name: each for each in self._more()}, **self._own}

    def specs(self) -> tuple[ToolSpec, ...]:
        more = {each.spec.name: each.spec for each in self._more() if each.spec.name not in self._own}
        return (*more.values(), *self._own_specs) if more else self._own_specs

    def snapshot(self) -> "Toolbox":
        """Return the tools as they are now: one that comes while a person is asked has not been asked about."""
        return Toolbox(self._tools.values(), deadline=self._deadline)

    def needs_approval(self, call: ToolCall) -> bool:
        """Tell whether a person has to agree before `call` runs; one that cannot run is nobody's concern."""
        return not call.fault and call.name in self._tools and self._tools[call.name].needs_approval

    def batches(self, calls: Iterable[ToolCall]) -> Iterator[tuple[ToolCall, ...]]:
        """Cut the calls of a step, in order, into runs that may go side by side, and single ones that may not."""
        for beside, run in groupby(calls, self._may_run_beside):
            together, size = tuple(run), _MAX_BESIDE if beside else 1
            for start in range(0, len(together), size):
                yield together[start : start + size]

    def _may_run_beside(self, call: ToolCall) -> bool:
        return call.name in self._tools and self._tools[call.name].concurrent and not self.needs_approval(call)

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext) -> tuple[ToolOutcome, ...]:
        """Run the calls of one batch at the same time; the outcomes are in the order of the calls."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self.run(call, context), name=f"tool:{call.name}") for call in calls]
        return tuple(task.result() for task in running)

    async def run(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        try:
            output = await self._run(call, context)
        except ToolFailed as failure:
            return ToolOutcome(id=call.id, output=_capped(str(failure)), is_error=True)
        except Exception:  # A bug in one tool must not cost the person the answer; the model can do without it.
            log.exception("tool_crashed", tool=call.name)
            sentence = f"The tool {call.name} failed for an unexpected reason. The operator can find it in the log."
            return ToolOutcome(id=call.id, output=sentence, is_error=True)
        return ToolOutcome(id=call.id, output=_capped(output))

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        wanted = self._tools.get(call.name)
        if wanted is None:
            raise ToolFailed(f"There is no tool {excerpt(call.name, 80)!r}. {self._offer()}")
        if call.fault:
            raise ToolFailed(call.fault)
        limit = self._deadline if wanted.deadline is None else wanted.deadline
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await wanted.run(context, call.input)
        except TimeoutError as late:
            if not deadline.expired():
                raise
            raise ToolFailed(f"The tool {call.name} did not finish within {limit:g} seconds.") from late

    def _offer(self) -> str:
        return f"There are: {', '.join(self._tools)}." if self._tools else "There are no tools here."


def _capped(output: str) -> str:
    if len(output) <= _MAX_OUTPUT_CHARS:
        return clean(output)
    return f"{clean(output[:_MAX_OUTPUT_CHARS])}\n[Cut: only the first {_MAX_OUTPUT_CHARS} characters are shown.]"


Field = tuple[str, object] | tuple[str, object, object]


def _fields(function: Callable[..., object]) -> list[Field]:
    """Every parameter but the first, which is the context."""
    hints = get_type_hints(function, include_extras=True)
    return [
        (each.name, hints[each.name]) if each.default is each.empty else (each.name, hints[each.name], each.default)
        for each in list(inspect.signature(function).parameters.values())[1:]
    ]


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Json]:
    (root,), parts = msgspec.json.schema_components([arguments])
    return cast("dict[str, Json]", _inlined(root, parts))


def _inlined(schema: Json, parts: dict[str, Json]) -> Json:
    """Put each part in place of the reference to it, and leave out what says nothing: models pay by the word."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _inlined(parts[reference.rpartition("/")[2]], parts)
    is_struct = "properties" in schema and isinstance(schema.get("title"), str)
    idle = {"title"} if is_struct else set()
    if schema.get("required") == []:
        idle.add("required")
    return {key: _inlined(value, parts) for key, value in schema.items() if key not in idle}
