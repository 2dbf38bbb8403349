"""The messages and tools of a request of OpenAI's API as our own values. Pure."""

import base64
import binascii
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.agent.protocol import ToolSpec
from gateway.conversation import (
    AssistantMessage,
    Json,
    Message,
    Picture,
    ToolCall,
    ToolMessage,
    ToolOutcome,
    UserMessage,
)
from gateway.errors import Refused
from gateway.files.pictures import MAX_PICTURES, MAX_TOTAL_BYTES, check_picture
from gateway.http.responses import HttpError
from gateway.openai_door.errors import refusal
from gateway.openai_door.types import (
    ChatMessage,
    ChatRequest,
    Content,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    ImageUrl,
    InputItem,
    ResponseRequest,
)
from gateway.text import clean
from gateway.text.plain import in_bytes

MAX_TOOLS = 128
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:[^;,]*;base64,", re.IGNORECASE)
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode  # Any: JSON of a shape that only the tool knows.
_EMPTY_SCHEMA: dict[str, Json] = {"type": "object", "properties": {}}


class ReceivedMessages(Struct, frozen=True, kw_only=True):
    """The conversation in a request. `instructions` are its system and developer messages."""

    instructions: str
    messages: tuple[Message, ...]

    @property
    def uses_tools(self) -> bool:
        """Whether the client has run tools itself."""
        return any(isinstance(each, ToolMessage) for each in self.messages)


def chat_messages(messages: Sequence[ChatMessage]) -> ReceivedMessages:
    """Convert the messages of a chat completion. Raises `HttpError` for what the door does not support."""
    received = _Collector()
    for number, message in enumerate(messages):
        at = f"messages[{number}]"
        match message.role:
            case "system" | "developer":
                received.instructions.append(_text_of(message.content, f"{at}.content"))
            case "user":
                received.add_user(message.content, f"{at}.content")
            case "assistant":
                calls = [_tool_call(call.id, call.function, at) for call in message.tool_calls or ()]
                if message.function_call is not None:
                    calls.append(_tool_call(f"function_{number}", message.function_call, at))
                text = _text_of(message.content, f"{at}.content") or message.refusal or ""
                received.add_assistant(text, calls, at)
            case "tool":
                received.add_outcome(message.tool_call_id or "", message.content, at)
            case "function":
                received.add_outcome(received.call_named(message.name or ""), message.content, at)
            case _:
                raise refusal(f"The role `{clean(message.role)}` is not known.", param=f"{at}.role")
    return received.result("messages")


def input_messages(request: ResponseRequest) -> ReceivedMessages:
    """Convert the input of a response, as `chat_messages` does."""
    received = _Collector()
    if request.instructions:
        received.instructions.append(request.instructions)
    items = [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    for number, item in enumerate(items):
        at = f"input[{number}]"
        match item.type, item.role:
            case "message", "system" | "developer":
                received.instructions.append(_text_of(item.content, f"{at}.content"))
            case "message", "user":
                received.add_user(item.content, f"{at}.content")
            case "message", "assistant":
                received.add_assistant(_text_of(item.content, f"{at}.content"), [], at)
            case "message", _:
                raise refusal("A message needs a `role`: user, assistant, system or developer.", param=f"{at}.role")
            case "function_call", _:
                function = FunctionCall(name=item.name or "", arguments=item.arguments or "")
                received.add_call(_tool_call(item.call_id or "", function, at), at)
            case "function_call_output", _:
                received.add_outcome(item.call_id or "", item.output, at)
            case _:
                raise refusal(
                    f"Input items of the type `{clean(item.type)}` are not supported here. "
                    "Send messages, function calls and their outputs.",
                    param=f"{at}.type",
                )
    return received.result("input")


class _Collector:
    """Collects messages in order. The outcomes of tool calls follow their calls, one for each."""

    def __init__(self) -> None:
        self.instructions: list[str] = []
        self._messages: list[Message] = []
        self._outcomes: dict[str, ToolOutcome] = {}
        """The outcomes of the calls in the last message."""
        self._pictures = 0
        self._picture_bytes = 0

    @property
    def _open_calls(self) -> tuple[ToolCall, ...]:
        last = self._messages[-1] if self._messages else None
        return last.tool_calls if isinstance(last, AssistantMessage) else ()

    def call_named(self, name: str) -> str:
        """Return the id of the open call of a function, or an empty string."""
        return next((call.id for call in self._open_calls if call.name == name), "")

    def add_user(self, content: Content, at: str) -> None:
        self._close_calls(at)
        texts, pictures = [], []
        for part, where in _parts(content, at):
            if part.type in {"image_url", "input_image"}:
                pictures.append(self._picture(part, f"{where}.image_url"))
            else:
                texts.append(_part_text(part, where))
        text = "\n\n".join(filter(None, texts))
        if not text.strip() and not pictures:
            raise refusal("This message is empty. Send a text or an image.", param=at)
        self._messages.append(UserMessage(text=clean(text), pictures=tuple(pictures)))

    def add_assistant(self, text: str, calls: Sequence[ToolCall], at: str) -> None:
        self._close_calls(at)
        if len({call.id for call in calls}) < len(calls):
            raise refusal("Two tool calls have the same id.", param=f"{at}.tool_calls")
        self._messages.append(AssistantMessage(text=clean(text), tool_calls=tuple(calls)))

    def add_call(self, call: ToolCall, at: str) -> None:
        """Add a call to the step before, or begin a step with it."""
        if self._outcomes:
            self._close_calls(at)
        if call.id in {each.id for each in self._open_calls}:
            raise refusal("Two function calls have the same `call_id`.", param=f"{at}.call_id")
        last = self._messages[-1] if self._messages else None
        if isinstance(last, AssistantMessage):
            self._messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
        else:
            self._messages.append(AssistantMessage(text="", tool_calls=(call,)))

    def add_outcome(self, call_id: str, content: Content, at: str) -> None:
        if call_id not in {call.id for call in self._open_calls}:
            raise refusal("This result of a tool belongs to no tool call in the message before it.", param=at)
        self._outcomes[call_id] = ToolOutcome(id=call_id, output=clean(_text_of(content, at)))

    def _close_calls(self, at: str) -> None:
        calls = self._open_calls
        if missing := [call.id for call in calls if call.id not in self._outcomes]:
            raise refusal(f"The tool call `{missing[0]}` has no result. Send one for each call.", param=at)
        if calls:
            self._messages.append(ToolMessage(outcomes=tuple(self._outcomes[call.id] for call in calls)))
            self._outcomes = {}

    def _picture(self, part: ContentPart, at: str) -> Picture:
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url or ""
        found = _DATA_URL.match(url)
        if found is None:
            raise refusal("Images are taken as `data:` URLs in base64 only. Download this one, and embed it.", param=at)
        try:
            data = base64.b64decode(url[found.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise refusal("The image is not valid base64.", param=at) from None
        try:
            kind = check_picture(data)
        except Refused as reason:
            raise refusal(f"The image can't be used: {reason}.", param=at) from reason
        self._pictures += 1
        self._picture_bytes += len(data)
        if self._pictures > MAX_PICTURES or self._picture_bytes > MAX_TOTAL_BYTES:
            limit = f"{MAX_PICTURES} images with {in_bytes(MAX_TOTAL_BYTES)} together"
            raise refusal(f"A request may have {limit}.", param=at)
        # The name tells pictures apart: `history_rule` compares them by it.
        name = f"image-{sha256(data).hexdigest()[:12]}.{kind.partition('/')[2]}"
        return Picture(name=name, file="", media_type=kind, data=data)

    def result(self, param: str) -> ReceivedMessages:
        self._close_calls(param)
        if not self._messages:
            raise refusal("There is no message. Send at least one with the role `user`.", param=param)
        instructions = "\n\n".join(filter(None, self.instructions))
        return ReceivedMessages(instructions=clean(instructions), messages=tuple(self._messages))


def _parts(content: Content, at: str) -> list[tuple[ContentPart, str]]:
    if isinstance(content, list):
        return [(part, f"{at}[{number}]") for number, part in enumerate(content)]
    return [(ContentPart(type="text", text=content or ""), at)]


def _text_of(content: Content, at: str) -> str:
    return "\n\n".join(filter(None, (_part_text(part, where) for part, where in _parts(content, at))))


def _part_text(part: ContentPart, at: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        raise refusal(f"Content of the type `{clean(part.type)}` is not supported here.", param=f"{at}.type")
    return part.text or ""


def _tool_call(call_id: str, function: FunctionCall | None, at: str) -> ToolCall:
    if function is None or not call_id:
        raise refusal("A tool call needs an id and a function.", param=at)
    try:
        arguments = _decode_arguments(function.arguments.strip() or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise refusal(f"The arguments of the tool call `{clean(call_id)}` are not a JSON object.", param=at) from None
    return ToolCall(id=clean(call_id), name=clean(function.name), input=arguments)


def chat_tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """Return the tools that the client offers to the model. Raises `HttpError` for what the door does not support."""
    is_legacy = bool(request.functions) and not request.tools
    wanted = request.functions or [] if is_legacy else []
    for number, tool in enumerate(request.tools or ()):
        if tool.type != "function" or tool.function is None:
            raise _unsupported_tool(tool.type, f"tools[{number}]")
        wanted.append(tool.function)
    choice, param = (request.function_call, "function_call") if is_legacy else (request.tool_choice, "tool_choice")
    return _specs(wanted, choice, "functions" if is_legacy else "tools", param)


def response_tools(request: ResponseRequest) -> tuple[ToolSpec, ...]:
    """Return the tools that the client offers to the model, as `chat_tools` does."""
    wanted = []
    for number, tool in enumerate(request.tools or ()):
        if tool.type != "function" or not tool.name:
            raise _unsupported_tool(tool.type, f"tools[{number}]")
        wanted.append(FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.parameters))
    return _specs(wanted, request.tool_choice, "tools", "tool_choice")


def _unsupported_tool(kind: str, at: str) -> HttpError:
    return refusal(
        f"Tools of the type `{clean(kind)}` are not supported here. Send functions, or leave the tools out: the agent "
        "has its own.",
        param=at,
    )


def _specs(
    functions: Sequence[FunctionDefinition], choice: object, param: str, choice_param: str
) -> tuple[ToolSpec, ...]:
    if choice not in (None, "auto", "none"):
        raise refusal(f"`{choice_param}` may be `auto` or `none`: the model decides by itself.", param=choice_param)
    if choice == "none":  # As if there were no tools.
        return ()
    if len(functions) > MAX_TOOLS:
        raise refusal(f"A request may have {MAX_TOOLS} tools.", param=param)
    if len({each.name for each in functions}) < len(functions):
        raise refusal("Two tools have the same name.", param=param)
    for each in functions:
        if not _TOOL_NAME.fullmatch(each.name):
            raise refusal("The name of a tool has 1 to 64 letters, digits, hyphens and underscores.", param=param)
    return tuple(
        ToolSpec(
            name=each.name,
            description=clean(each.description or ""),
            schema=each.parameters or _EMPTY_SCHEMA,  # type: ignore[arg-type]  # It was decoded from JSON.
        )
        for each in functions
    )
