"""Runs real OpenAI clients against a daemon: `python -m tests.clients [NAME ...]`, or `make clients`.

Each client gets a virtual environment of its own, since together they would not agree on versions. A program in
`programs/` holds a conversation, once with the name of a session in the name of the model, and once with a token that
was made for a session.
"""

import asyncio
import json
import re
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import web

from tests.daemon_process import by_shell, gatehouse, running

ROOT = Path(__file__).parent.parent.parent
REQUIREMENTS = ROOT / "requirements" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENTS = ROOT / ".venv" / "clients"
TIMEOUT = 300.0

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
[providers.fake]
kind = "openai"
base_url = "%s"
api_key = "k"
[agents.main]
provider = "fake"
model = "m"
"""


async def _answer(request: web.Request) -> web.StreamResponse:
    """Say how many messages the conversation has, and what the first one was. Call a tool `weather` if there is one."""
    body = await request.json()
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    delta: dict[str, Any] = {"content": f"{len(said)} messages; the first was: {said[0]}"}
    if "weather" in tools and body["messages"][-1]["role"] != "tool":
        function = {"name": "weather", "arguments": '{"city": "Lisbon"}'}
        delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    elif body["messages"][-1]["role"] == "tool":
        delta = {"content": f"The tool said: {body['messages'][-1]['content']}"}
    reason = "tool_calls" if "tool_calls" in delta else "stop"
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for choice in ({"index": 0, "delta": delta}, {"index": 0, "delta": {}, "finish_reason": reason}):
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


@asynccontextmanager
async def _model() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def _python_of(name: str) -> Path:
    """Return the interpreter of a client's environment, which is made if it does not exist or is out of date."""
    folder, wanted = ENVIRONMENTS / name, (REQUIREMENTS / f"{name}.txt").read_text()
    mark = folder / "requirements.txt"
    if not mark.exists() or mark.read_text() != wanted:
        print(f"Installing {name}.", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
        mark.write_text(wanted)
    return folder / "bin" / "python"


def _token(home: Path, name: str, *options: str) -> str:
    made = gatehouse("token", "create", name, "--scope", "prompt", *options, "--json", home=home)
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["secret"])


def _run(name: str, python: Path, home: Path, url: str) -> bool:
    """Run the program of a client twice. Return whether it succeeded."""
    version = re.search(rf"^{name}\S*==(\S+)", (REQUIREMENTS / f"{name}.txt").read_text(), re.MULTILINE)
    program = PROGRAMS / f"use_{name.replace('-', '_')}.py"
    ways = {
        "model suffix": (f"main@trip-of-{name}", _token(home, name)),
        "token with a session": ("main", _token(home, name, "--session", "trip")),
    }
    has_passed = True
    for way, (model, token) in ways.items():
        environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(home),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "OPENAI_TOOL_KEY": _token(home, f"{name} tools"),
            "GATEHOUSE_MODEL": model,
        }
        done = subprocess.run(
            [python, program], env=environment, cwd=home, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        has_passed = has_passed and done.returncode == 0
        print(f"{name} {version[1] if version else ''}, {way}: {'ok' if done.returncode == 0 else 'FAILED'}")
        print("".join(f"    {line}\n" for line in (done.stdout + done.stderr).splitlines()), end="", flush=True)
    return has_passed


async def main(names: list[str]) -> int:
    names = names or sorted(file.stem for file in REQUIREMENTS.glob("*.in"))
    async with _model() as model:

        def run() -> bool:
            pythons = {name: _python_of(name) for name in names}
            with TemporaryDirectory() as folder, running(Path(folder), CONFIG % model, by_shell()) as daemon:
                failed = [name for name in names if not _run(name, pythons[name], Path(folder), daemon.url)]
            return not failed

        return 0 if await asyncio.to_thread(run) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
