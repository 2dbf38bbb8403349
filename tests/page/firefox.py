"""Starts Firefox for Playwright, which drives it by WebDriver BiDi. Run as a program in the place of Firefox.

Playwright sets the colour scheme of each new context, by a command that Firefox ESR does not know yet, and fails. This
program stands between the two and answers that command. Everything else passes through unchanged.
"""

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web

UNKNOWN_COMMAND = "emulation.setMediaFeaturesOverride"
PREFERENCES: dict[str, str | float | bool] = {
    "media.navigator.permission.disabled": True,
    "media.navigator.streams.fake": True,
    "ui.allPointerCapabilities": 6,  # A mouse. Without a screen, Firefox sees no pointing device.
    "ui.primaryPointerCapabilities": 6,
}
HARMLESS = re.compile("sha256-YjaKGiklmzC6wjXA513HAMmzus8VE61XCOT|establish a connection to|was interrupted while")
"""What Firefox writes on its console although the page is right, and Playwright reports as errors of the page.

Our policy refuses a style that Playwright adds before each screenshot. And the gateway is away in some tests.
"""

READY = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


def find_firefox() -> str | None:
    return next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)


def write_launcher(folder: Path) -> Path:
    """Write a program that Playwright starts in the place of Firefox."""
    program = folder / "firefox"
    root = Path(__file__).parents[2]
    program.write_text(f'#!/bin/sh\ncd "{root}" && exec "{sys.executable}" -m tests.page.firefox "$@"\n')
    program.chmod(0o755)
    return program


class Proxy:
    """Passes the messages of one session between Playwright and Firefox."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        playwright = web.WebSocketResponse(max_msg_size=0)
        await playwright.prepare(request)
        async with (
            ClientSession() as session,
            session.ws_connect(self._target + request.path, max_msg_size=0) as firefox,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(_answers(firefox, playwright), name="firefox to playwright")
            await _commands(playwright, firefox)
            await firefox.close()
        return playwright


async def _commands(playwright: web.WebSocketResponse, firefox: ClientWebSocketResponse) -> None:
    async for message in playwright:
        if message.type is not WSMsgType.TEXT:
            continue
        if UNKNOWN_COMMAND in message.data and (command := json.loads(message.data))["method"] == UNKNOWN_COMMAND:
            await playwright.send_json({"type": "success", "id": command["id"], "result": {}})
        else:
            await firefox.send_str(message.data)


async def _answers(firefox: ClientWebSocketResponse, playwright: web.WebSocketResponse) -> None:
    async for message in firefox:
        if message.type is WSMsgType.TEXT and not playwright.closed:
            await playwright.send_str(message.data)
    await playwright.close()


async def main(arguments: list[str]) -> int:
    """Run until Firefox ends. Playwright ends both by killing the process group."""
    program = find_firefox()
    if program is None:
        return 127
    # A Firefox that runs as root refuses a home directory of somebody else, and it writes a cache there.
    profile = arguments[arguments.index("--profile") + 1]
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=os.environ | {"HOME": profile}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    runner: web.AppRunner | None = None
    async for line in process.stderr:
        found = READY.search(line.decode(errors="replace"))
        if found is None:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            continue
        app = web.Application()
        app.router.add_get("/{path:.*}", Proxy(found[1]).serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sys.stderr.write(f"WebDriver BiDi listening on ws://127.0.0.1:{runner.addresses[0][1]}\n")
        sys.stderr.flush()
    if runner is not None:
        await runner.cleanup()
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
