"""`/v1/responses`: creates a response, whole or as a stream of events, and reads and deletes stored ones."""

from collections.abc import Sequence
from contextlib import aclosing
from http import HTTPStatus
from time import time
from uuid import NAMESPACE_URL, uuid4, uuid5

from aiohttp import web
from msgspec.structs import replace

from gateway.agent.protocol import TextDelta
from gateway.api.operation import json_response
from gateway.api.program_sessions import ProgramSessions
from gateway.contract import Caller
from gateway.conversation import ToolCall
from gateway.errors import HeldElsewhere
from gateway.http.responses import HttpError
from gateway.openai_door.answer import AnswerText, AnswerTokens, StreamedAnswer, read_whole
from gateway.openai_door.chat_completions import arguments_of
from gateway.openai_door.door import Door, name_session
from gateway.openai_door.errors import error_info, refusal, unavailable
from gateway.openai_door.event_stream import EventStream, event_stream
from gateway.openai_door.request_messages import input_messages, response_tools
from gateway.openai_door.session_choice import StoredResponse
from gateway.openai_door.session_turns import DoorRequest, turn_of
from gateway.openai_door.types import (
    ConversationRef,
    DeletedResponse,
    InputItemList,
    InputMessage,
    InputText,
    InputTokensDetails,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseError,
    ResponseObject,
    ResponseRequest,
    ResponseUsage,
)
from gateway.sessions import Entry, SessionManager, SessionMeta, TurnOutcome, entries
from gateway.sessions.history import undo_turn

_STATUSES = {
    None: "in_progress",
    TurnOutcome.ANSWERED: "completed",
    TurnOutcome.FAILED: "failed",
    TurnOutcome.STOPPED: "cancelled",
    TurnOutcome.INTERRUPTED: "incomplete",
}


class Responses:
    def __init__(self, door: Door, sessions: SessionManager, programs: ProgramSessions) -> None:
        self._door = door
        self._sessions = sessions
        self._programs = programs

    async def create(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        body, received = await self._door.decode(request, ResponseRequest, input_messages)
        _refuse_unsupported(body)
        wanted = _stored(body, self._door.request(request, caller, body, received, response_tools(body)))
        if not body.stream:
            async with self._door.answer(wanted) as answer:
                whole = await read_whole(answer)
            output = _output(answer.name, whole.text, whole.calls)
            response = replace(_begun(body, answer), output=output, **_completed(whole.tokens))
            return name_session(json_response(response), answer)
        async with event_stream(request) as stream:
            events = ResponseEvents(stream)
            try:
                async with self._door.answer(wanted) as answer:
                    stream.name_session(answer.session)
                    await events.send_all(body, answer)
            except (HttpError, HeldElsewhere) as error:
                if not stream.has_begun:
                    raise
                await events.fail(unavailable(str(error)) if isinstance(error, HeldElsewhere) else error)
        return stream.response

    async def get(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        if request.query.get("stream", "").lower() == "true":
            raise refusal("A stored response can't be streamed. Leave out `stream`.", param="stream")
        session, _, of_turn = await self._find(request, caller)
        return json_response(stored_response(request.match_info["id"], session, of_turn))

    async def input_items(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        _, name, of_turn = await self._find(request, caller)
        users = [entry for entry in of_turn if isinstance(entry, entries.User)]
        items = [
            InputMessage(id=f"msg_{name}{number}", content=[InputText(text=user.content)])
            for number, user in enumerate(users)
        ]
        ids = [item.id for item in items]
        return json_response(InputItemList(data=items, first_id=ids[0], last_id=ids[-1]))

    async def delete(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Undo the turn of a response. The agent forgets it; its text stays in the transcript."""
        session, _, of_turn = await self._find(request, caller)
        await self._programs.find_own(caller, session.id)
        if not isinstance(of_turn[-1], entries.TurnEnd):
            raise refusal(
                "This response is still being written. Delete it when it is complete.", status=HTTPStatus.CONFLICT
            )
        await self._sessions.append(session.key, [undo_turn(of_turn, of_turn[0].turn or "")])
        return json_response(DeletedResponse(id=request.match_info["id"]))

    async def _find(self, request: web.Request, caller: Caller) -> tuple[SessionMeta, str, Sequence[Entry]]:
        """Return the session of a stored response, its name, and all entries of its turn. Raises a 404."""
        missing = refusal("There is no stored response with this id.", param="response_id", status=HTTPStatus.NOT_FOUND)
        stored = StoredResponse.parse(request.match_info["id"])
        if stored is None:
            raise missing
        session = await self._sessions.directory.find(stored.session_id)
        if session is None or not self._programs.may_see(caller, session):
            raise missing
        found: Sequence[Entry] = (await self._sessions.load(session.key)).entries
        turn = turn_of(found, stored.name)
        if turn is None or not isinstance(found[0], entries.Header):
            # It may have begun before the part that is in memory.
            found = [entry async for entry in self._sessions.entries_since(session.key, 0)]
            turn = turn_of(found, stored.name)
        if turn is None:
            raise missing
        return session, stored.name, [entry for entry in found if entry.turn == turn]


def _refuse_unsupported(body: ResponseRequest) -> None:
    """Refuse what cannot be done, so that no client takes it for done."""
    if body.background:
        raise refusal(
            "Responses in the background are not supported. Use the session API for that.", param="background"
        )
    if body.prompt is not None:
        raise refusal("Stored prompts are not supported. Send `input` and `instructions`.", param="prompt")
    if body.top_logprobs:
        raise refusal("Agents return no log probabilities.", param="top_logprobs")
    if body.text is not None and body.text.format is not None and body.text.format.type != "text":
        raise refusal(
            "Agents answer in text. A JSON format can't be enforced: ask for it in the input.", param="text.format"
        )
    if body.truncation not in (None, "auto", "disabled"):
        raise refusal("`truncation` may be `auto` or `disabled`.", param="truncation")


def _stored(body: ResponseRequest, wanted: DoorRequest) -> DoorRequest:
    """Give a response that is to be stored a session of its own, so that another one can continue it."""
    if body.store is False or not wanted.choice.is_stateless:
        return wanted
    if wanted.tools or wanted.received.uses_tools:
        if body.store:
            raise refusal("A response with tools of the client can't be stored. Leave out `store`.", param="store")
        return wanted
    # With the same Idempotency-Key, a repeated request finds the session of the first.
    name = uuid4() if wanted.key is None else uuid5(NAMESPACE_URL, f"gatehouse:response:{wanted.key}")
    return replace(wanted, choice=replace(wanted.choice, name=str(name), param="store"))


def response_id(answer: StreamedAnswer) -> str:
    """Return the id of a response. That of a stored one says where it is stored."""
    session = answer.session.id.replace("-", "") if answer.session is not None else ""
    return f"resp_{session}{answer.name}"


def _begun(body: ResponseRequest, answer: StreamedAnswer) -> ResponseObject:
    """Return a response that has no output yet."""
    session = answer.session
    return ResponseObject(
        id=response_id(answer),
        created_at=answer.created,
        status="in_progress",
        model=body.model,
        output=[],
        instructions=body.instructions,
        conversation=None if session is None else ConversationRef(session.id),
        previous_response_id=body.previous_response_id,
        store=session is not None,
        tools=body.tools or [],
        tool_choice="none" if body.tool_choice == "none" else "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_output_tokens,
        truncation=body.truncation or "disabled",
        metadata=body.metadata or {},
    )


def _completed(tokens: AnswerTokens) -> dict[str, object]:
    """Return the changes that complete a response."""
    return {"status": "completed", "completed_at": int(time()), "usage": _usage(tokens)}


def _usage(tokens: AnswerTokens) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=tokens.input_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=tokens.cached_tokens, cache_write_tokens=tokens.cache_write_tokens
        ),
        output_tokens=tokens.output_tokens,
        total_tokens=tokens.input_tokens + tokens.output_tokens,
    )


def _output(name: str, text: str, calls: Sequence[ToolCall]) -> list[OutputItem]:
    message = OutputMessage(id=f"msg_{name}", status="completed", content=[OutputText(text=text)])
    functions = [_function_call(name, number, call) for number, call in enumerate(calls)]
    return [*([message] if text or not calls else []), *functions]


def _function_call(name: str, number: int, call: ToolCall) -> OutputFunctionCall:
    return OutputFunctionCall(
        id=f"fc_{name}{number}",
        call_id=call.id,
        name=call.name,
        arguments=arguments_of(call),
        status="completed",
    )


def stored_response(given_id: str, session: SessionMeta, of_turn: Sequence[Entry]) -> ResponseObject:
    """Return a response as the transcript has it. The transcript does not keep the instructions of a request."""
    answer, tokens, note = AnswerText(), AnswerTokens(), ""
    outcome: TurnOutcome | None = None
    cause, ended = "", None
    for entry in of_turn:
        match entry:
            case entries.Assistant():
                answer.end_step(entry.content)
                tokens = tokens if entry.usage is None else tokens.plus(entry.usage)
            case entries.System():
                note = entry.content
            case entries.TurnEnd():
                outcome, cause, ended = entry.outcome, entry.reason, int(entry.ts.timestamp())
            case _:
                pass
    has_failed = outcome is TurnOutcome.FAILED
    name = given_id[-32:]
    return ResponseObject(
        id=given_id,
        created_at=int(of_turn[0].ts.timestamp()),
        completed_at=ended if outcome is TurnOutcome.ANSWERED else None,
        status=_STATUSES[outcome],
        model=session.agent,
        output=_output(name, answer.text, ()) if answer.text else [],
        usage=_usage(tokens) if outcome is not None else None,
        error=ResponseError(code=cause or "server_error", message=note) if has_failed else None,
        conversation=ConversationRef(session.id),
    )


class ResponseEvents:
    """Sends the events of one response, numbered and in OpenAI's order."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._number = 0
        self._response: ResponseObject | None = None
        self._text: list[str] = []

    async def _send(self, kind: str, **fields: object) -> None:
        await self._stream.send({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1

    async def send_all(self, body: ResponseRequest, answer: StreamedAnswer) -> None:
        """Send an answer as it comes."""
        response = self._response = _begun(body, answer)
        calls: list[ToolCall] = []
        tokens = AnswerTokens()
        async with aclosing(answer.pieces) as pieces:
            async for piece in pieces:
                if self._number == 0:
                    await self._send("response.created", response=response)
                    await self._send("response.in_progress", response=response)
                match piece:
                    case TextDelta():
                        if not self._text:
                            await self._begin_message(answer.name)
                        self._text.append(piece.text)
                        await self._send_text("delta", answer.name, delta=piece.text)
                    case ToolCall():
                        calls.append(piece)
                    case AnswerTokens():
                        tokens = piece
        if not self._text and not calls:
            await self._begin_message(answer.name)
        output = _output(answer.name, "".join(self._text), calls)
        for index, item in enumerate(output):
            if isinstance(item, OutputMessage):
                await self._end_message(item)
            else:
                await self._send_call(item, index)
        await self._send("response.completed", response=replace(response, output=output, **_completed(tokens)))

    async def _begin_message(self, name: str) -> None:
        item = OutputMessage(id=f"msg_{name}", status="in_progress", content=[])
        await self._send("response.output_item.added", output_index=0, item=item)
        # Before the first piece of text: the SDK needs a part to add it to.
        await self._send(
            "response.content_part.added", item_id=item.id, output_index=0, content_index=0, part=OutputText(text="")
        )

    async def _send_text(self, what: str, name: str, **fields: object) -> None:
        await self._send(
            f"response.output_text.{what}",
            item_id=f"msg_{name}",
            output_index=0,
            content_index=0,
            logprobs=(),
            **fields,
        )

    async def _end_message(self, item: OutputMessage) -> None:
        (part,) = item.content
        await self._send_text("done", item.id.removeprefix("msg_"), text=part.text)
        await self._send("response.content_part.done", item_id=item.id, output_index=0, content_index=0, part=part)
        await self._send("response.output_item.done", output_index=0, item=item)

    async def _send_call(self, item: OutputFunctionCall, index: int) -> None:
        added = replace(item, arguments="", status="in_progress")
        await self._send("response.output_item.added", output_index=index, item=added)
        where = {"item_id": item.id, "output_index": index}
        await self._send("response.function_call_arguments.delta", **where, delta=item.arguments)
        await self._send("response.function_call_arguments.done", **where, arguments=item.arguments, name=item.name)
        await self._send("response.output_item.done", output_index=index, item=item)

    async def fail(self, error: HttpError) -> None:
        """End a stream that has begun with an error."""
        if self._response is None:
            info = error_info(error)
            await self._send("error", message=info.message, code=info.code, param=info.param)
            return
        if self._number == 0:
            await self._send("response.created", response=self._response)
        failed = ResponseError(code=error_info(error).code or "server_error", message=str(error))
        await self._send("response.failed", response=replace(self._response, status="failed", error=failed))
