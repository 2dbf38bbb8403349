"""A model inside the booted machine: it answers once /run/hold is gone, and leaves /run/asked when it was asked."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHUNK = '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}'
ANSWER = (
    CHUNK % '{"index":0,"delta":{"role":"assistant","content":"the model has answered"},"finish_reason":null}',
    CHUNK % '{"index":0,"delta":{},"finish_reason":"stop"}',
    "[DONE]",
)


class Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Path("/run/asked").touch()
        while Path("/run/hold").exists():
            time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {each}\n\n" for each in ANSWER).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Model).serve_forever()
