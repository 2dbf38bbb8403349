"""The offline provider: answers by a few fixed rules, for a first start without a language model."""

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field

from config import ProviderSettings
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta, new_call_id
from gateway.conversation import AssistantMessage, Json, Message, ToolCall, ToolMessage, UserMessage
from gateway.text import excerpt

_WORD_DELAY = 0.012
_MAX_DELTAS = 250
"""A longer answer comes in runs of words, so that its reader does not wait for the delays alone."""
_MAX_COMMAND_CHARS = 2_500
_QUOTE_CHARS = 300

_INTRODUCTION = """\
I'm Gatehouse's built-in **offline responder**: a few rules, *not* a language model. I need no API key and no network.

I can:

- tell the time: `what time is it`
- look at the workspace: `list files`, `read notes.txt`
- keep notes: `remember that the key is under the mat`, `what do you remember`
- remind you: `remind me in 5 minutes to turn off the oven`, `remind me every day at 9:00 to stretch`
- look back in this conversation: `what did I say first`, `what is my name`, `how many messages`

To connect a real model, run `gatehouse setup`. You can use a key of OpenAI, Anthropic or OpenRouter, or a local \
Ollama without a key. Until then, try everything else with me: channels, sessions, commands, tools."""

_HINT = (
    "I'm the offline responder, not a language model, so I can't say more. Send `help` to see what I can do, "
    "or connect a model with `gatehouse setup`."
)

_REPORTS = {
    "current_time": "It is **{output}**.",
    "list_files": "Here's what's in the workspace:\n\n{block}",
    "read_file": "Here it is:\n\n{block}",
    "remember": "{output} Ask me `what do you remember` at any time.",
    "remind": "{output}",
    "recall": "Here's what I find:\n\n{output}",
}


def open_offline(_settings: ProviderSettings, _name: str) -> Provider:
    return OfflineProvider()


class OfflineProvider:
    """Streams its answers word by word, as a model would."""

    def __init__(self, word_delay: float = _WORD_DELAY) -> None:
        self._word_delay = word_delay

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        reply = choose_reply(prompt.messages, offered={spec.name for spec in prompt.tools})
        if isinstance(reply, ToolRequest):
            yield ToolCall(id=new_call_id(), name=reply.tool, input=reply.input)
            return
        words = re.findall(r"\s*\S+\s*", reply)
        run = -(-len(words) // _MAX_DELTAS) or 1
        for start in range(0, len(words), run):
            if start:
                await asyncio.sleep(self._word_delay)
            yield TextDelta(text="".join(words[start : start + run]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    tool: str
    input: dict[str, Json] = field(default_factory=dict)


Reply = str | ToolRequest


def choose_reply(messages: Sequence[Message], *, offered: Collection[str]) -> Reply:
    """Answer the last message: with text, or by calling one of the `offered` tools."""
    last = messages[-1] if messages else None
    if isinstance(last, ToolMessage):
        steps = [message for message in messages if isinstance(message, AssistantMessage)]
        tools = {call.id: call.name for step in steps for call in step.tool_calls}
        return "\n\n".join(
            f"That didn't work: {outcome.output}"
            if outcome.is_error
            else _report(tools.get(outcome.id, "tool"), outcome.output)
            for outcome in last.outcomes
        )
    if not isinstance(last, UserMessage):
        return _INTRODUCTION
    text = last.text.strip()
    reply: Reply | None = None
    if len(last.text) <= _MAX_COMMAND_CHARS:
        found = ((intent, pattern.search(text)) for intent, pattern in _INTENTS)
        reply = next((_answer(intent, match, messages) for intent, match in found if match), None)
    if isinstance(reply, ToolRequest) and reply.tool not in offered:
        return f"I'd need the tool `{reply.tool}` for that, but this agent doesn't have it."
    if reply is not None:
        return reply
    if not text:
        return f"Your message has no text. {_HINT}"
    is_first = sum(isinstance(message, UserMessage) for message in messages) == 1
    return f"You said:\n\n{_quote(text)}\n\n{_INTRODUCTION if is_first else _HINT}"


def _report(tool: str, output: str) -> str:
    """Put the result of a tool into words."""
    longest = max((len(run) for run in re.findall(r"`{3,}", output)), default=2)
    fence = "`" * (longest + 1)  # Longer than any fence in the output.
    report = _REPORTS.get(tool, "`{tool}` says:\n\n{block}")
    return report.format(tool=tool, output=output, block=f"{fence}\n{output}\n{fence}")


def _answer(intent: str, match: re.Match[str], messages: Sequence[Message]) -> Reply:  # noqa: PLR0911 - one case for each intent.
    given = {name: value.strip() for name, value in match.groupdict().items() if value}
    said = [message.text for message in messages if isinstance(message, UserMessage)]
    answers = [message.text for message in messages if isinstance(message, AssistantMessage) and message.text]
    found = (_NAME.search(text[:_MAX_COMMAND_CHARS]) for text in reversed(said))
    name = next((each["name"] for each in found if each), None)
    match intent:
        case "tell_name":
            return f"You told me that your name is **{name}**." if name else "You haven't told me your name here."
        case "meet":
            return f"Nice to meet you, **{name}**. Ask me `what is my name` later in this conversation."
        case "greet":
            return f"Hello{f', **{name}**' if name else ''}! {_INTRODUCTION}"
        case "tell_time":
            return ToolRequest(tool="current_time")
        case "list_files" | "read_file":
            path = given.get("path", "").strip(_QUOTES)
            return ToolRequest(tool=intent, input={"path": path} if path else {})
        case "recall":
            query = given.get("query", "").strip(_QUOTES)
            return ToolRequest(tool="recall", input={"query": query} if query else {})
        case "remember":
            return ToolRequest(tool="remember", input={"text": given["text"]})
        case "remind":
            if "amount" in given:
                when = _UNITS[given["unit"].lower()].format(given["amount"])
            elif "daily" in given:
                hour, _, minute = given["daily"].partition(":")
                when = f"{int(minute)} {int(hour)} * * *"
            else:
                when = given["clock"]
            return ToolRequest(tool="remind", input={"text": given["text"], "when": when})
        case "first_message":
            return f"The first thing you said here is:\n\n{_quote(said[0])}"
        case "last_message":
            return f"Before that you said:\n\n{_quote(said[-2])}" if said[1:] else "You said nothing here before that."
        case "last_answer" if answers:  # It is Markdown already, so it is not escaped.
            return f"The last thing I said is:\n\n> {excerpt(answers[-1][: 4 * _QUOTE_CHARS], _QUOTE_CHARS)}"
        case "last_answer":
            return "I haven't said anything here yet."
        case "count_messages":
            return (
                f"Messages that I can see in this conversation: **{len(said)}** from you (including this one) "
                f"and **{len(answers)}** from me."
            )
        case _:
            return _INTRODUCTION


_INLINE_MARKUP = re.compile(r"[\\`*<~$]|&(?=#?\w)|(?<![^\W_])_|_(?![^\W_])")
_BRACKETS = str.maketrans({"[": "&#91;", "]": "&#93;"})
"""Escaped with a backslash, brackets would be those of a formula."""
_LEADING_MARKUP = re.compile(r"^(\d{0,9})([#>+=.)-])")


def _quote(text: str) -> str:
    """Quote a person's text literally: Markdown characters in it are escaped."""
    escaped = _INLINE_MARKUP.sub(r"\\\g<0>", excerpt(text[: 4 * _QUOTE_CHARS], _QUOTE_CHARS))
    return "> " + _LEADING_MARKUP.sub(r"\1\\\2", escaped).translate(_BRACKETS)


_NAME = re.compile(r"\b(?i:my name is|my name['\u2019]s) (?P<name>\w[\w'-]*(?: [A-Z][\w'-]*){0,3})")
_QUOTES = "\"'`“”"
_UNITS = {"second": "PT{}S", "minute": "PT{}M", "hour": "PT{}H", "day": "P{}D"}

_POLITE = r"^(?:please |can you |could you |would you )*"
_END = r"\s?[.?!]{0,3}$"
_PATH = r"(?P<path>\"[^\"]+\"|'[^']+'|`[^`]+`|\S*[^\s.?!])"
_CLOCK = r"\d{1,2}:\d{2}"
_WHEN = (
    rf"(?:in (?P<amount>\d{{1,5}}) (?P<unit>second|minute|hour|day)s?|every day at (?P<daily>{_CLOCK})"
    rf"|at (?P<clock>{_CLOCK}))"
)


def _intent(name: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return name, re.compile(pattern, re.IGNORECASE | re.DOTALL)


# The first pattern that matches counts.
_INTENTS = (
    _intent("tell_name", rf"^(?:what(?:['\u2019]s| is) my name|who am i|do you (?:know|remember) my name){_END}"),
    _intent(
        "tell_time",
        r"^(?:what time is it|what(?:['\u2019]s| is) the (?:current )?(?:time|date)|what day is it|current time)\b",
    ),
    _intent(
        "list_files",
        rf"{_POLITE}(?:list|show|ls)(?: me)?(?: all)?(?: the| my| your)? files(?: (?:in|of) {_PATH})?{_END}",
    ),
    _intent("list_files", rf"^(?:what|which) files (?:are there|do you have|can you see)(?: in {_PATH})?{_END}"),
    _intent("list_files", rf"^ls(?: {_PATH})?{_END}"),
    _intent("read_file", rf"{_POLITE}(?:read|open|cat)(?: me)?(?: the)?(?: file)? {_PATH}{_END}"),
    _intent("read_file", rf"{_POLITE}(?:show|print|display)(?: me)?(?: the)? file {_PATH}{_END}"),
    _intent("read_file", rf"{_POLITE}(?:show|print|display)(?: me)?(?: the)? (?P<path>\S+\.\w+){_END}"),
    _intent("recall", rf"^(?:what do|do) you remember(?: about)?(?: (?P<query>.+?))?{_END}"),
    _intent("recall", rf"{_POLITE}recall(?: (?P<query>.+?))?{_END}"),
    _intent("remember", rf"{_POLITE}(?:remember|note(?: down)?)(?: that|:)? (?P<text>.*\w.*)$"),
    _intent("remind", rf"{_POLITE}remind me {_WHEN},? (?:to |of |that |about )?(?P<text>\S.*)$"),
    _intent("remind", rf"{_POLITE}remind me (?:to |of |that |about )?(?P<text>\S.*?) {_WHEN}{_END}"),
    _intent("first_message", rf"^what (?:did i (?:say|write|ask|tell you)(?: you)?|was the) first(?: message)?{_END}"),
    _intent("first_message", rf"^what was my first (?:message|question){_END}"),
    _intent(
        "last_message",
        rf"^what did i (?:just )?(?:say|write|ask|tell you)(?: (?:last|before|before that|just now))?{_END}",
    ),
    _intent("last_message", rf"^what was my (?:last|previous) (?:message|question){_END}"),
    _intent("last_answer", rf"^what did you (?:just )?(?:say|answer)(?: (?:last|before|just now))?{_END}"),
    _intent("count_messages", r"^how many messages\b"),
    _intent("meet", r"\bmy name(?: is|['\u2019]s) \w"),
    _intent("greet", rf"^(?:hi|hello|hey|good (?:morning|evening|day))\b.{{0,20}}{_END}"),
    _intent("introduce", rf"^(?:help|who are you|what are you|what can you do|how do i add a model)\b.{{0,40}}{_END}"),
)
