"""The prompts of a coding agent: the messages of a turn, after the conversation if it has no record of that."""

from collections.abc import Sequence

from gateway.agent.senders import with_sender
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from gateway.text import excerpt

MAX_CONTEXT_CHARS = 60_000
"""Of the conversation so far, the newest part."""
_MAX_MESSAGE_CHARS = 8_000
_MAX_OUTPUT_CHARS = 500

_CONTEXT = (
    "[Gatehouse: you have no record of this conversation, so here it is. Use it as context. Do not answer it again, "
    "and do not repeat what is done already.]\n\n"
)
_CONTEXT_END = "\n\n[Gatehouse: end of the conversation so far.]"
_CONTINUE = (
    "[Gatehouse: I was restarted while you worked on the message below. Look at what is done already, and go on from "
    "there. Do not repeat a step that has taken effect.]"
)


def build_prompt(
    messages: Sequence[Message],
    *,
    before: Sequence[Message],
    knows_history: bool,
    is_resumed: bool,
    decided: Sequence[tuple[ToolCall, bool]] = (),
    system: str = "",
    instructions: str = "",
) -> list[str]:
    """Return the texts of a prompt. The last one is what people have written.

    `messages` are those of the turn, with the steps that it has finished if it is resumed. `before` is the conversation
    before the turn. `decided` are the calls that a person has approved or denied since the program asked.
    """
    parts: list[str] = []
    if not knows_history:
        if system:
            parts.append(system)
        done = [message for message in messages if not isinstance(message, UserMessage)] if is_resumed else []
        if before or done:
            parts.append(_CONTEXT + render([*before, *(messages if is_resumed else ())]) + _CONTEXT_END)
    if is_resumed:
        parts.append(_CONTINUE)
        parts += [
            f"[Gatehouse: you had asked whether you may do this: {_describe(call)}. "
            f"The answer is {'yes' if is_approved else 'no'}.]"
            for call, is_approved in decided
        ]
    if instructions:
        parts.append(instructions)
    said = [with_sender(message) for message in messages if isinstance(message, UserMessage)]
    return [*parts, "\n\n".join(said)]


def render(messages: Sequence[Message]) -> str:
    """Return a conversation as plain text, without its oldest part if it is long."""
    lines: list[str] = []
    left = MAX_CONTEXT_CHARS
    for message in reversed(messages):
        text = _as_text(message)
        left -= len(text)
        if left < 0:
            lines.append("[The older part is left out.]")
            break
        lines.append(text)
    return "\n\n".join(reversed(lines))


def _as_text(message: Message) -> str:
    match message:
        case UserMessage():
            return f"Person: {_cut(with_sender(message), _MAX_MESSAGE_CHARS)}"
        case AssistantMessage():
            calls = [f"(You used {_describe(call)})" for call in message.tool_calls]
            said = [f"You: {_cut(message.text, _MAX_MESSAGE_CHARS)}"] if message.text else []
            return "\n".join([*said, *calls])
        case ToolMessage():
            return "\n".join(f"(Result: {_cut(each.output, _MAX_OUTPUT_CHARS)})" for each in message.outcomes)


def _describe(call: ToolCall) -> str:
    return f"{call.name}: {excerpt(call.title, 200)}" if call.title else call.name


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text) - limit:,} more characters]"
