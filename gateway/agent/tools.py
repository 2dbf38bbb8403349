"""Tools: small typed functions that a model may call, and the box that runs them so that no failure ends a turn."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, cast, get_type_hints

import msgspec
import structlog

from gateway.agent.provider import ToolSpec
from gateway.dialogue import Json, ToolCall, ToolOutcome
from gateway.text import clean, excerpt

__all__ = ["Tool", "ToolContext", "ToolFailed", "Toolbox", "tool"]

P = ParamSpec("P")

_MAX_OUTPUT_CHARS = 50_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may touch: the workspace folder and the notes file of the scope it is called for, and no other's."""

    workspace: Path
    notes: Path
    now: Callable[[], datetime]


class ToolFailed(Exception):
    """Its text is a sentence for the model: what did not work, and what to try instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call, with what the model is told about it."""

    spec: ToolSpec
    arguments: type[msgspec.Struct]
    function: Callable[..., Awaitable[str]]

    async def run(self, context: ToolContext, arguments: dict[str, Json]) -> str:
        """Call the function; raise `ToolFailed` when the arguments do not fit it."""
        try:
            checked = msgspec.convert(arguments, type=self.arguments)
        except msgspec.ValidationError as mistake:
            raise ToolFailed(f"The arguments of {self.spec.name} are wrong: {mistake}.") from mistake
        return await self.function(context, **msgspec.structs.asdict(checked))


def tool(function: Callable[Concatenate[ToolContext, P], Awaitable[str]]) -> Tool:
    """Make a `Tool` of an async function: its name, docstring and typed parameters are what the model sees."""
    name = function.__name__
    arguments = msgspec.defstruct(name, _fields(function), kw_only=True, forbid_unknown_fields=True)
    spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", schema=_schema(arguments))
    return Tool(spec=spec, arguments=arguments, function=function)


class Toolbox:
    """Runs tools by name. Every call ends in an outcome, within `deadline` seconds."""

    def __init__(self, tools: Iterable[Tool], *, deadline: float = 60.0) -> None:
        self._tools = {each.spec.name: each for each in tools}
        self._deadline = deadline

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(each.spec for each in self._tools.values())

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
        deadline = asyncio.timeout(self._deadline)
        try:
            async with deadline:
                return await wanted.run(context, call.input)
        except TimeoutError as late:
            if not deadline.expired():
                raise
            raise ToolFailed(f"The tool {call.name} did not finish within {self._deadline:g} seconds.") from late

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
    """Put each part in place of the reference to it, and leave out titles: models pay by the word."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _inlined(parts[reference.rpartition("/")[2]], parts)
    is_struct = "properties" in schema and isinstance(schema.get("title"), str)
    return {key: _inlined(value, parts) for key, value in schema.items() if not (is_struct and key == "title")}
