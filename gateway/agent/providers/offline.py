"""What the offline provider says: rules over the conversation, and nothing that is not in it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from config import ProviderSettings
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta, new_call_id
from gateway.conversation import AssistantMessage, Json, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.text import excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A wish to call a tool."""

    tool: str
    input: dict[str, Json] = field(default_factory=dict)


Decision = str | ToolRequest
History = Sequence[Message]
Rule = Callable[[re.Match[str], History], Decision]

_MAX_COMMAND_CHARS = 2_500
_QUOTE_CHARS = 300


def choose_reply(messages: History, *, offered: Collection[str]) -> Decision:
    """Answer the last message: with text, or with a call of one of the tools that are `offered`."""
    last = messages[-1] if messages else None
    if isinstance(last, ToolMessage):
        return _report(messages, last.outcomes)
    decision = _answer(last.text, messages) if isinstance(last, UserMessage) else _INTRODUCTION
    if isinstance(decision, ToolRequest) and decision.tool not in offered:
        return f"For that I would need the tool `{decision.tool}`, which this agent has not been given."
    return decision


def _answer(text: str, messages: History) -> Decision:
    wish = text.strip() if len(text) <= _MAX_COMMAND_CHARS else ""
    for pattern, rule in _RULES:
        if match := pattern.search(wish):
            return rule(match, messages)
    return _echo(text, messages)


_INTRODUCTION = """\
I am Gatehouse's built-in **offline responder**: a handful of rules, *not* a language model. No key, no network.

What I can do:

- tell the time: `what time is it`
- look at the workspace: `list files`, `read notes.txt`
- keep notes: `remember that the key is under the mat`, `what do you remember`
- remind you: `remind me in 5 minutes to turn off the oven`, `remind me every day at 9:00 to stretch`
- look back in this conversation: `what did I say first`, `what is my name`, `how many messages`

Real answers need a language model. Whoever runs this Gatehouse can add one by four lines of configuration \
(`kind` and `api_key` or `base_url` of a provider, `provider` and `model` of the agent), with a key of OpenAI, \
Anthropic or OpenRouter, or without any by a local Ollama. Until then everything else can be tried with me: \
channels, sessions, commands, tools."""

_REMINDER = (
    "I am the offline responder, not a language model, so I cannot say anything clever about it. Say `help` to see \
what I can do."
)


def _introduce(_match: re.Match[str], _messages: History) -> Decision:
    return _INTRODUCTION


def _greet(_match: re.Match[str], messages: History) -> Decision:
    name = _find_name(messages)
    return f"Hello{f', **{name}**' if name else ''}! {_INTRODUCTION}"


def _echo(text: str, messages: History) -> str:
    if not text.strip():
        return f"Your message has no text. {_REMINDER}"
    if len(_said(messages)) > 1:
        return f"You said:\n\n{_quoted(text)}\n\n{_REMINDER}"
    return f"You said:\n\n{_quoted(text)}\n\n{_INTRODUCTION}"


def _tell_time(_match: re.Match[str], _messages: History) -> Decision:
    return ToolRequest(tool="current_time")


def _list_files(match: re.Match[str], _messages: History) -> Decision:
    path = _unquoted(match["path"])
    return ToolRequest(tool="list_files", input={"path": path} if path else {})


def _read_file(match: re.Match[str], _messages: History) -> Decision:
    return ToolRequest(tool="read_file", input={"path": _unquoted(match["path"])})


def _remember(match: re.Match[str], _messages: History) -> Decision:
    return ToolRequest(tool="remember", input={"text": match["text"].strip()})


def _recall(match: re.Match[str], _messages: History) -> Decision:
    query = _unquoted(match["query"])
    return ToolRequest(tool="recall", input={"query": query} if query else {})


_UNITS = {"second": "PT{}S", "minute": "PT{}M", "hour": "PT{}H", "day": "P{}D"}


def _remind(match: re.Match[str], _messages: History) -> Decision:
    said = {name: value for name, value in match.groupdict().items() if value}
    if "amount" in said:
        when = _UNITS[said["unit"].lower()].format(said["amount"])
    elif "daily" in said:
        hour, _, minute = said["daily"].partition(":")
        when = f"{int(minute)} {int(hour)} * * *"
    else:
        when = said["clock"]
    return ToolRequest(tool="remind", input={"text": said["text"].strip(), "when": when})


def _first_said(_match: re.Match[str], messages: History) -> Decision:
    return f"The first thing you said here is:\n\n{_quoted(_said(messages)[0])}"


def _last_said(_match: re.Match[str], messages: History) -> Decision:
    earlier = _said(messages)[:-1]
    if not earlier:
        return "You had said nothing here before that."
    return f"Before that you said:\n\n{_quoted(earlier[-1])}"


def _last_answered(_match: re.Match[str], messages: History) -> Decision:
    answers = _answers(messages)
    # My own words are Markdown already.
    return f"The last thing I said is:\n\n> {_shortened(answers[-1])}" if answers else "I have said nothing here yet."


def _count(_match: re.Match[str], messages: History) -> Decision:
    said, answers = len(_said(messages)), len(_answers(messages))
    return (
        f"In what I can see of this conversation there are **{said}** from you, this one included, and **{answers}** \
from me."
    )


def _meet(_match: re.Match[str], messages: History) -> Decision:
    return f"Nice to meet you, **{_find_name(messages)}**. Ask me `what is my name` later in this conversation."


def _tell_name(_match: re.Match[str], messages: History) -> Decision:
    name = _find_name(messages)
    return f"You told me that your name is **{name}**." if name else "You have not told me your name here."


_NAME = re.compile(r"\b(?i:my name is|my name['\u2019]s) (?P<name>\w[\w'-]*(?: [A-Z][\w'-]*){0,3})")


def _find_name(messages: History) -> str | None:
    """Look for the name that was given last."""
    for text in reversed(_said(messages)):
        if match := _NAME.search(text[:_MAX_COMMAND_CHARS]):
            return match["name"]
    return None


def _said(messages: History) -> list[str]:
    return [message.text for message in messages if isinstance(message, UserMessage)]


def _answers(messages: History) -> list[str]:
    return [message.text for message in messages if isinstance(message, AssistantMessage) and message.text]


_INLINE = re.compile(r"[\\`*\[\]<~]|&(?=#?\w)|(?<![^\W_])_|_(?![^\W_])")
_LEADING = re.compile(r"^(\d{0,9})([#>+=.)-])")


def _quoted(text: str) -> str:
    """Quote what a person wrote as it was written: what looks like Markdown in it is not meant as such."""
    escaped = _INLINE.sub(r"\\\g<0>", _shortened(text))
    return "> " + _LEADING.sub(r"\1\\\2", escaped)


def _shortened(text: str) -> str:
    return excerpt(text[: 4 * _QUOTE_CHARS], _QUOTE_CHARS)


def _unquoted(words: str | None) -> str:
    return (words or "").strip().strip("\"'`“”")


_POLITE = r"^(?:please |can you |could you |would you )*"
_END = r"\s?[.?!]{0,3}$"
_PATH = r"(?P<path>\"[^\"]+\"|'[^']+'|`[^`]+`|\S*[^\s.?!])"


_CLOCK = r"\d{1,2}:\d{2}"
_WHEN = (
    rf"(?:in (?P<amount>\d{{1,5}}) (?P<unit>second|minute|hour|day)s?|every day at (?P<daily>{_CLOCK})"
    rf"|at (?P<clock>{_CLOCK}))"
)


def _rule(pattern: str, rule: Rule) -> tuple[re.Pattern[str], Rule]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), rule


_RULES = (
    _rule(rf"^(?:what(?:['\u2019]s| is) my name|who am i|do you (?:know|remember) my name){_END}", _tell_name),
    _rule(
        r"^(?:what time is it|what(?:['\u2019]s| is) the (?:current )?(?:time|date)|what day is it|current time)\b",
        _tell_time,
    ),
    _rule(
        rf"{_POLITE}(?:list|show|ls)(?: me)?(?: all)?(?: the| my| your)? files(?: (?:in|of) {_PATH})?{_END}",
        _list_files,
    ),
    _rule(rf"^(?:what|which) files (?:are there|do you have|can you see)(?: in {_PATH})?{_END}", _list_files),
    _rule(rf"^ls(?: {_PATH})?{_END}", _list_files),
    _rule(rf"{_POLITE}(?:read|open|cat)(?: me)?(?: the)?(?: file)? {_PATH}{_END}", _read_file),
    _rule(rf"{_POLITE}(?:show|print|display)(?: me)?(?: the)? file {_PATH}{_END}", _read_file),
    _rule(rf"{_POLITE}(?:show|print|display)(?: me)?(?: the)? (?P<path>\S+\.\w+){_END}", _read_file),
    _rule(rf"^(?:what do|do) you remember(?: about)?(?: (?P<query>.+?))?{_END}", _recall),
    _rule(rf"{_POLITE}recall(?: (?P<query>.+?))?{_END}", _recall),
    _rule(rf"{_POLITE}(?:remember|note(?: down)?)(?: that|:)? (?P<text>.*\w.*)$", _remember),
    _rule(rf"{_POLITE}remind me {_WHEN},? (?:to |of |that |about )?(?P<text>\S.*)$", _remind),
    _rule(rf"{_POLITE}remind me (?:to |of |that |about )?(?P<text>\S.*?) {_WHEN}{_END}", _remind),
    _rule(rf"^what (?:did i (?:say|write|ask|tell you)(?: you)?|was the) first(?: message)?{_END}", _first_said),
    _rule(rf"^what was my first (?:message|question){_END}", _first_said),
    _rule(
        rf"^what did i (?:just )?(?:say|write|ask|tell you)(?: (?:last|before|before that|just now))?{_END}", _last_said
    ),
    _rule(rf"^what was my (?:last|previous) (?:message|question){_END}", _last_said),
    _rule(rf"^what did you (?:just )?(?:say|answer)(?: (?:last|before|just now))?{_END}", _last_answered),
    _rule(r"^how many messages\b", _count),
    _rule(r"\bmy name(?: is|['\u2019]s) \w", _meet),
    _rule(rf"^(?:hi|hello|hey|good (?:morning|evening|day))\b.{{0,20}}{_END}", _greet),
    _rule(rf"^(?:help|who are you|what are you|what can you do|how do i add a model)\b.{{0,40}}{_END}", _introduce),
)


def _report(messages: History, outcomes: Sequence[ToolOutcome]) -> str:
    """Put the outcomes of the calls before into words."""
    names = {call.id: call.name for step in messages if isinstance(step, AssistantMessage) for call in step.tool_calls}
    return "\n\n".join(_phrase(names.get(outcome.id, "tool"), outcome) for outcome in outcomes)


def _phrase(tool: str, outcome: ToolOutcome) -> str:
    if outcome.is_error:
        return f"That did not work: {outcome.output}"
    phrase = _PHRASES.get(tool, "`{tool}` says:\n\n{block}")
    return phrase.format(tool=tool, output=outcome.output, block=_block(outcome.output))


_PHRASES = {
    "current_time": "It is **{output}**.",
    "list_files": "This is in the workspace:\n\n{block}",
    "read_file": "Here it is:\n\n{block}",
    "remember": "{output} Ask me `what do you remember` at any time.",
    "remind": "{output}",
    "recall": "This is what I find in my notes:\n\n{output}",
}


def _block(text: str) -> str:
    """Fence `text` as code; the fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


_MAX_DELTAS = 250


class OfflineProvider:
    """Answers by rules, word by word, with `pace` seconds between two words."""

    def __init__(self, pace: float = 0.012) -> None:
        self._pace = pace

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        decision = choose_reply(prompt.messages, offered={spec.name for spec in prompt.tools})
        if isinstance(decision, ToolRequest):
            yield ToolCall(id=new_call_id(), name=decision.tool, input=decision.input)
            return
        for number, piece in enumerate(_pieces(decision)):
            if number:
                await asyncio.sleep(self._pace)
            yield TextDelta(text=piece)


def open_offline(_settings: ProviderSettings, _name: str) -> Provider:
    return OfflineProvider()


def _pieces(text: str) -> Iterator[str]:
    """Cut into words; into runs of words where there are so many that a reader would wait for the pace alone."""
    words = re.findall(r"\s*\S+\s*", text)
    run = -(-len(words) // _MAX_DELTAS) or 1
    for start in range(0, len(words), run):
        yield "".join(words[start : start + run])
