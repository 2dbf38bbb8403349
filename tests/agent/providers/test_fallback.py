import pytest

from config import ProviderSettings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.fallback import REST, Candidate, ResilientProvider
from gateway.agent.providers.registry import ProviderRegistry
from gateway.agent.providers.retry import Retrying
from gateway.conversation import AssistantMessage, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.scripted import ScriptedProvider
from tests.agent.streaming import at_once, step
from tests.agent.wire import ANTHROPIC, OPENAI, serving

PROMPT = Prompt(system="", messages=(UserMessage(text="hello"),), model="a")
DONE = TokenUsage(input_tokens=1, output_tokens=1)
DOWN = ModelUnavailable("gone")


def candidate(name: str, *steps: list[Chunk | Exception]) -> tuple[Candidate, ScriptedProvider]:
    provider = ScriptedProvider(*steps)
    info = ModelInfo(name=f"p/{name}")
    return Candidate(info=info, provider=Retrying(provider, patience=0, sleep=at_once), model=name), provider


def unknown(_model: str) -> Candidate:
    raise AssertionError


async def said(lineup: ResilientProvider, prompt: Prompt = PROMPT) -> str:
    return "".join([chunk.text async for chunk in lineup.stream(prompt) if isinstance(chunk, TextDelta)])


@pytest.mark.parametrize("failure", [DOWN, ProviderBusy("busy")])
async def test_the_next_is_asked_under_its_own_name(failure: ProviderFailed) -> None:
    (first, _), (second, heard) = candidate("a", [failure]), candidate("b", [TextDelta(text="me"), DONE])
    assert await said(ResilientProvider(first, [second], find=unknown)) == "me"
    assert [prompt.model for prompt in heard.prompts] == ["b"]


@pytest.mark.parametrize("failure", [ContextTooLong("long"), ProviderFailed("declined")])
async def test_what_another_model_cannot_mend_is_not_tried_on_it(failure: ProviderFailed) -> None:
    (first, _), (second, heard) = candidate("a", [failure]), candidate("b", [DONE])
    with pytest.raises(type(failure)):
        await said(ResilientProvider(first, [second], find=unknown))
    assert heard.prompts == []


async def test_the_first_ones_failure_is_told() -> None:
    (first, _), (second, asked) = candidate("a", [ProviderBusy("busy")]), candidate("b", [DOWN])
    with pytest.raises(ProviderBusy, match="busy"):
        await said(ResilientProvider(first, [second], find=unknown))
    assert len(asked.prompts) == 1


async def test_the_next_goes_on_where_the_first_broke_off() -> None:
    (first, _), (second, heard) = (
        candidate("a", [TextDelta(text="The sky"), ProviderBusy("cut")]),
        candidate("b", [TextDelta(text=" is blue"), DONE]),
    )
    assert await said(ResilientProvider(first, [second], find=unknown)) == "The sky is blue"
    assert heard.prompts[0].messages[1] == AssistantMessage(text="The sky")


async def test_a_model_that_failed_rests_and_then_has_its_place_again() -> None:
    now = 0.0
    (first, asked), (second, _) = (
        candidate("a", [DOWN], [TextDelta(text="a"), DONE]),
        candidate("b", [TextDelta(text="b"), DONE]),
    )
    lineup = ResilientProvider(first, [second], find=unknown, clock=lambda: now)
    assert [await said(lineup), await said(lineup)] == ["b", "b"]
    assert len(asked.prompts) == 1
    assert lineup.skipped_models() == [first.name]
    now = REST + 1
    assert lineup.skipped_models() == []
    assert await said(lineup) == "a"


async def test_a_model_chosen_in_the_chat_comes_first_with_the_same_fallbacks() -> None:
    (own, _), (other, _), (chosen, _) = (
        candidate("a", [TextDelta(text="a"), DONE]),
        candidate("b", [TextDelta(text="b"), DONE]),
        candidate("c", [DOWN]),
    )
    lineup = ResilientProvider(own, [other], find=lambda _model: chosen)
    assert await said(lineup, Prompt(system="", messages=PROMPT.messages, model="p/c")) == "b"
    assert lineup.about("p/c").name == "p/c"
    assert lineup.about("a").name == "p/a"


async def test_a_conversation_that_grew_too_long_by_its_own_words_is_not_begun_anew() -> None:
    (first, _), (second, _) = (
        candidate("a", [TextDelta(text="Hm"), ProviderBusy("cut")]),
        candidate("b", [ContextTooLong("x")]),
    )
    with pytest.raises(ProviderFailed, match="broke off") as caught:
        await said(ResilientProvider(first, [second], find=unknown))
    assert not isinstance(caught.value, ContextTooLong)


async def test_another_api_steps_in_when_the_first_is_down() -> None:
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
