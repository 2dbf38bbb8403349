import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it.common.utils import escapeHtml

from gateway.agent.providers.offline import ToolRequest, choose_reply
from gateway.agent.toolbox import BUILT_IN
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.text.markdown import render_html

OFFERED = {tool.spec.name for tool in BUILT_IN}


def answer(*texts: str) -> str | ToolRequest:
    """Decide on a conversation in which the person and the agent take turns; the person begins and speaks last."""
    messages: list[Message] = []
    for number, text in enumerate(texts):
        messages.append(AssistantMessage(text=text) if number % 2 else UserMessage(text=text))
    return choose_reply(messages, offered=OFFERED)


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("what time is it", "current_time", {}),
        ("What time is it?", "current_time", {}),
        ("What's the time?", "current_time", {}),
        ("what\u2019s the date", "current_time", {}),
        ("list files", "list_files", {}),
        ("Please list the files.", "list_files", {}),
        ("show me my files", "list_files", {}),
        ("list files in docs/old", "list_files", {"path": "docs/old"}),
        ("What files are there?", "list_files", {}),
        ("ls", "list_files", {}),
        ("ls docs", "list_files", {"path": "docs"}),
        ("read notes.txt", "read_file", {"path": "notes.txt"}),
        ("Read notes.txt.", "read_file", {"path": "notes.txt"}),
        ("can you read the file `a b.txt`?", "read_file", {"path": "a b.txt"}),
        ("show me the file ../secret", "read_file", {"path": "../secret"}),
        ("show me README.md", "read_file", {"path": "README.md"}),
        ("cat /etc/passwd", "read_file", {"path": "/etc/passwd"}),
        ("remember that the key is under the mat.", "remember", {"text": "the key is under the mat."}),
        ("Remember: milk,\nbread", "remember", {"text": "milk,\nbread"}),
        ("note down my desk is 4b", "remember", {"text": "my desk is 4b"}),
        ("what do you remember?", "recall", {}),
        ("What do you remember about the key?", "recall", {"query": "the key"}),
        ("do you remember tea", "recall", {"query": "tea"}),
        ("recall", "recall", {}),
        ("recall the mat", "recall", {"query": "the mat"}),
        ("remind me in 5 minutes to call mum", "remind", {"text": "call mum", "when": "PT5M"}),
        ("Please remind me to call mum in 1 hour.", "remind", {"text": "call mum", "when": "PT1H"}),
        ("remind me at 18:00 to leave at 19:00", "remind", {"text": "leave at 19:00", "when": "18:00"}),
        ("Remind me every day at 9:05 to stretch", "remind", {"text": "stretch", "when": "5 9 * * *"}),
    ],
)
def test_a_simple_request_becomes_a_tool_call(text: str, tool: str, arguments: dict[str, str]) -> None:
    assert answer(text) == ToolRequest(tool=tool, input=dict(arguments))


@pytest.mark.parametrize(
    "text",
    [
        "I like to read a good book",
        "files are nice",
        "it is time to go",
        "I can't remember",
        "remember",
        "the list of files is long, what should I do about it?",
        "read",
        "",
        "   ",
        "remember that " + "x" * 10_000,
        "👩‍👩‍👧‍👦" * 50,
        "{output} %s {0}",
    ],
)
def test_any_other_text_is_answered_without_a_tool(text: str) -> None:
    said = answer(text)
    assert isinstance(said, str)
    assert "offline responder" in said
    assert "language model" in said


@pytest.mark.parametrize("text", ["help", "hi", "Hello!", "who are you?", "what can you do", "Tell me of Rome"])
def test_the_introduction_says_how_to_get_a_real_model(text: str) -> None:
    said = answer(text)
    assert isinstance(said, str)
    assert "**offline responder**" in said
    assert "*not* a language model" in said
    assert "Anthropic or OpenRouter" in said
    assert "Ollama" in said
    assert "run `gatehouse setup`" in said
    assert "README" not in said


def test_only_the_first_answer_has_the_whole_introduction() -> None:
    said = answer("Tell me of Rome", "...", "And of Carthage")
    assert isinstance(said, str)
    assert said.startswith("You said:\n\n> And of Carthage\n\n")
    assert "`help`" in said
    assert "Ollama" not in said


@pytest.mark.parametrize(
    "text",
    [
        "# hi",
        "1. one",
        "12) x",
        "- a",
        "+ a",
        "> a",
        "---",
        "===",
        "**b** _i_ __b__ *",
        "`c` ~~s~~",
        "<b> &amp; &#35;",
        "~~~",
        "[l](https://e.org) ![i](x)",
        "a\\*b",
        "snake_case 5 * 3",
        "\n# x\n\n    code",
        "[x]: https://e.org",
        "| a |",
    ],
)
def test_a_persons_text_is_quoted_literally(text: str) -> None:
    said = answer(text)
    assert isinstance(said, str)
    assert _shown(text) in render_html(said)


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=60))
def test_no_quoted_text_is_rendered_as_markdown(text: str) -> None:
    said = answer("Tell me of Rome", "...", f"xyz {text}", "...", "what was my last message")
    assert isinstance(said, str)
    assert _shown(f"xyz {text}") in render_html(said)


def _shown(text: str) -> str:
    return f"<blockquote>\n<p>{escapeHtml(' '.join(text.split()))}</p>\n</blockquote>"


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (("my name is Ada",), "**Ada**"),
        (("hi, my name is Ada Lovelace and I count", "...", "what is my name?"), "**Ada Lovelace**"),
        (("my name is Ada", "...", "My name is Grace", "...", "who am I"), "**Grace**"),
        (("my name is Ada", "...", "hello"), "Hello, **Ada**!"),
        (("what's my name",), "haven't told me"),
        (("I am told your name is Bob", "my name is Hal", "what is my name"), "haven't told me"),
        (("one", "...", "two", "...", "what did I say first?"), "> one"),
        (("one", "...", "two", "...", "what did I say last"), "> two"),
        (("one", "...", "What was my previous message?"), "> one"),
        (("what did I say first",), "> what did I say first"),
        (("what did I just say",), "nothing here before"),
        (("one", "two", "what did you say"), "> two"),
        (("what did you say",), "haven't said anything here yet"),
        (("one", "two", "how many messages are there"), "**2** from you (including this one) and **1** from me"),
    ],
)
def test_answers_come_from_this_conversation(texts: tuple[str, ...], part: str) -> None:
    said = answer(*texts)
    assert isinstance(said, str)
    assert part in said


def test_only_offered_tools_are_called() -> None:
    said = choose_reply([UserMessage(text="what time is it")], offered={"recall"})
    assert said == "I'd need the tool `current_time` for that, but this agent doesn't have it."


def reported(name: str, output: str, *, is_error: bool = False) -> str | ToolRequest:
    call = ToolCall(id="call_1", name=name, input={})
    messages: list[Message] = [
        UserMessage(text="please"),
        AssistantMessage(text="", tool_calls=(call,)),
        ToolMessage(outcomes=(ToolOutcome(id="call_1", output=output, is_error=is_error),)),
    ]
    return choose_reply(messages, offered=OFFERED)


@pytest.mark.parametrize(
    ("name", "output", "said"),
    [
        ("current_time", "noon", "It is **noon**."),
        ("list_files", "a.txt", "Here's what's in the workspace:\n\n```\na.txt\n```"),
        ("read_file", "a {b}\n````\nc", "Here it is:\n\n`````\na {b}\n````\nc\n`````"),
        ("remember", "Noted.", "Noted. Ask me `what do you remember` at any time."),
        ("recall", "- tea", "Here's what I find:\n\n- tea"),
        ("fetch", "x", "`fetch` says:\n\n```\nx\n```"),
    ],
)
def test_a_tool_result_is_put_into_words(name: str, output: str, said: str) -> None:
    assert reported(name, output) == said


def test_a_failed_tool_is_reported() -> None:
    assert reported("read_file", "There is no 'x'.", is_error=True) == "That didn't work: There is no 'x'."


def test_an_empty_conversation_gets_an_answer() -> None:
    assert isinstance(choose_reply([], offered=OFFERED), str)


def test_a_tool_result_is_never_read_as_a_request() -> None:
    assert isinstance(reported("read_file", "what time is it"), str)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text", ["recall " + "." * 2_400, "read " + "a." * 1_200, "please " * 350, "my name is " * 200]
)
def test_no_text_takes_long_to_match(text: str) -> None:
    answer(text)
