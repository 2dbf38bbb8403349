"""A model server in a separate process, so that its CPU time is not counted. It answers in OpenAI's format at once."""

import asyncio
import json
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import monotonic

from aiohttp import ClientSession, web

STEPS = 40
"""Tool calls before the answer, at `/steps`."""
CHUNKS = 60
CHUNKS_PER_SECOND = 20
"""The number and the rate of the chunks at `/paced`. `/paced/500/100` has others."""

DELAY = web.AppKey("delay", list[float])
"""The seconds until an answer begins, in a list because an application cannot be changed while it runs."""

REQUESTS = web.AppKey("requests", list[tuple[str, int]])
"""The question in each request at `/echo`, and the bytes of the request's body."""


@contextmanager
def served() -> Iterator[str]:
    """Run the server. Yields its address; append the name of a script, such as `/plain`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


async def set_delay(address: str, seconds: float) -> None:
    """Have the server at `address` wait before each answer at `/plain` and `/echo`."""
    async with ClientSession() as session, session.post(f"{address}/delay/{seconds}") as response:
        response.raise_for_status()


async def requests(address: str) -> list[tuple[str, int]]:
    """Return the question and the bytes of each request to `/echo` until now."""
    async with ClientSession() as session, session.get(f"{address}/requests") as response:
        return [(question, size) for question, size in await response.json()]


def _run(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    app = web.Application(client_max_size=64 << 20)
    app[DELAY] = [0.0]
    app[REQUESTS] = []
    for name, handler in (
        ("plain", _plain),
        ("steps", _steps),
        ("clock", _clock),
        ("paced", _paced),
        ("echo", _echo),
        ("archivist", _archivist),
    ):
        app.router.add_post(f"/{name}/chat/completions", handler)
    app.router.add_post("/paced/{chunks}/{rate}/chat/completions", _paced)
    app.router.add_get("/echo/models", _models)
    app.router.add_post("/delay/{seconds}", _set_delay)
    app.router.add_get("/requests", _requests)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pipe.send(runner.addresses[0][1])
    await asyncio.Event().wait()


async def _set_delay(request: web.Request) -> web.StreamResponse:
    request.app[DELAY][0] = float(request.match_info["seconds"])
    return web.Response()


async def _requests(request: web.Request) -> web.StreamResponse:
    return web.json_response(request.app[REQUESTS])


async def _models(_request: web.Request) -> web.StreamResponse:
    model = {"id": "m", "object": "model", "created": 1, "owned_by": "bench"}
    return web.json_response({"object": "list", "data": [model]})


async def _echo(request: web.Request) -> web.StreamResponse:
    """Answer "question 10007" with "answer 10007", in one piece unless the request asks for a stream."""
    body = await request.read()
    fields = json.loads(body)
    # Some gateways add a message after the person's, which quotes earlier ones. The newest has the highest number.
    said = json.dumps([message["content"] for message in fields["messages"] if message["role"] == "user"])
    question = max(re.findall(r"question \d{5}", said), default="")
    request.app[REQUESTS].append((question, len(body)))
    await asyncio.sleep(request.app[DELAY][0])
    text = question.replace("question", "answer") or "Nothing was asked."
    if fields.get("stream"):
        return await _stream(request, [_said(text), _ended("stop")])
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    shape = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return web.json_response(shape)


async def _plain(request: web.Request) -> web.StreamResponse:
    await request.read()
    if delay := request.app[DELAY][0]:
        await asyncio.sleep(delay)
    return await _stream(request, [_said("Good day to you."), _ended("stop")])


async def _archivist(request: web.Request) -> web.StreamResponse:
    """Answer a request of the archiver: the first and the last message are worth keeping."""
    said = json.loads((await request.json())["messages"][-1]["content"])["messages"]
    items = [{"seq": each["seq"], "text": each["text"]} for each in (said[0], said[-1])]
    return await _stream(request, [_said(json.dumps(items)), _ended("stop")])


async def _steps(request: web.Request) -> web.StreamResponse:
    done = sum(message["role"] == "tool" for message in (await request.json())["messages"])
    if done >= STEPS:
        return await _stream(request, [_said("Done."), _ended("stop")])
    function = {"name": "count", "arguments": f'{{"number": {done}}}'}
    call = {"index": 0, "id": f"call_{done:016}", "type": "function", "function": function}
    return await _stream(request, [_chunk({"tool_calls": [call]}), _ended("tool_calls")])


async def _clock(request: web.Request) -> web.StreamResponse:
    """Send the time of the monotonic clock, which all processes share."""
    await request.read()
    response = await _begun(request)
    await response.write(_said(repr(monotonic())))
    await asyncio.sleep(0.1)
    await response.write(_ended("stop"))
    return response


async def _paced(request: web.Request) -> web.StreamResponse:
    await request.read()
    response = await _begun(request)
    chunks, rate = (
        int(request.match_info.get(*wanted)) for wanted in (("chunks", CHUNKS), ("rate", CHUNKS_PER_SECOND))
    )
    for _ in range(chunks):
        await response.write(_said("word "))
        await asyncio.sleep(1 / rate)
    await response.write(_ended("stop"))
    return response


async def _begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def _stream(request: web.Request, chunks: list[bytes]) -> web.StreamResponse:
    response = await _begun(request)
    await response.write(b"".join(chunks))
    return response


def _said(text: str) -> bytes:
    return _chunk({"content": text})


def _ended(reason: str) -> bytes:
    return _chunk({}, reason) + b"data: [DONE]\n\n"


def _chunk(delta: dict[str, object], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    shape = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(shape)}\n\n".encode()
