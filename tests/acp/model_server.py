"""A local model server for tests that drive real coding agents without internet.

It speaks the streaming and the plain form of four wire formats: OpenAI chat completions, OpenAI responses, Anthropic
messages and Gemini. A script decides what the model answers. Every answer reports `INPUT_TOKENS` and `OUTPUT_TOKENS`.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]  # Any: JSON.
Event = tuple[str, Json]

INPUT_TOKENS = 120
OUTPUT_TOKENS = 30

# The shell tool and its argument, by agent.
SHELL_TOOLS = {
    "run_shell_command": "command",  # gemini, qwen
    "Bash": "command",  # claude
    "bash": "command",  # opencode, copilot
    "exec_command": "cmd",  # codex
    "shell_command": "command",  # codex, for models without exec_command
}
# The tool that writes a whole file, with its arguments for the path and the content.
WRITE_TOOLS = {
    "write_file": ("file_path", "content"),  # gemini, qwen
    "Write": ("file_path", "content"),  # claude
    "write": ("filePath", "content"),  # opencode
    "create": ("path", "file_text"),  # copilot
}


class Wire(StrEnum):
    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to the model, the same for all wire formats."""

    wire: Wire
    model: str
    text: str  # Of the last user message. Agents put their own remarks around it.
    tools: Mapping[str, Json]  # The schema of the arguments, by name. Empty in side requests such as one for a title.
    results: tuple[str, ...]  # Of the tools that ran since the last user message.
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """An answer of text. With `until`, the stream stops in the middle of the text and goes on when the event is set."""

    text: str
    until: asyncio.Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call. `freeform` is for tools that take plain text instead of JSON arguments."""

    name: str
    arguments: Json = field(default_factory=dict)
    freeform: str | None = None


Reply = Say | Call
Script = Callable[[Request], Reply]


def run_shell(request: Request, command: str) -> Call:
    """Call whichever shell tool the agent offers.

    Codex runs commands in a sandbox of its own without asking, so the model asks for one that leaves the sandbox.
    """
    name = next(name for name in SHELL_TOOLS if name in request.tools)
    leave = {"sandbox_permissions": "require_escalated", "justification": "May the test run this?"}
    return _filled(request, name, {SHELL_TOOLS[name]: command} | (leave if name == "exec_command" else {}))


def write_file(request: Request, path: str, content: str) -> Call:
    """Create the file at the absolute `path` with whichever tool the agent offers for that."""
    for name, (path_argument, content_argument) in WRITE_TOOLS.items():
        if name in request.tools:
            return _filled(request, name, {path_argument: path, content_argument: content})
    added = "".join(f"+{line}\n" for line in content.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path}\n{added}*** End Patch\n"
    if "apply_patch" in request.tools:
        return Call(name="apply_patch", freeform=patch)
    raise LookupError(f"no tool to write a file among {sorted(request.tools)}")


def _filled(request: Request, name: str, arguments: Json) -> Call:
    """Add the other required arguments, such as a description of the command."""
    schema = request.tools[name]
    types = {each: schema["properties"][each].get("type") for each in schema.get("required", [])}
    others = {each: False if kind == "boolean" else "for the test" for each, kind in types.items()}
    return Call(name=name, arguments=others | arguments)


class ModelServer:
    """Listens on a free port of 127.0.0.1 inside `async with`. Leaving it sets the events that replies wait for."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.unknown: list[str] = []  # Method and path of requests that were answered with 404.
        self.url = ""
        self._waiting: list[asyncio.Event] = []
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        for event in self._waiting:
            event.set()
        await self._runner.cleanup()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        path = http.path
        if http.method == "GET" and path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "test-model", "object": "model"}]})
        if path.endswith((":countTokens", "/count_tokens")):
            return web.json_response({"totalTokens": INPUT_TOKENS, "input_tokens": INPUT_TOKENS})
        wire = next((wire for suffix, wire in _WIRES.items() if path.endswith(suffix)), None)
        if http.method != "POST" or wire is None:
            self.unknown.append(f"{http.method} {path}")
            return web.json_response({"error": {"message": "not found"}}, status=404)
        body = await http.json()
        if wire is Wire.GEMINI:  # The only one that has model and streaming in the path.
            body["model"] = path.rpartition("/")[2].partition(":")[0]
            body["stream"] = path.endswith(":streamGenerateContent")
        request = _PARSERS[wire](body, dict(http.headers))
        self.requests.append(request)
        reply = self.script(request)
        whole, opening, closing = _WRITERS[wire](reply, body["model"])
        if not body.get("stream"):
            await self._wait(reply)
            return web.json_response(whole)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(http)
        with contextlib.suppress(ConnectionResetError):  # The agent cancelled the turn.
            await stream.write(_encoded(opening))
            await self._wait(reply)
            await stream.write(_encoded(closing) + (b"data: [DONE]\n\n" if wire is Wire.CHAT else b""))
        return stream

    async def _wait(self, reply: Reply) -> None:
        if isinstance(reply, Say) and reply.until is not None:
            self._waiting.append(reply.until)
            await reply.until.wait()


_WIRES = {
    "/chat/completions": Wire.CHAT,
    "/responses": Wire.RESPONSES,
    "/messages": Wire.ANTHROPIC,
    ":generateContent": Wire.GEMINI,
    ":streamGenerateContent": Wire.GEMINI,
}
_ids = count(1)


def _encoded(events: Iterable[Event]) -> bytes:
    """Encode as server-sent events. OpenAI chat completions and Gemini have no event names."""
    return "".join(
        (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n" for name, data in events
    ).encode()


def _halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    return text[:middle], text[middle:]


def _text_of(content: Any) -> str:  # noqa: ANN401 - a string, or parts of several shapes
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)


def _parsed(
    wire: Wire, body: Json, headers: Json, tools: Mapping[str, Json], said: Iterable[tuple[str, str]]
) -> Request:
    """Make a request of `said`, which is pairs of "user" or "result" and its text."""
    text, results = "", list[str]()
    for role, words in said:
        if role == "user":
            text, results = words, []
        else:
            results.append(words)
    return Request(
        wire=wire, model=body["model"], text=text, tools=tools, results=tuple(results), headers=headers, body=body
    )


def _parse_chat(body: Json, headers: Json) -> Request:
    tools = {each["function"]["name"]: each["function"].get("parameters", {}) for each in body.get("tools") or []}
    roles = {"user": "user", "tool": "result"}
    said = [(roles[each["role"]], _text_of(each["content"])) for each in body["messages"] if each["role"] in roles]
    return _parsed(Wire.CHAT, body, headers, tools, said)


def _parse_responses(body: Json, headers: Json) -> Request:
    tools = {each.get("name", each["type"]): each.get("parameters", {}) for each in body.get("tools") or []}
    said = list[tuple[str, str]]()
    for item in body["input"]:
        if item.get("role") == "user":
            said.append(("user", _text_of(item["content"])))
        elif item["type"].endswith("_call_output"):
            said.append(("result", _text_of(item["output"])))
    return _parsed(Wire.RESPONSES, body, headers, tools, said)


def _parse_anthropic(body: Json, headers: Json) -> Request:
    tools = {each["name"]: each.get("input_schema", {}) for each in body.get("tools") or []}
    said = list[tuple[str, str]]()
    for message in (each for each in body["messages"] if each["role"] == "user"):
        parts = message["content"] if isinstance(message["content"], list) else []
        results = [part for part in parts if part["type"] == "tool_result"]
        said += [("result", _text_of(part.get("content", ""))) for part in results]
        text = message["content"]
        if results:  # The user's next prompt follows the result of a cancelled tool in the same message.
            text = [part for part in parts if not part.get("text", "<system-reminder>").startswith("<system-reminder>")]
        if text:
            said.append(("user", _text_of(text)))
    return _parsed(Wire.ANTHROPIC, body, headers, tools, said)


def _parse_gemini(body: Json, headers: Json) -> Request:
    declared = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations", [])]
    tools = {each["name"]: each.get("parametersJsonSchema") or each.get("parameters", {}) for each in declared}
    said = list[tuple[str, str]]()
    for content in (each for each in body["contents"] if each.get("role", "user") == "user"):
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        said += [("result", json.dumps(each["response"])) for each in results]
        if not results:
            said.append(("user", _text_of(content["parts"])))
    return _parsed(Wire.GEMINI, body, headers, tools, said)


# A writer gives the plain answer, and the events of the streamed one before and after the point where a `Say` waits.
Written = tuple[Json, list[Event], list[Event]]


def _write_chat(reply: Reply, model: str) -> Written:
    head = {"id": f"chat-{next(_ids)}", "created": 1, "model": model}
    total = INPUT_TOKENS + OUTPUT_TOKENS
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
    message: Json
    if isinstance(reply, Say):
        reason, message = "stop", {"role": "assistant", "content": reply.text}
        deltas = [{"role": "assistant", "content": half} for half in _halves(reply.text)]
    else:
        function = {"name": reply.name, "arguments": json.dumps(reply.arguments)}
        call = {"index": 0, "id": f"call_{next(_ids)}", "type": "function", "function": function}
        reason, message = "tool_calls", {"role": "assistant", "content": None, "tool_calls": [call]}
        deltas = [message]

    def chunk(delta: Json, finish: str | None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {**head, "object": "chat.completion.chunk", "choices": [choice]}

    end = ("", {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return whole, [chunk(deltas[0], None)], [*(chunk(each, None) for each in deltas[1:]), chunk({}, reason), end]


def _write_responses(reply: Reply, model: str) -> Written:
    item: Json = {"id": f"item_{next(_ids)}", "status": "completed"}
    if isinstance(reply, Say):
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        item |= {"type": "message", "role": "assistant", "content": content}
    elif reply.freeform is not None:
        call = {"type": "custom_tool_call", "call_id": f"call_{next(_ids)}", "name": reply.name}
        item |= {**call, "input": reply.freeform}
    else:
        call = {"type": "function_call", "call_id": f"call_{next(_ids)}", "name": reply.name}
        item |= {**call, "arguments": json.dumps(reply.arguments)}
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    begun = {"id": f"resp_{next(_ids)}", "object": "response", "created_at": 1, "model": model, "output": []}
    whole = {**begun, "status": "completed", "output": [item], "usage": usage}

    def event(kind: str, **values: object) -> Event:
        return kind, {"type": kind, "output_index": 0, **values}

    added = {**item, "status": "in_progress"} | ({"content": []} if isinstance(reply, Say) else {})
    opening = [event("response.created", response={**begun, "status": "in_progress"})]
    opening.append(event("response.output_item.added", item=added))
    closing = [event("response.output_item.done", item=item), event("response.completed", response=whole)]
    if isinstance(reply, Say):
        where = {"item_id": item["id"], "content_index": 0}
        first, second = (event("response.output_text.delta", delta=half, **where) for half in _halves(reply.text))
        opening, closing = [*opening, first], [second, *closing]
    return whole, opening, closing


def _write_anthropic(reply: Reply, model: str) -> Written:
    block: Json
    empty: Json
    if isinstance(reply, Say):
        reason, block, empty = "end_turn", {"type": "text", "text": reply.text}, {"text": ""}
        deltas = [{"type": "text_delta", "text": half} for half in _halves(reply.text)]
    else:
        call = {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": reply.name}
        reason, block, empty = "tool_use", {**call, "input": reply.arguments}, {"input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(reply.arguments)}]
    head = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}

    def event(kind: str, **values: object) -> Event:
        return kind, {"type": kind, **values}

    started: Json = {**head, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    opening = [
        event("message_start", message=started),
        event("content_block_start", index=0, content_block={**block, **empty}),
        event("content_block_delta", index=0, delta=deltas[0]),
    ]
    closing = [
        *(event("content_block_delta", index=0, delta=each) for each in deltas[1:]),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage),
        event("message_stop"),
    ]
    return {**head, "content": [block], "stop_reason": reason, "usage": usage}, opening, closing


def _write_gemini(reply: Reply, model: str) -> Written:
    if isinstance(reply, Say):
        parts: list[Json] = [{"text": half} for half in _halves(reply.text)]
    else:
        parts = [{"functionCall": {"name": reply.name, "args": reply.arguments}}]
    total = INPUT_TOKENS + OUTPUT_TOKENS
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS, "totalTokenCount": total}

    def answer(parts: list[Json], *, ends: bool) -> Json:
        finish = {"finishReason": "STOP"} if ends else {}
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **finish}
        return {"candidates": [candidate], "modelVersion": model, **({"usageMetadata": usage} if ends else {})}

    opening = [("", answer(parts[:1], ends=False))]
    return answer(parts, ends=True), opening, [("", answer(parts[1:] or [{"text": ""}], ends=True))]


_PARSERS = {
    Wire.CHAT: _parse_chat,
    Wire.RESPONSES: _parse_responses,
    Wire.ANTHROPIC: _parse_anthropic,
    Wire.GEMINI: _parse_gemini,
}
_WRITERS = {
    Wire.CHAT: _write_chat,
    Wire.RESPONSES: _write_responses,
    Wire.ANTHROPIC: _write_anthropic,
    Wire.GEMINI: _write_gemini,
}
