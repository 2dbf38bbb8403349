import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from gateway.agent.loop import run_agent
from gateway.agent.protocol import (
    Chunk,
    Done,
    Event,
    PlannedStep,
    PlanUpdated,
    Prompt,
    StepDone,
    TextDelta,
    TokenUsage,
    ToolFinished,
    ToolStarted,
)
from gateway.agent.toolbox import plan
from gateway.agent.tools import Tool, Toolbox, ToolContext, tool
from gateway.conversation import AssistantMessage, Json, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.errors import ProviderFailed
from tests.agent.scripted import ScriptedProvider


@tool
async def add(_context: ToolContext, first: int, second: int) -> str:
    """Add two numbers."""
    return str(first + second)


@tool
async def hang(_context: ToolContext) -> str:
    """Never end."""
    await asyncio.Event().wait()
    return ""


@tool(concurrent=True)
async def meet(_context: ToolContext, place: str, guests: int) -> str:
    """Wait until all guests are there: alone one would wait for ever."""
    here = _MEETINGS.setdefault(place, asyncio.Barrier(guests))
    return f"guest {await here.wait()}"


@tool(needs_approval=True)
async def launch(_context: ToolContext, what: str) -> str:
    """Do something that needs approval."""
    return f"launched {what}"


_MEETINGS: dict[str, asyncio.Barrier] = {}
BAD_SECOND = "The arguments of add are wrong: Expected `int`, got `str` - at `$.second`."
TOOLBOX = Toolbox([add, hang, meet, launch])
PROMPT = Prompt(system="Be brief.", messages=(UserMessage(text="Sum up."),), tools=TOOLBOX.specs(), model="m")


def calls(name: str, call_id: str = "call_1", **arguments: Json) -> ToolCall:
    return ToolCall(id=call_id, name=name, input=arguments)


def says(text: str) -> list[Chunk]:
    return [TextDelta(text=word) for word in text.split(" ")]


async def run(provider: ScriptedProvider, context: ToolContext, *, max_iterations: int = 10) -> list[Event]:
    async with aclosing(
        run_agent(PROMPT, provider=provider, toolbox=TOOLBOX, context=context, max_iterations=max_iterations)
    ) as events:
        return [event async for event in events]


async def test_an_answer_is_streamed_then_done(context: ToolContext) -> None:
    usage = TokenUsage(input_tokens=3, output_tokens=2)
    events = await run(ScriptedProvider([*says("Hi there"), usage]), context)
    assert events == [
        TextDelta(text="Hi"),
        TextDelta(text="there"),
        StepDone(text="Hithere", usage=usage),
        Done(text="Hithere", steps=1),
    ]


async def test_tools_run_in_order_and_the_model_sees_their_outcomes(context: ToolContext) -> None:
    one, two = calls("add", "call_1", first=1, second=2), calls("add", "call_2", first=3, second="x")
    provider = ScriptedProvider([*says("Wait."), one, two], says("Three."))
    events = await run(provider, context)
    good = ToolOutcome(id="call_1", output="3")
    bad = ToolOutcome(id="call_2", output=BAD_SECOND, is_error=True)
    assert events[1:6] == [
        StepDone(text="Wait.", tool_calls=(one, two)),
        ToolStarted(call=one),
        ToolFinished(call=one, outcome=good),
        ToolStarted(call=two),
        ToolFinished(call=two, outcome=bad),
    ]
    assert events[-1] == Done(text="Three.", steps=2)
    assert provider.prompts[1].messages == (
        UserMessage(text="Sum up."),
        AssistantMessage(text="Wait.", tool_calls=(one, two)),
        ToolMessage(outcomes=(good, bad)),
    )
    assert (provider.prompts[1].system, provider.prompts[1].model) == ("Be brief.", "m")


async def test_concurrent_tools_run_in_parallel_and_finish_in_call_order(context: ToolContext) -> None:
    step = [calls("meet", f"call_{number}", place="square", guests=3) for number in range(3)]
    async with asyncio.timeout(60):
        events = await run(ScriptedProvider(step, says("Met.")), context)
    tools = [event for event in events if isinstance(event, ToolStarted | ToolFinished)]
    assert [event.call.id for event in tools] == ["call_0", "call_1", "call_2"] * 2
    assert [isinstance(event, ToolFinished) for event in tools] == [False] * 3 + [True] * 3
    assert all(event.outcome.id == event.call.id for event in tools if isinstance(event, ToolFinished))


async def test_a_tool_that_must_run_alone_waits_for_those_before_it(context: ToolContext) -> None:
    step = [
        calls("meet", "call_0", place="inn", guests=2),
        calls("meet", "call_1", place="inn", guests=2),
        calls("add", "call_2", first=1, second=1),
        calls("add", "call_3", first=1, second=2),
        calls("meet", "call_4", place="home", guests=1),
    ]
    async with asyncio.timeout(60):
        events = await run(ScriptedProvider(step, says("Met.")), context)
    order = [
        (type(event).__name__, event.call.id[-1]) for event in events if isinstance(event, ToolStarted | ToolFinished)
    ]
    started, finished = "ToolStarted", "ToolFinished"
    assert order == [
        (started, "0"),
        (started, "1"),
        (finished, "0"),
        (finished, "1"),
        *((kind, number) for number in "234" for kind in (started, finished)),
    ]


async def test_no_tool_runs_before_the_caller_asks_for_the_next_event(context: ToolContext) -> None:
    """The caller commits the calls between `StepDone` and the next event; a tool must not have run by then."""
    ran: list[str] = []

    @tool
    async def effect(_context: ToolContext) -> str:
        """Leave a trace."""
        ran.append("effect")
        return "done"

    provider = ScriptedProvider([calls("effect")], says("Good."))
    async with aclosing(
        run_agent(PROMPT, provider=provider, toolbox=Toolbox([effect]), context=context, max_iterations=3)
    ) as events:
        assert isinstance(await anext(events), StepDone)
        await asyncio.sleep(0)
        assert isinstance(await anext(events), ToolStarted)
        await asyncio.sleep(0)
        assert ran == []
        assert isinstance(await anext(events), ToolFinished)
        await asyncio.sleep(0)
        assert len(provider.prompts) == 1
    assert ran == ["effect"]


@pytest.mark.parametrize("chunks", [[], says("\n"), [TokenUsage(input_tokens=1, output_tokens=0)]])
async def test_an_empty_answer_is_replaced_by_a_sentence(chunks: Sequence[Chunk], context: ToolContext) -> None:
    done = (await run(ScriptedProvider(chunks), context))[-1]
    assert isinstance(done, Done)
    assert "without an answer" in done.text


async def test_the_number_of_steps_is_limited(context: ToolContext) -> None:
    steps = [[calls("add", first=number, second=1)] for number in range(9)]
    done = (await run(ScriptedProvider(*steps), context, max_iterations=4))[-1]
    assert isinstance(done, Done)
    assert done.steps == 4
    assert "after 4 steps" in done.text


async def test_a_repeated_call_with_the_same_result_ends_the_turn(context: ToolContext) -> None:
    events = await run(ScriptedProvider([calls("add", first=1, second=1)]), context, max_iterations=200)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.steps == 3
    assert "`add`" in done.text


async def test_different_calls_do_not_end_the_turn(context: ToolContext) -> None:
    steps = [[calls("add", first=number, second=1)] for number in range(8)]
    done = (await run(ScriptedProvider(*steps, says("Fine.")), context, max_iterations=20))[-1]
    assert done == Done(text="Fine.", steps=9)


@pytest.mark.parametrize("length", [2, 3])
async def test_a_repeated_cycle_of_calls_ends_the_turn(length: int, context: ToolContext) -> None:
    steps = [[calls("add" if number % length else "lost", first=number % length, second=1)] for number in range(100)]
    done = (await run(ScriptedProvider(*steps), context, max_iterations=100))[-1]
    assert isinstance(done, Done)
    assert done.steps == 3 * length
    assert "`lost` and `add`" in done.text


async def test_a_cycle_whose_results_change_does_not_end_the_turn(context: ToolContext) -> None:
    steps = [[calls("add", first=0, second=number if number % 2 else -1)] for number in range(12)]
    done = (await run(ScriptedProvider(*steps, says("Fine.")), context, max_iterations=20))[-1]
    assert done == Done(text="Fine.", steps=13)


async def test_a_text_over_the_limit_ends_the_turn(context: ToolContext) -> None:
    provider = ScriptedProvider([TextDelta(text="x" * 65_536)] * 17)
    with pytest.raises(ProviderFailed, match="became too long"):
        await run(provider, context)
    assert provider.is_closed


def _nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "chunks",
    [
        [calls("add", first="x" * 5_000_000)],
        [calls("add", first=["x" * 65_536]) for _ in range(5)],
        [calls("add", first=_nested(100_000))],
    ],
    ids=["long", "many", "deep"],
)
async def test_oversized_arguments_end_the_turn(chunks: list[Chunk], context: ToolContext) -> None:
    with pytest.raises(ProviderFailed, match="too much data"):
        await run(ScriptedProvider(chunks), context)


async def test_each_call_of_the_last_step_of_a_loop_has_a_result(context: ToolContext) -> None:
    step = [calls("add", f"call_{number}", first=1, second=1) for number in range(5)]
    events = await run(ScriptedProvider(step), context)
    assert sum(isinstance(event, ToolFinished) for event in events) == 5
    assert isinstance(events[-1], Done)


async def test_missing_and_repeated_call_ids_are_replaced(context: ToolContext) -> None:
    step = [
        calls("add", "", first=1, second=1),
        calls("add", "a", first=1, second=2),
        calls("add", "a", first=1, second=3),
    ]
    events = await run(ScriptedProvider(step, says("Good.")), context)
    ids = [event.call.id for event in events if isinstance(event, ToolStarted)]
    assert len(set(ids)) == 3
    assert all(ids)


async def test_model_output_is_made_valid_unicode(context: ToolContext) -> None:
    broken = calls("add", "x\ud800", first={"a\0": ["\ud800", None]})
    events = await run(ScriptedProvider([TextDelta(text="a\ud800"), broken], says("Good.")), context)
    step = events[1]
    assert isinstance(step, StepDone)
    assert step.text == "a\ufffd"
    assert step.tool_calls[0].id == "x\ufffd"
    assert step.tool_calls[0].input == {"first": {"a\ufffd": ["\ufffd", None]}}


async def test_a_failing_provider_ends_the_turn_and_is_closed(context: ToolContext) -> None:
    provider = ScriptedProvider([*says("Half an"), ProviderFailed("The model is not reachable.")])
    with pytest.raises(ProviderFailed, match="not reachable"):
        await run(provider, context)
    assert provider.is_closed


async def test_closing_the_loop_during_a_stream_closes_the_provider(context: ToolContext) -> None:
    provider = ScriptedProvider(says("one two three"))
    async with aclosing(
        run_agent(PROMPT, provider=provider, toolbox=TOOLBOX, context=context, max_iterations=1)
    ) as events:
        assert await anext(events) == TextDelta(text="one")
    assert provider.is_closed


async def test_cancelling_the_loop_during_a_tool_leaves_nothing_running(context: ToolContext) -> None:
    started = asyncio.Event()

    async def turn() -> None:
        async with aclosing(
            run_agent(
                PROMPT, provider=ScriptedProvider([calls("hang")]), toolbox=TOOLBOX, context=context, max_iterations=1
            )
        ) as events:
            async for event in events:
                if isinstance(event, ToolStarted):
                    started.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(turn(), name="turn")
        await started.wait()
        running.cancel()
    assert running.cancelled()


async def test_all_approvals_of_a_step_come_before_its_first_tool_runs(context: ToolContext) -> None:
    asked: list[str] = []

    async def approve(call: ToolCall) -> str | None:
        asked.append(call.id)
        return "No." if call.id == "c3" else None

    step = [calls("add", "c1", first=1, second=2), calls("launch", "c2", what="a"), calls("launch", "c3", what="b")]
    provider = ScriptedProvider(step, says("Done."))
    started: list[str] = []
    finished: list[ToolOutcome] = []
    async with aclosing(
        run_agent(PROMPT, provider=provider, toolbox=TOOLBOX, context=context, max_iterations=3, approve=approve)
    ) as events:
        async for event in events:
            if isinstance(event, ToolStarted):
                assert asked == ["c2", "c3"]
                started.append(event.call.id)
            elif isinstance(event, ToolFinished):
                finished.append(event.outcome)
    assert started == ["c1", "c2"]
    assert finished == [
        ToolOutcome(id="c1", output="3"),
        ToolOutcome(id="c2", output="launched a"),
        ToolOutcome(id="c3", output="No.", is_error=True),
    ]


async def test_an_invalid_call_needs_no_approval(context: ToolContext) -> None:
    asked: list[str] = []

    async def approve(call: ToolCall) -> str | None:
        asked.append(call.id)
        return None

    broken = ToolCall(id="c1", name="launch", input={}, fault="The arguments were cut off.")
    provider = ScriptedProvider([broken], says("Done."))
    events = run_agent(PROMPT, provider=provider, toolbox=TOOLBOX, context=context, max_iterations=3, approve=approve)
    outcomes = [event.outcome async for event in events if isinstance(event, ToolFinished)]
    assert asked == []
    assert outcomes == [ToolOutcome(id="c1", output="The arguments were cut off.", is_error=True)]


async def test_a_tool_added_during_an_approval_does_not_run_without_one(context: ToolContext) -> None:
    """The tools of a server are not known while it is being started."""
    come: list[Tool] = []

    async def approve(call: ToolCall) -> str | None:
        assert call.id == "c1"
        come.append(replace(add, needs_approval=True))
        return None

    toolbox = Toolbox([launch], more=lambda: come)
    provider = ScriptedProvider([calls("launch", "c1", what="a"), calls("add", "c2", first=1, second=2)], says("Done."))
    events = run_agent(PROMPT, provider=provider, toolbox=toolbox, context=context, max_iterations=3, approve=approve)
    outcomes = [event.outcome async for event in events if isinstance(event, ToolFinished)]
    assert [outcome.is_error for outcome in outcomes] == [False, True]
    assert outcomes[1].output == "There is no tool 'add'. There are: launch."


async def test_a_plan_update_follows_the_call_that_made_it(context: ToolContext) -> None:
    steps: list[Json] = [{"content": "Look", "status": "completed"}, {"content": "Leap"}]
    toolbox = Toolbox([plan])
    provider = ScriptedProvider([calls("plan", steps=steps), calls("plan", "call_2", steps=[{}])], says("Done."))
    async with aclosing(
        run_agent(PROMPT, provider=provider, toolbox=toolbox, context=context, max_iterations=3)
    ) as events:
        told = [event for event in [each async for each in events] if isinstance(event, ToolFinished | PlanUpdated)]
    assert [type(event) for event in told] == [ToolFinished, PlanUpdated, ToolFinished]
    assert told[1] == PlanUpdated(
        steps=(PlannedStep(content="Look", status="completed"), PlannedStep(content="Leap", status="pending"))
    )


async def test_a_tool_that_needs_approval_does_not_run_without_a_person(context: ToolContext) -> None:
    events = await run(ScriptedProvider([calls("launch", what="it")], says("Done.")), context)
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert finished.outcome.is_error
    assert "no one can be asked" in finished.outcome.output
    assert not any(isinstance(event, ToolStarted) for event in events)


async def test_new_messages_are_added_between_steps_but_not_after_the_last(context: ToolContext) -> None:
    said = [[UserMessage(text="Make it three.")], [UserMessage(text="Too late.")]]

    async def new_messages() -> Sequence[UserMessage]:
        return said.pop(0)

    provider = ScriptedProvider([calls("add", first=1, second=2)], says("Done."))
    async with aclosing(
        run_agent(
            PROMPT, provider=provider, toolbox=TOOLBOX, context=context, max_iterations=3, new_messages=new_messages
        )
    ) as events:
        _ = [event async for event in events]
    assert [type(message) for message in provider.prompts[1].messages] == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        UserMessage,
    ]
    assert len(said) == 1
