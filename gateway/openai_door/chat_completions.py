"""`POST /v1/chat/completions`: one answer as an object, or as a stream of chunks."""

from contextlib import aclosing

import msgspec
from aiohttp import web
from msgspec import UNSET

from gateway.agent.protocol import TextDelta
from gateway.api.operation import json_response
from gateway.contract import Caller
from gateway.conversation import ToolCall
from gateway.errors import HeldElsewhere
from gateway.http.responses import HttpError
from gateway.openai_door.answer import AnswerTokens, StreamedAnswer, WholeAnswer, read_whole
from gateway.openai_door.door import Door, name_session
from gateway.openai_door.errors import error_info, refusal, unavailable
from gateway.openai_door.event_stream import EventStream, event_stream
from gateway.openai_door.request_messages import chat_messages, chat_tools
from gateway.openai_door.types import (
    AssistantOut,
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Choice,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    ErrorEvent,
    FunctionCall,
    PromptTokensDetails,
    ToolCallDelta,
    ToolCallOut,
)

_LAST = b"[DONE]"


class ChatCompletions:
    def __init__(self, door: Door) -> None:
        self._door = door

    async def create(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        body, received = await self._door.decode(request, ChatRequest, lambda body: chat_messages(body.messages))
        _refuse_unsupported(body)
        wanted = self._door.request(request, caller, body, received, chat_tools(body))
        is_legacy = bool(body.functions) and not body.tools
        if not body.stream:
            async with self._door.answer(wanted) as answer:
                whole = await read_whole(answer)
            completion = _completion(body.model, answer, whole, is_legacy=is_legacy)
            return name_session(json_response(completion), answer)
        async with event_stream(request) as stream:
            try:
                async with self._door.answer(wanted) as answer:
                    stream.name_session(answer.session)
                    await _stream(stream, body, answer, is_legacy=is_legacy)
            except (HttpError, HeldElsewhere) as error:
                if not stream.has_begun:
                    raise
                end = unavailable(str(error)) if isinstance(error, HeldElsewhere) else error
                await stream.send(ErrorEvent(error=error_info(end)))
        return stream.response


def _refuse_unsupported(body: ChatRequest) -> None:
    """Refuse what cannot be done, so that no client takes it for done."""
    if body.n not in (None, 1):
        raise refusal("There is one answer to each request: `n` may be 1.", param="n")
    if body.logprobs or body.top_logprobs:
        raise refusal("Agents return no log probabilities.", param="logprobs" if body.logprobs else "top_logprobs")
    if body.audio is not None:
        raise refusal("Agents answer in text, not in audio.", param="audio")
    if body.modalities not in (None, ["text"]):
        raise refusal("Agents answer in text: `modalities` may be `text`.", param="modalities")
    if body.response_format is not None and body.response_format.type != "text":
        raise refusal(
            "Agents answer in text. A JSON format can't be enforced: ask for it in the message.",
            param="response_format",
        )
    if body.web_search_options is not None:
        raise refusal("Agents search the web with their own tools.", param="web_search_options")


def _usage(tokens: AnswerTokens) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=tokens.input_tokens,
        completion_tokens=tokens.output_tokens,
        total_tokens=tokens.input_tokens + tokens.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=tokens.cached_tokens),
    )


def arguments_of(call: ToolCall) -> str:
    return msgspec.json.encode(call.input).decode()


def _function(call: ToolCall) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=arguments_of(call))


def _completion(model: str, answer: StreamedAnswer, whole: WholeAnswer, *, is_legacy: bool) -> ChatCompletion:
    calls = [ToolCallOut(id=call.id, function=_function(call)) for call in whole.calls]
    message = AssistantOut(
        content=whole.text if whole.text or not calls else None,
        tool_calls=calls if calls and not is_legacy else UNSET,
        function_call=calls[0].function if calls and is_legacy else UNSET,
    )
    return ChatCompletion(
        id=f"chatcmpl-{answer.name}",
        created=answer.created,
        model=model,
        choices=[Choice(message=message, finish_reason=_finish_reason(len(calls), is_legacy=is_legacy))],
        usage=_usage(whole.tokens),
    )


def _finish_reason(calls: int, *, is_legacy: bool) -> str:
    if not calls:
        return "stop"
    return "function_call" if is_legacy else "tool_calls"


async def _stream(stream: EventStream, body: ChatRequest, answer: StreamedAnswer, *, is_legacy: bool) -> None:
    """Send the chunks of an answer: the role, the text and the tool calls, the reason for the end, and the usage."""
    wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    calls, tokens = 0, AnswerTokens()

    def chunk(*choices: ChunkChoice, usage: CompletionUsage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=f"chatcmpl-{answer.name}",
            created=answer.created,
            model=body.model,
            choices=list(choices),
            usage=usage if wants_usage else UNSET,
        )

    async def send(delta: ChoiceDelta, finish_reason: str | None = None) -> None:
        await stream.send(chunk(ChunkChoice(delta=delta, finish_reason=finish_reason)))

    is_first = True
    async with aclosing(answer.pieces) as pieces:
        async for piece in pieces:
            if is_first:
                is_first = False
                await send(ChoiceDelta(role="assistant", content="", refusal=None))
            match piece:
                case TextDelta():
                    await send(ChoiceDelta(content=piece.text))
                case ToolCall() if is_legacy:
                    if not calls:
                        await send(ChoiceDelta(function_call=_function(piece)))
                    calls += 1
                case ToolCall():
                    await send(
                        ChoiceDelta(tool_calls=[ToolCallDelta(index=calls, id=piece.id, function=_function(piece))])
                    )
                    calls += 1
                case AnswerTokens():
                    tokens = piece
    await send(ChoiceDelta(), _finish_reason(calls, is_legacy=is_legacy))
    if wants_usage:
        await stream.send(chunk(usage=_usage(tokens)))
    await stream.send(_LAST)
