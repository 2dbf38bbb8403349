from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.retry import StreamResumption
from gateway.conversation import AssistantMessage, UserMessage

PROMPT = Prompt(system="", messages=(UserMessage(text="hello"),))


def passed_on(answer: StreamResumption, texts: list[str]) -> str:
    chunks: list[Chunk] = [out for text in texts for out in answer.take(TextDelta(text=text))]
    chunks += answer.take(TokenUsage(input_tokens=0, output_tokens=0))
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


@given(st.lists(st.text(min_size=1)), st.lists(st.text(min_size=1)))
def test_all_that_is_passed_on_is_what_was_said(before: list[str], after: list[str]) -> None:
    answer = StreamResumption()
    shown = passed_on(answer, before)
    assert shown == "".join(before)
    answer.prompt(PROMPT)
    rest = passed_on(answer, after)
    assert "".join(after).endswith(rest)
    assert answer.said == (shown if shown.strip() else "") + rest


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=10, max_size=200), st.data())
def test_the_last_words_are_not_said_twice(said: str, data: st.DataObject) -> None:
    """Whatever of the end is repeated, and however it is cut into chunks."""
    again = data.draw(st.integers(4, min(len(said), 80)))
    fresh = " 1 2 3"
    repeated = said[-again:] + fresh
    cut = data.draw(st.integers(0, len(repeated)))
    answer = StreamResumption()
    passed_on(answer, [said])
    answer.prompt(PROMPT)
    passed_on(answer, [repeated[:cut], repeated[cut:]])
    assert answer.said.endswith(fresh)
    assert len(answer.said) <= len(said) + len(fresh)


def test_before_anything_was_said_the_same_is_asked_again() -> None:
    answer = StreamResumption()
    assert answer.prompt(PROMPT) is PROMPT
    passed_on(answer, ["\n"])
    assert answer.prompt(PROMPT) is PROMPT


def test_after_a_cut_the_model_is_shown_its_own_words() -> None:
    answer = StreamResumption()
    passed_on(answer, ["The sky"])
    first, cut, wish = answer.prompt(PROMPT).messages
    assert first == PROMPT.messages[0]
    assert cut == AssistantMessage(text="The sky")
    assert isinstance(wish, UserMessage)
    assert "Go on" in wish.text
