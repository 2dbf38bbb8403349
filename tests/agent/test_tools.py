import asyncio
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, structs
from structlog.testing import capture_logs

from gateway.agent.tools import Tool, Toolbox, ToolContext, ToolFailed, tool
from gateway.conversation import Json, ToolCall


class Place(msgspec.Struct):
    city: str
    title: str = ""


@tool
async def weather(
    context: ToolContext,
    place: Place,
    unit: Annotated[Literal["c", "f"], Meta(description="Celsius or Fahrenheit.")] = "c",
    days: Annotated[int, Meta(ge=1, description="How far to look ahead.")] = 1,
) -> str:
    """Tell the weather.

    It is always fine.
    """
    return f"{place.city}: fine, {days} day(s), {unit}, {context.now():%Y}"


@tool
async def refusing(context: ToolContext) -> str:
    """Fail in an expected way."""
    raise ToolFailed(f"There is nothing in {context.workspace.name}.")


@tool
async def crashing(_context: ToolContext) -> str:
    """Fail in an unexpected way."""
    raise RuntimeError("secret detail")


@tool
async def hanging(_context: ToolContext) -> str:
    """Never end."""
    await asyncio.Event().wait()
    return ""


@tool
async def impatient(_context: ToolContext) -> str:
    """Give up by itself."""
    raise TimeoutError


@tool
async def chatty(_context: ToolContext, length: int) -> str:
    """Say much, some of it broken."""
    return "\ud800\0" + "x" * length


ALL: tuple[Tool, ...] = (weather, refusing, crashing, hanging, impatient, chatty)


def call(name: str, **arguments: Json) -> ToolCall:
    return ToolCall(id="call_1", name=name, input=arguments)


def test_a_tool_is_described_by_its_signature() -> None:
    assert weather.spec.name == "weather"
    assert weather.spec.description == "Tell the weather.\n\nIt is always fine."
    assert weather.spec.schema == {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "title": {"type": "string"}},
                "required": ["city"],
            },
            "unit": {"enum": ["c", "f"], "description": "Celsius or Fahrenheit."},
            "days": {"type": "integer", "minimum": 1, "description": "How far to look ahead."},
        },
        "required": ["place"],
    }


def test_a_tool_without_arguments_has_an_empty_object_as_its_schema() -> None:
    assert refusing.spec.schema == {"type": "object", "properties": {}}


async def test_arguments_are_converted_and_defaults_filled_in(context: ToolContext) -> None:
    outcome = await Toolbox(ALL).run(call("weather", place={"city": "Lisbon"}), context)
    assert outcome.output == "Lisbon: fine, 1 day(s), c, 2026"
    assert (outcome.id, outcome.is_error) == ("call_1", False)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "place"),
        ({"place": {"city": 1}}, "city"),
        ({"place": {"city": "x"}, "days": "two"}, "days"),
        ({"place": {"city": "x"}, "days": 0}, "days"),
        ({"place": {"city": "x"}, "unit": "k"}, "unit"),
        ({"place": {"city": "x"}, "color": "red"}, "color"),
        ({"place": {"city": "x"}, "context": {}}, "context"),
    ],
)
async def test_a_wrong_argument_is_named_to_the_model(
    arguments: dict[str, Json], named: str, context: ToolContext
) -> None:
    outcome = await Toolbox(ALL).run(call("weather", **arguments), context)
    assert outcome.is_error
    assert named in outcome.output


async def test_an_unknown_tool_is_answered_with_the_known_ones(context: ToolContext) -> None:
    outcome = await Toolbox([weather, refusing]).run(call("rm"), context)
    assert outcome.is_error
    assert "'rm'" in outcome.output
    assert "weather, refusing" in outcome.output


async def test_a_call_with_a_fault_does_not_run(context: ToolContext) -> None:
    outcome = await Toolbox([weather]).run(structs.replace(call("weather"), fault="Send it again."), context)
    assert (outcome.is_error, outcome.output) == (True, "Send it again.")


async def test_the_text_of_a_tool_failure_reaches_the_model(context: ToolContext) -> None:
    outcome = await Toolbox(ALL).run(call("refusing"), context)
    assert (outcome.output, outcome.is_error) == ("There is nothing in workspace.", True)


@pytest.mark.parametrize("name", ["crashing", "impatient"])
async def test_a_bug_is_logged_and_its_details_are_kept_from_the_model(name: str, context: ToolContext) -> None:
    with capture_logs() as logs:
        outcome = await Toolbox(ALL).run(call(name), context)
    assert outcome.is_error
    assert "secret" not in outcome.output
    assert [(entry["event"], entry["tool"]) for entry in logs] == [("tool_crashed", name)]


async def test_a_hanging_tool_is_stopped_at_its_deadline(context: ToolContext) -> None:
    outcome = await Toolbox(ALL, deadline=0.01).run(call("hanging"), context)
    assert (outcome.output, outcome.is_error) == ("The tool hanging did not finish within 0.01 seconds.", True)


async def test_cancelling_a_call_is_not_an_outcome(context: ToolContext) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(Toolbox(ALL).run(call("hanging"), context), name="running")
        await asyncio.sleep(0)
        running.cancel()
    assert running.cancelled()


async def test_output_is_limited_and_made_valid_unicode(context: ToolContext) -> None:
    outcome = await Toolbox(ALL).run(call("chatty", length=60_000), context)
    assert outcome.output.startswith("\ufffd\ufffdxxx")
    assert outcome.output.endswith("[Cut: only the first 50000 characters are shown.]")
    assert len(outcome.output) < 50_100


@tool(concurrent=True)
async def looking(_context: ToolContext) -> str:
    """Look."""
    return "seen"


@tool(concurrent=True, needs_approval=True)
async def asking(_context: ToolContext) -> str:
    """Look, after an approval."""
    return "seen"


def test_calls_are_divided_into_batches_that_may_run_in_parallel() -> None:
    box = Toolbox([*ALL, looking, asking])
    names = [*["looking"] * 9, "asking", "refusing", "nowhere", "looking", "looking"]
    cut = [[each.name for each in batch] for batch in box.batches([call(name) for name in names])]
    assert cut == [["looking"] * 8, ["looking"], ["asking"], ["refusing"], ["nowhere"], ["looking"] * 2]
    assert [box.needs_approval(call(name)) for name in ("looking", "asking", "nowhere")] == [False, True, False]


async def test_a_tool_may_have_its_own_deadline(context: ToolContext) -> None:
    box = Toolbox([replace(hanging, deadline=0.01)], deadline=3600)
    async with asyncio.timeout(60):
        outcome = await box.run(call("hanging"), context)
    assert outcome.output == "The tool hanging did not finish within 0.01 seconds."
