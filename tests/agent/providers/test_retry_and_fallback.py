import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ProviderSettings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.registry import ProviderRegistry
from gateway.agent.providers.retry_and_fallback import (
    MAX_CUTS,
    PATIENCE_BEFORE_FALLBACK,
    SKIP_FAILED_MODEL,
    Candidate,
    ResilientProvider,
    StreamResumption,
)
from gateway.conversation import AssistantMessage, ToolCall, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.scripted import ScriptedProvider
from tests.agent.streaming import step
from tests.agent.wire import ANTHROPIC, OPENAI, serving

PROMPT = Prompt(system="", messages=(UserMessage(text="hello"),), model="a")
DONE = TokenUsage(input_tokens=1, output_tokens=1)
BUSY = ProviderBusy("busy")
DOWN = ModelUnavailable("gone")


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def candidate(name: str, *steps: list[Chunk | Exception], patience: float = 0) -> tuple[Candidate, ScriptedProvider]:
    provider = ScriptedProvider(*steps)
    info = ModelInfo(name=f"p/{name}")
    return Candidate(info=info, provider=provider, model=name, patience=patience), provider


def unknown(_model: str) -> Candidate:
    raise AssertionError


def retried(
    *steps: list[Chunk | Exception], patience: float = 60.0
) -> tuple[ResilientProvider, ScriptedProvider, Clock]:
    clock = Clock()
    own, provider = candidate("a", *steps, patience=patience)
    return ResilientProvider(own, find=unknown, sleep=clock.sleep, clock=lambda: clock.now), provider, clock


async def chunks_of(provider: ResilientProvider) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(PROMPT)]


async def text_of(provider: ResilientProvider, prompt: Prompt = PROMPT) -> str:
    return "".join([chunk.text async for chunk in provider.stream(prompt) if isinstance(chunk, TextDelta)])


async def test_delays_grow_from_retry_to_retry() -> None:
    provider, _, clock = retried([BUSY], [BUSY], [BUSY], [BUSY], [TextDelta(text="now"), DONE])
    assert await chunks_of(provider) == [TextDelta(text="now"), DONE]
    assert len(clock.slept) == 4
    assert clock.slept[3] > 4 * clock.slept[0] * 0.5
    assert all(delay <= 20 for delay in clock.slept)


async def test_waits_as_long_as_the_model_asked_and_a_little_more() -> None:
    provider, _, clock = retried([ProviderBusy("busy", retry_after=17)], [DONE])
    await chunks_of(provider)
    assert 17 < clock.slept[0] < 18


async def test_gives_up_when_patience_is_over() -> None:
    provider, inner, clock = retried([BUSY], patience=30.0)
    with pytest.raises(ProviderBusy, match="busy"):
        await chunks_of(provider)
    assert clock.now <= 30
    assert 4 <= len(inner.prompts) <= 10


async def test_does_not_wait_longer_than_its_patience() -> None:
    provider, inner, clock = retried([ProviderBusy("tomorrow", retry_after=86_400)])
    with pytest.raises(ProviderBusy, match="tomorrow"):
        await chunks_of(provider)
    assert (len(inner.prompts), clock.slept) == (1, [])


async def test_all_conversations_wait_when_a_model_is_rate_limited() -> None:
    provider, inner, clock = retried([ProviderBusy("busy", retry_after=40)], [DONE], patience=30.0)
    with pytest.raises(ProviderBusy):
        await chunks_of(provider)
    clock.now += 20
    await chunks_of(provider)
    assert 20 < clock.slept[0] < 21
    assert len(inner.prompts) == 2


async def test_agents_share_the_time_that_a_rate_limited_model_named() -> None:
    clock, shared = Clock(), dict[str, float]()
    own, _ = candidate("a", [ProviderBusy("busy", retry_after=40)], [DONE], patience=60.0)
    one, other = (
        ResilientProvider(own, find=unknown, retry_times=shared, sleep=clock.sleep, clock=lambda: clock.now)
        for _ in range(2)
    )
    await chunks_of(one)
    assert 40 < clock.slept[0] < 41
    clock.now = 10
    await chunks_of(other)
    assert 30 < clock.slept[1] < 31


async def test_patience_is_short_while_there_is_a_fallback() -> None:
    clock = Clock()
    (own, _), (other, _) = candidate("a", [BUSY], patience=60.0), candidate("b", [DONE])
    await chunks_of(ResilientProvider(own, [other], find=unknown, sleep=clock.sleep, clock=lambda: clock.now))
    assert 0 < clock.now <= PATIENCE_BEFORE_FALLBACK


@pytest.mark.parametrize("failure", [ModelUnavailable("key"), ContextTooLong("long"), ProviderFailed("no")])
async def test_a_permanent_failure_is_not_retried(failure: ProviderFailed) -> None:
    provider, inner, _ = retried([failure])
    with pytest.raises(type(failure)):
        await chunks_of(provider)
    assert len(inner.prompts) == 1


async def test_patience_starts_over_when_the_model_sends_something() -> None:
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
    provider, _, _ = retried(*steps, patience=8.0)
    assert await chunks_of(provider) == [TextDelta(text="a word"), TextDelta(text="!"), DONE]


async def test_a_model_that_never_finishes_is_given_up() -> None:
    endless: list[Chunk | Exception] = [TextDelta(text="and so on " * 20), BUSY]
    provider, inner, _ = retried(endless, patience=86_400)
    with pytest.raises(ProviderBusy):
        await chunks_of(provider)
    assert len(inner.prompts) == MAX_CUTS + 1


async def test_only_the_tool_call_of_the_retry_is_passed_on() -> None:
    call = ToolCall(id="1", name="look", input={})
    provider, _, _ = retried([TextDelta(text="Let me"), BUSY], [call, DONE])
    assert [chunk for chunk in await chunks_of(provider) if isinstance(chunk, ToolCall)] == [call]


async def test_a_second_cut_asks_to_continue_the_whole_text() -> None:
    """At the same model and at the next one: no request carries more than one continuation."""
    clock = Clock()
    (own, _), (other, asked) = (
        candidate("a", [TextDelta(text="The sky"), BUSY]),
        candidate("b", [TextDelta(text=" is blue " + "and " * 20), BUSY], [TextDelta(text="wide."), DONE], patience=60),
    )
    provider = ResilientProvider(own, [other], find=unknown, sleep=clock.sleep, clock=lambda: clock.now)
    assert await text_of(provider) == "The sky is blue " + "and " * 20 + "wide."
    assert [len(prompt.messages) for prompt in asked.prompts] == [3, 3]
    assert asked.prompts[1].messages[1] == AssistantMessage(text="The sky is blue " + "and " * 20)


@pytest.mark.parametrize("failure", [DOWN, BUSY])
async def test_a_fallback_is_asked_by_its_own_name(failure: ProviderFailed) -> None:
    (first, _), (second, asked) = candidate("a", [failure]), candidate("b", [TextDelta(text="me"), DONE])
    assert await text_of(ResilientProvider(first, [second], find=unknown)) == "me"
    assert [prompt.model for prompt in asked.prompts] == ["b"]


@pytest.mark.parametrize("failure", [ContextTooLong("long"), ProviderFailed("declined")])
async def test_a_failure_that_another_model_cannot_fix_reaches_no_fallback(failure: ProviderFailed) -> None:
    (first, _), (second, asked) = candidate("a", [failure]), candidate("b", [DONE])
    with pytest.raises(type(failure)):
        await text_of(ResilientProvider(first, [second], find=unknown))
    assert asked.prompts == []


async def test_the_failure_of_the_first_model_is_reported() -> None:
    (first, _), (second, asked) = candidate("a", [BUSY]), candidate("b", [DOWN])
    with pytest.raises(ProviderBusy, match="busy"):
        await text_of(ResilientProvider(first, [second], find=unknown))
    assert len(asked.prompts) == 1


async def test_a_fallback_continues_where_the_first_model_broke_off() -> None:
    (first, _), (second, asked) = (
        candidate("a", [TextDelta(text="The sky"), ProviderBusy("cut")]),
        candidate("b", [TextDelta(text=" is blue"), DONE]),
    )
    assert await text_of(ResilientProvider(first, [second], find=unknown)) == "The sky is blue"
    assert asked.prompts[0].messages[1] == AssistantMessage(text="The sky")


async def test_a_failed_model_is_skipped_for_a_while() -> None:
    now = 0.0
    (first, asked), (second, _) = (
        candidate("a", [DOWN], [TextDelta(text="a"), DONE]),
        candidate("b", [TextDelta(text="b"), DONE]),
    )
    provider = ResilientProvider(first, [second], find=unknown, clock=lambda: now)
    assert [await text_of(provider), await text_of(provider)] == ["b", "b"]
    assert len(asked.prompts) == 1
    assert provider.skipped_models() == [first.info.name]
    now = SKIP_FAILED_MODEL + 1
    assert provider.skipped_models() == []
    assert await text_of(provider) == "a"


async def test_a_model_chosen_in_the_chat_comes_first_with_the_same_fallbacks() -> None:
    (own, _), (other, _), (chosen, _) = (
        candidate("a", [TextDelta(text="a"), DONE]),
        candidate("b", [TextDelta(text="b"), DONE]),
        candidate("c", [DOWN]),
    )
    provider = ResilientProvider(own, [other, chosen], find=lambda _model: chosen)
    assert await text_of(provider, Prompt(system="", messages=PROMPT.messages, model="p/c")) == "b"
    assert provider.about("p/c").name == "p/c"
    assert provider.about("a").name == "p/a"


async def test_a_partly_shown_answer_that_became_too_long_is_not_started_over() -> None:
    (first, _), (second, _) = (
        candidate("a", [TextDelta(text="Hm"), ProviderBusy("cut")]),
        candidate("b", [ContextTooLong("x")]),
    )
    with pytest.raises(ProviderFailed, match="broke off") as caught:
        await text_of(ResilientProvider(first, [second], find=unknown))
    assert not isinstance(caught.value, ContextTooLong)


async def test_a_fallback_may_speak_another_api() -> None:
    async with (
        serving(OPENAI, OPENAI.refusal(503, "x")) as down,
        serving(ANTHROPIC, ANTHROPIC.answer("Here.")) as up,
    ):
        tables = {"first": down.table(), "second": up.table()}
        providers = ProviderRegistry({name: ProviderSettings.model_validate(table) for name, table in tables.items()})
        answer = await step(providers.for_agent("first", "gpt", ["second/claude"]))
        await providers.aclose()
    assert answer.text == "Here."
    assert answer.usage
    assert answer.usage.model == "second/claude"


def passed_on(answer: StreamResumption, texts: list[str]) -> str:
    chunks: list[Chunk] = [out for text in texts for out in answer.add(TextDelta(text=text))]
    chunks += answer.add(DONE)
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


@given(st.lists(st.text(min_size=1)), st.lists(st.text(min_size=1)))
def test_a_resumed_text_is_the_text_that_was_passed_on(before: list[str], after: list[str]) -> None:
    answer = StreamResumption()
    shown = passed_on(answer, before)
    assert shown == "".join(before)
    answer.request(PROMPT)
    rest = passed_on(answer, after)
    assert "".join(after).endswith(rest)
    assert answer.text == (shown if shown.strip() else "") + rest


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=10, max_size=200), st.data())
def test_repeated_last_words_are_left_out(said: str, data: st.DataObject) -> None:
    """Any part of the end may be repeated, in chunks of any size."""
    again = data.draw(st.integers(4, min(len(said), 80)))
    fresh = " 1 2 3"
    repeated = said[-again:] + fresh
    cut = data.draw(st.integers(0, len(repeated)))
    answer = StreamResumption()
    passed_on(answer, [said])
    answer.request(PROMPT)
    passed_on(answer, [repeated[:cut], repeated[cut:]])
    assert answer.text.endswith(fresh)
    assert len(answer.text) <= len(said) + len(fresh)


def test_the_same_request_is_repeated_when_no_text_has_arrived() -> None:
    answer = StreamResumption()
    assert answer.request(PROMPT) is PROMPT
    passed_on(answer, ["\n"])
    assert answer.request(PROMPT) is PROMPT


def test_after_a_cut_the_model_gets_its_own_words_to_continue() -> None:
    answer = StreamResumption()
    passed_on(answer, ["The sky"])
    first, cut, wish = answer.request(PROMPT).messages
    assert first == PROMPT.messages[0]
    assert cut == AssistantMessage(text="The sky")
    assert isinstance(wish, UserMessage)
    assert "Go on" in wish.text
