from collections.abc import Awaitable, Callable, Sequence

import pytest

from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.retry import MAX_CUTS, Retrying
from gateway.conversation import ToolCall, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.scripted import ScriptedProvider

PROMPT = Prompt(system="", messages=(UserMessage(text="hello"),), model="m")
DONE = TokenUsage(input_tokens=1, output_tokens=1)
BUSY = ProviderBusy("busy")


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retrying(*steps: Sequence[Chunk | Exception], patience: float = 60.0) -> tuple[Retrying, ScriptedProvider, Clock]:
    clock = Clock()
    sleep: Callable[[float], Awaitable[None]] = clock.sleep
    provider = ScriptedProvider(*steps)
    return Retrying(provider, patience=patience, sleep=sleep, clock=lambda: clock.now), provider, clock


async def told(provider: Retrying, patience: float | None = None) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(PROMPT, patience=patience)]


async def test_waits_grow_from_try_to_try() -> None:
    provider, _, clock = retrying([BUSY], [BUSY], [BUSY], [BUSY], [TextDelta(text="now"), DONE])
    assert await told(provider) == [TextDelta(text="now"), DONE]
    assert len(clock.slept) == 4
    assert clock.slept[3] > 4 * clock.slept[0] * 0.5
    assert all(wait <= 20 for wait in clock.slept)


async def test_waits_as_long_as_the_model_asked_and_a_little_more() -> None:
    provider, _, clock = retrying([ProviderBusy("busy", retry_after=17)], [DONE])
    await told(provider)
    assert 17 < clock.slept[0] < 18


async def test_gives_up_when_patience_is_over() -> None:
    provider, inner, clock = retrying([BUSY], patience=30.0)
    with pytest.raises(ProviderBusy, match="busy"):
        await told(provider)
    assert clock.now <= 30
    assert 4 <= len(inner.prompts) <= 10


async def test_does_not_wait_for_what_is_beyond_its_patience() -> None:
    provider, inner, clock = retrying([ProviderBusy("tomorrow", retry_after=86_400)])
    with pytest.raises(ProviderBusy, match="tomorrow"):
        await told(provider)
    assert (len(inner.prompts), clock.slept) == (1, [])


async def test_what_one_conversation_was_asked_to_wait_others_wait_too() -> None:
    provider, inner, clock = retrying([ProviderBusy("busy", retry_after=40)], [DONE], patience=30.0)
    with pytest.raises(ProviderBusy):
        await told(provider)
    clock.now += 20
    await told(provider)
    assert 20 < clock.slept[0] < 21
    assert len(inner.prompts) == 2


async def test_less_patience_can_be_asked_for() -> None:
    provider, _, clock = retrying([BUSY])
    with pytest.raises(ProviderBusy):
        await told(provider, patience=2.0)
    assert clock.now <= 2


@pytest.mark.parametrize("failure", [ModelUnavailable("key"), ContextTooLong("long"), ProviderFailed("no")])
async def test_what_will_not_heal_is_not_tried_again(failure: ProviderFailed) -> None:
    provider, inner, _ = retrying([failure])
    with pytest.raises(type(failure)):
        await told(provider)
    assert len(inner.prompts) == 1


async def test_patience_begins_anew_when_the_model_has_said_something() -> None:
    cut: list[Chunk | Exception] = [TextDelta(text="a word"), BUSY]
    steps: list[list[Chunk | Exception]] = [
        [BUSY],
        [BUSY],
        [BUSY],
        cut,
        [BUSY],
        [BUSY],
        [BUSY],
        [TextDelta(text="!"), DONE],
    ]
    provider, _, _ = retrying(*steps, patience=8.0)
    assert await told(provider) == [TextDelta(text="a word"), TextDelta(text="!"), DONE]


async def test_a_model_that_never_comes_to_an_end_is_not_paid_for_ever() -> None:
    endless: list[Chunk | Exception] = [TextDelta(text="and so on " * 20), BUSY]
    provider, inner, _ = retrying(endless, patience=86_400)
    with pytest.raises(ProviderBusy):
        await told(provider)
    assert len(inner.prompts) == MAX_CUTS + 1


async def test_a_call_of_the_second_try_is_the_only_one() -> None:
    call = ToolCall(id="1", name="look", input={})
    provider, _, _ = retrying([TextDelta(text="Let me"), BUSY], [call, DONE])
    assert [chunk for chunk in await told(provider) if isinstance(chunk, ToolCall)] == [call]
