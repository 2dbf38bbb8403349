"""A bare aiohttp server with the routes that the benchmark of the API uses. It runs as a separate process.

It has no access control and no history. `/append` appends the body to a file and fsyncs it. A prompt is passed on to
the model, and the answer goes to the event streams of its session; nothing of that is stored.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from itertools import count

from aiohttp import ClientSession, web


class BareApi:
    def __init__(self, model: str, descriptor: int) -> None:
        self._url = f"{model}/chat/completions"
        self._descriptor = descriptor
        self._ids = count(1)
        self._streams: defaultdict[str, list[web.StreamResponse]] = defaultdict(list)
        self._turns = asyncio.TaskGroup()
        self._client = ClientSession()

    async def append(self, request: web.Request) -> web.StreamResponse:
        os.write(self._descriptor, await request.read() + b"\n")
        os.fsync(self._descriptor)
        return web.json_response({"status": "accepted"}, status=202)

    async def create(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"id": str(next(self._ids))}, status=201)

    async def prompt(self, request: web.Request) -> web.StreamResponse:
        session, text = request.match_info["id"], (await request.json())["text"]
        self._turns.create_task(self._answer(session, text), name=f"turn:{session}")
        return web.json_response({"status": "accepted"}, status=202)

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        self._streams[request.match_info["id"]].append(response)
        return await asyncio.Future()  # Until the client leaves.

    async def run(self, port: int) -> None:
        app = web.Application()
        app.router.add_get("/readyz", self.ready)
        app.router.add_post("/append", self.append)
        app.router.add_post("/api/sessions", self.create)
        app.router.add_post("/api/sessions/{id}/prompt", self.prompt)
        app.router.add_get("/api/sessions/{id}/events", self.events)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with self._client, self._turns:
            await asyncio.Event().wait()

    async def ready(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def _answer(self, session: str, text: str) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
        async with self._client.post(self._url, json=body) as response:
            response.raise_for_status()
            events = [line[6:] async for line in response.content if line.startswith(b"data: {")]
        answer = "".join([json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events])
        message = json.dumps({"role": "agent", "text": answer}, separators=(",", ":"))
        for stream in self._streams[session]:
            await stream.write(f"event: message\ndata: {message}\n\n".encode())


async def main(model: str, path: str, port: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    await BareApi(model, descriptor).run(int(port))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
