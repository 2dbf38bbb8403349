"""The model server answers in the four wire formats. Real agents accept it: see the tests beside this one."""

import aiohttp
import pytest

from tests.acp.model_server import Call, ModelServer, Reply, Request, Say, Wire, run_shell

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PARTS = [{"text": "hello"}]
FUNCTION = {"name": "bash", "parameters": SHELL}
REQUESTS = {
    Wire.CHAT: (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"type": "function", "function": FUNCTION}],
        },
    ),
    Wire.RESPONSES: (
        "/v1/responses",
        {
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
            "tools": [{"type": "function", **FUNCTION}],
        },
    ),
    Wire.ANTHROPIC: (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "hello"}], "tools": [{"name": "bash", "input_schema": SHELL}]},
    ),
    Wire.GEMINI: (
        "/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": PARTS}], "tools": [{"functionDeclarations": [FUNCTION]}]},
    ),
}


async def ask(wire: Wire, reply: Reply | None, *, stream: bool) -> tuple[str, Request]:
    """Give the body of the answer, and the request as the script saw it. Without `reply`, the shell tool is called."""
    path, body = REQUESTS[wire]
    if wire is Wire.GEMINI and stream:
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    async with (
        ModelServer(lambda request: reply or run_shell(request, "make test")) as server,
        aiohttp.ClientSession() as http,
        http.post(server.url + path, json={"model": "m", "stream": stream, **body}) as answer,
    ):
        assert answer.status == 200
        return await answer.text(), server.requests[0]


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("stream", [True, False])
async def test_answers_with_text_and_usage(wire: Wire, *, stream: bool) -> None:
    text, request = await ask(wire, Say(text="XYXY"), stream=stream)
    assert text.count("XY") >= 2
    assert "120" in text
    assert (request.text, request.model, list(request.tools)) == ("hello", "m", ["bash"])


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("stream", [True, False])
async def test_calls_the_shell_tool_that_was_offered(wire: Wire, *, stream: bool) -> None:
    text, _request = await ask(wire, None, stream=stream)
    assert "bash" in text
    assert "make test" in text


async def test_calls_a_freeform_tool() -> None:
    text, _request = await ask(Wire.RESPONSES, Call(name="apply_patch", freeform="*** Begin Patch"), stream=True)
    assert "custom_tool_call" in text
    assert "*** Begin Patch" in text
