"""Coding agents that send much at once: nothing is lost, and nothing fills the memory."""

from pathlib import Path
from typing import Any

from config import Settings
from gateway.sessions import SessionStatus, entries
from tests.acp.harness import coder, needs_sandbox, sessions_of
from tests.daemon.harness import ask, gateway, say_and_hear
from tests.polling import until

pytestmark = needs_sandbox

_AGENT = """
import json, os, select, sys

def line(**message):
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n"

def update(**fields):
    return line(method="session/update", params={"sessionId": "s", "update": fields})

def text(words):
    return update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": words})

def permission(number):
    call = {"toolCallId": f"p{number}", "title": "x", "kind": "execute"}
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": "s", "toolCall": call, "options": options}
    return line(id=f"p{number}", method="session/request_permission", params=params)

def write(data):
    for at in range(0, len(data), 4096):
        _, is_writable, _ = select.select([], [1], [], 2)
        if not is_writable:
            open("blocked", "w").close()
        os.write(1, data[at:at + 4096])

for request in map(json.loads, sys.stdin):
    method, number = request.get("method"), request.get("id")
    if method == "initialize":
        write(line(id=number, result={"protocolVersion": 1}))
    elif method == "session/new":
        write(line(id=number, result={"sessionId": "s"}))
    elif method == "session/prompt":
        done = line(id=number, result={"stopReason": "end_turn"})
        word = request["params"]["prompt"][-1]["text"]
SCRIPT
"""


def settings(folder: Path, script: str) -> Settings:
    """Return settings with an agent that runs `script` for each prompt. It has `word`, `done` and the functions."""
    program = folder / "burst_agent.py"
    indented = "\n".join(f"        {row}" for row in script.strip().splitlines())
    program.write_text(_AGENT.replace("SCRIPT", indented))
    sandbox: Any = {"readable": (program,)}
    return coder(folder, command=("/usr/bin/env", "python3", "-I", "-S", str(program)), sandbox=sandbox)


async def test_permissions_asked_for_after_the_response_do_not_block_the_next_prompt(tmp_path: Path) -> None:
    """They stayed unanswered, and nothing more is read from a program with too many of those."""
    configured = settings(tmp_path, 'write(text(word) + done + b"".join(map(permission, range(64))))')
    async with gateway(configured) as (_daemon, chat):
        assert await ask(chat, "one") == "one"
        assert await ask(chat, "two") == "two"


async def test_what_a_program_has_said_before_it_exits_is_kept(tmp_path: Path) -> None:
    """The turn takes longer to record it than the program to end."""
    script = """
calls = (update(sessionUpdate="tool_call", toolCallId=str(n), title="ls", status="completed") for n in range(100))
write(b"".join(calls) + text("All done.") + done)
sys.exit(0)
"""
    async with gateway(settings(tmp_path, script)) as (daemon, chat):
        assert await ask(chat, "go") == "All done."
        [session] = sessions_of(daemon)
        assert session.status is SessionStatus.ACTIVE
        written = (await daemon.sessions.load(session.key)).entries
        assert sum(isinstance(each, entries.ToolResult) for each in written) == 100


async def test_a_program_that_sends_much_while_a_person_thinks_has_to_wait(tmp_path: Path) -> None:
    script = """
write(permission(1))
for _ in range(30):
    write(text("x" * 2_000_000))
open("sent", "w").close()
"""
    async with gateway(settings(tmp_path, script)) as (_daemon, chat):
        await say_and_hear(chat, "go")
        repo = tmp_path / "repos" / "app"
        await until(lambda: (repo / "blocked").exists() or (repo / "sent").exists())
        assert not (repo / "sent").exists()
        await ask(chat, "/stop")
