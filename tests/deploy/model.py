"""A model server inside the booted machine. It creates /run/asked on a request, and answers once /run/hold is gone.

For the message `run COMMAND` it calls the shell tool, and answers with the result.
"""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHUNK = '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}'


def answer(body: dict[str, Any]) -> list[str]:  # Any: JSON.
    last = body["messages"][-1]
    if last["role"] == "tool":
        return stream({"content": f"the command said: {last['content']}"}, "stop")
    if last["content"].startswith("run "):
        function = {"name": "shell", "arguments": json.dumps({"command": last["content"].removeprefix("run ")})}
        return stream({"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": function}]}, "tool_calls")
    return stream({"content": "the model has answered"}, "stop")


def stream(delta: dict[str, Any], reason: str) -> list[str]:
    first = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    return [CHUNK % json.dumps(first), CHUNK % json.dumps(last), "[DONE]"]


class Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Path("/run/asked").touch()
        while Path("/run/hold").exists():
            time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {each}\n\n" for each in answer(body)).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Model).serve_forever()
