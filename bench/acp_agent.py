"""A coding agent that does nothing but say when: it runs as a separate process and speaks ACP. Standard library only.

`chunks 3 pause 20 calls 1` in a prompt lets it report one tool call, write a first chunk, pause for 20 milliseconds,
write two more chunks and answer. The text has the times of the monotonic clock: `began=` when the prompt had come,
`first=` just before the first chunk was written, and `ended=` just before the last chunk and the answer.
"""

import json
import os
import re
import sys
from time import monotonic, sleep

TEXT = "agent_message_chunk"
OLD = "".join(f"line {number}\n" for number in range(100))
NEW = OLD.replace("line 50\n", "another line\n")


def main() -> None:
    while line := sys.stdin.buffer.readline():
        began = monotonic()
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                write(answer(message["id"], {"protocolVersion": 1, "agentCapabilities": {}}))
            case "session/new":
                write(answer(message["id"], {"sessionId": "bench"}))
            case "session/prompt":
                work(message["id"], str(message["params"]["prompt"]), began)


def work(request: int, prompt: str, began: float) -> None:
    chunks, pause, calls = (
        int(found[1]) if (found := re.search(rf"{name} (\d+)", prompt)) else 0 for name in ("chunks", "pause", "calls")
    )
    for number in range(calls):
        content = [{"type": "diff", "path": "/notes.txt", "oldText": OLD, "newText": NEW}]
        call = {"toolCallId": f"call {number}", "kind": "edit", "title": "Edit notes.txt"}
        write(update({"sessionUpdate": "tool_call", "status": "pending", "rawInput": {"path": "notes.txt"}, **call}))
        write(update({"sessionUpdate": "tool_call_update", "status": "completed", "content": content, **call}))
    write(text(f"began={began:.6f} first={monotonic():.6f}"))
    if pause:
        sleep(pause / 1000)
    for _ in range(chunks - 2):
        write(text(" word"))
    write(text(f" ended={monotonic():.6f}"), answer(request, {"stopReason": "end_turn"}))


def text(words: str) -> bytes:
    return update({"sessionUpdate": TEXT, "content": {"type": "text", "text": words}})


def update(what: dict[str, object]) -> bytes:
    return encode({"method": "session/update", "params": {"sessionId": "bench", "update": what}})


def answer(request: int, result: dict[str, object]) -> bytes:
    return encode({"id": request, "result": result})


def encode(message: dict[str, object]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def write(*messages: bytes) -> None:
    os.write(1, b"".join(messages))


if __name__ == "__main__":
    main()
