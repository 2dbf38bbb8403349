"""The scripted agent speaks the protocol: driven over pipes by hand, and by the client of the SDK."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram, open_program
from tests.polling import until
from tests.sandbox.harness import NAP, needs_sandbox, processes_with

SCRIPT = Path(__file__).with_name("scripted_agent.py")
PATIENCE = 20.0

Json = Any  # Any: the messages are checked by what the tests expect of them.


@dataclass
class Pipes:
    """A client by hand: it answers each permission request with `choice`."""

    process: asyncio.subprocess.Process
    cwd: Path
    choice: str | None = "once"
    answers_requests: bool = True
    seen: list[Json] = field(default_factory=list)
    last_id: int = 0

    def send(self, message: Json) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def post(self, method: str, **params: Json) -> int:
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        return self.last_id

    async def read(self) -> Json:
        """Return the next message. Lines that are no JSON object are kept as they are."""
        assert self.process.stdout
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        if not line:
            raise EOFError
        try:
            message = json.loads(line)
        except ValueError:
            message = line
        self.seen.append(message)
        is_question = isinstance(message, dict) and message.get("method") == "session/request_permission"
        if is_question and self.answers_requests:
            outcome = {"outcome": "selected", "optionId": self.choice} if self.choice else {"outcome": "cancelled"}
            self.send({"id": message["id"], "result": {"outcome": outcome}})
        return message

    async def until(self, is_it: Callable[[Json], bool]) -> Json:
        while True:
            message = await self.read()
            if isinstance(message, dict) and is_it(message):
                return message

    async def answer(self, key: int) -> Json:
        return await self.until(lambda message: message.get("id") == key and "method" not in message)

    async def call(self, method: str, **params: Json) -> Json:
        return await self.answer(self.post(method, **params))

    async def open_session(self) -> str:
        await self.call("initialize", protocolVersion=1)
        return str((await self.call("session/new", cwd=str(self.cwd), mcpServers=[]))["result"]["sessionId"])

    async def prompt(self, session: str, *lines: str) -> Json:
        return await self.answer(self.post_prompt(session, *lines))

    def post_prompt(self, session: str, *lines: str) -> int:
        return self.post("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "\n".join(lines)}])

    def updates(self) -> list[Json]:
        return [each["params"]["update"] for each in self.seen if self.is_update(each)]

    @staticmethod
    def is_update(message: Json) -> bool:
        return isinstance(message, dict) and message.get("method") == "session/update"

    def said(self) -> str:
        chunks = [each for each in self.updates() if each["sessionUpdate"] == "agent_message_chunk"]
        return "".join(each["content"].get("text", "") for each in chunks)

    def effects(self) -> list[str]:
        file = self.cwd / "effects.log"
        return file.read_text().splitlines() if file.exists() else []

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


Start = Callable[..., Awaitable[Pipes]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[asyncio.subprocess.Process] = []
    (tmp_path / "home").mkdir()
    (tmp_path / "repo").mkdir()

    async def start(*options: str) -> Pipes:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(SCRIPT), *options),
            env={"HOME": str(tmp_path / "home"), "PATH": os.defpath},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=256 << 20,
            start_new_session=True,
        )
        started.append(process)
        return Pipes(process, tmp_path / "repo")

    yield start
    for process in started:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            await process.communicate()


async def test_says_streams_thinks_plans_and_reports_usage(start: Start) -> None:
    agent = await start()
    session = await agent.open_session()
    answer = await agent.prompt(session, "think hm", "say hello ;; stream 3", "plan a;b;c", "usage 10 5 0.25")
    assert answer["result"] == {
        "stopReason": "end_turn",
        "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
    }
    assert agent.said() == "helloword1 word2 word3 "
    kinds = [each["sessionUpdate"] for each in agent.updates()]
    assert kinds == ["agent_thought_chunk", *["agent_message_chunk"] * 4, "plan", "usage_update"]


async def test_text_without_a_command_is_repeated(start: Start) -> None:
    agent = await start()
    await agent.prompt(await agent.open_session(), "how are you?")
    assert agent.said() == "You said: how are you?"


@pytest.mark.parametrize(
    ("choice", "said", "effects"),
    [("once", "allowed by once", ["execute touch made"]), ("no", "rejected by no", []), (None, "cancelled", [])],
)
async def test_a_permission_request_decides_about_the_command(
    start: Start, choice: str | None, said: str, effects: list[str]
) -> None:
    agent = await start()
    agent.choice = choice
    await agent.prompt(await agent.open_session(), "ask execute touch made")
    assert agent.said() == said
    assert agent.effects() == effects
    assert (agent.cwd / "made").exists() == bool(effects)


async def test_an_edit_reports_the_diff_and_writes_the_file(start: Start) -> None:
    agent = await start()
    (agent.cwd / "notes.txt").write_text("old\n")
    await agent.prompt(await agent.open_session(), "edit notes.txt new text")
    call = next(each for each in agent.updates() if each["sessionUpdate"] == "tool_call")
    path = agent.cwd / "notes.txt"
    assert call["content"] == [{"type": "diff", "path": str(path), "oldText": "old\n", "newText": "new text\n"}]
    assert path.read_text() == "new text\n"


async def test_writes_and_runs_and_counts_the_effects(start: Start) -> None:
    agent = await start()
    await agent.prompt(await agent.open_session(), "write a.txt one", "append a.txt two", "run cat a.txt")
    assert agent.said() == "one\ntwo\n[exit 0]"
    assert agent.effects() == ["write a.txt one", "append a.txt two", "run cat a.txt"]


async def test_a_cancel_ends_the_turn_and_the_session_answers_again(start: Start) -> None:
    agent = await start()
    session = await agent.open_session()
    key = agent.post_prompt(session, "hang")
    agent.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert (await agent.answer(key))["result"]["stopReason"] == "cancelled"
    assert (await agent.prompt(session, "say again"))["result"]["stopReason"] == "end_turn"


async def test_asks_for_permission_after_the_cancel(start: Start) -> None:
    agent = await start()
    agent.choice = None
    session = await agent.open_session()
    key = agent.post_prompt(session, "ask_after_cancel execute touch made")
    agent.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert (await agent.answer(key))["result"]["stopReason"] == "cancelled"
    assert agent.said() == "cancelled"


async def test_load_replays_the_session_in_a_new_process(start: Start) -> None:
    first = await start()
    session = await first.open_session()
    await first.prompt(session, "say hello")
    first.process.kill()
    agent = await start()
    await agent.call("initialize", protocolVersion=1)
    await agent.call("session/load", sessionId=session, cwd=str(agent.cwd), mcpServers=[])
    replayed = [(each["sessionUpdate"], each["content"]["text"]) for each in agent.updates()]
    assert replayed == [("user_message_chunk", "say hello"), ("agent_message_chunk", "hello")]
    agent.seen.clear()
    await agent.prompt(session, "recall")
    assert agent.said() == "say hello"


async def test_goes_on_with_what_a_killed_process_left_undone(start: Start) -> None:
    first = await start("die=permission")
    session = await first.open_session()
    first.post_prompt(session, "say before", "ask execute touch made", "say after")
    assert await first.ended() == 1
    agent = await start("continues")
    await agent.call("initialize", protocolVersion=1)
    await agent.call("session/load", sessionId=session, cwd=str(agent.cwd), mcpServers=[])
    agent.seen.clear()
    await agent.prompt(session, "Your request was allowed. Go on.")
    assert agent.said() == "allowed by onceafter"
    assert agent.effects() == ["execute touch made"]


async def test_a_lossy_load_forgets_and_a_failing_load_fails(start: Start) -> None:
    first = await start()
    session = await first.open_session()
    await first.prompt(session, "say hello")
    lossy = await start("load=lossy")
    await lossy.call("initialize", protocolVersion=1)
    assert "result" in await lossy.call("session/load", sessionId=session, cwd=str(lossy.cwd), mcpServers=[])
    await lossy.prompt(session, "recall")
    assert lossy.said() == "nothing"
    for options, code in ((["error=load"], -32603), (["load=no"], -32601), ([], -32002)):
        agent = await start(*options)
        await agent.call("initialize", protocolVersion=1)
        key = session if options else "no-such-session"
        answer = await agent.call("session/load", sessionId=key, cwd=str(agent.cwd), mcpServers=[])
        assert answer["error"]["code"] == code


@pytest.mark.parametrize(
    ("point", "steps"),
    [
        ("start", []),
        ("initialize", ["initialize"]),
        ("new", ["initialize", "new"]),
        ("set_mode", ["initialize", "new", "set_mode"]),
        ("prompt", ["initialize", "new", "prompt"]),
        ("text", ["initialize", "new", "prompt"]),
        ("permission", ["initialize", "new", "prompt"]),
        ("cancel", ["initialize", "new", "prompt", "cancel"]),
    ],
)
async def test_dies_at_each_point(start: Start, point: str, steps: list[str]) -> None:
    agent = await start(f"die={point}", "exit=3", "reason=no_key_is_set")

    async def drive() -> None:
        session = ""
        for step in steps:
            if step == "initialize":
                await agent.call("initialize", protocolVersion=1)
            elif step == "new":
                answer = await agent.call("session/new", cwd=str(agent.cwd), mcpServers=[])
                session = answer["result"]["sessionId"]
            elif step == "set_mode":
                await agent.call("session/set_mode", sessionId=session, modeId="ask")
            elif step == "prompt":
                agent.post_prompt(session, "say hello", "ask execute true", "hang")
                await agent.until(agent.is_update)
            else:
                agent.send({"method": "session/cancel", "params": {"sessionId": session}})
        while True:
            await agent.read()

    with pytest.raises(EOFError):
        await drive()
    assert await agent.ended() == 3
    assert agent.process.stderr
    assert await agent.process.stderr.read() == b"no key is set\n"
    assert ("hello" in agent.said()) == (point in {"text", "permission", "cancel"})


@pytest.mark.parametrize("point", ["initialize", "new", "prompt"])
async def test_is_silent_where_it_is_told_to(start: Start, point: str) -> None:
    """The requests after the silent one are answered, so the agent has read it."""
    agent = await start(f"silent={point}")
    first = agent.post("initialize", protocolVersion=1)
    second = agent.post("session/new", cwd=str(agent.cwd), mcpServers=[])
    if point == "prompt":
        session = (await agent.answer(second))["result"]["sessionId"]
        first = agent.post_prompt(session, "say hello")
    last = agent.post("no/such_method")
    await agent.answer(last)
    silent = first if point != "new" else second
    assert silent not in [each.get("id") for each in agent.seen if isinstance(each, dict)]


async def test_writes_garbage_invalid_messages_and_a_huge_line(start: Start) -> None:
    agent = await start("garbage=initialize", "invalid=new", "unknown=new")
    session = await agent.open_session()
    assert any(isinstance(each, bytes) for each in agent.seen)
    assert any(isinstance(each, list) for each in agent.seen)
    assert any(isinstance(each, dict) and each.get("method") == "_vendor/extension" for each in agent.seen)
    agent.seen.clear()
    answer = await agent.prompt(session, "huge 2")
    assert answer["result"]["stopReason"] == "end_turn"
    assert len(agent.said()) == 2 << 20


async def test_endless_updates_end_with_the_cancel(start: Start) -> None:
    agent = await start()
    session = await agent.open_session()
    key = agent.post_prompt(session, "endless")
    await agent.until(agent.is_update)
    agent.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert (await agent.answer(key))["result"]["stopReason"] == "cancelled"


async def test_ignores_cancel_sigterm_and_the_end_of_stdin(start: Start) -> None:
    agent = await start("ignore=cancel,sigterm,eof")
    session = await agent.open_session()
    agent.post_prompt(session, "say hello", "wait go", "say still here")
    await agent.until(agent.is_update)
    agent.send({"method": "session/cancel", "params": {"sessionId": session}})
    agent.process.terminate()
    assert agent.process.stdin
    agent.process.stdin.close()
    log = Path(agent.cwd.parent, "home", ".scripted_agent", "received.log")
    await until(lambda: "sigterm" in log.read_text() and "eof" in log.read_text())
    (agent.cwd / "go").touch()
    await agent.until(lambda message: agent.is_update(message) and "still here" in str(message))
    assert agent.process.returncode is None


async def test_children_leave_the_process_group_and_hold_the_pipes(start: Start) -> None:
    agent = await start("children=1")
    await agent.open_session()
    pid = agent.process.pid
    child = int(await asyncio.to_thread(Path(f"/proc/{pid}/task/{pid}/children").read_text))
    try:
        await until(lambda: os.getpgid(child) == child)
        assert os.stat(f"/proc/{child}/fd/1") == os.stat(f"/proc/{pid}/fd/1")  # noqa: PTH116 - of a pipe.
    finally:
        os.kill(child, signal.SIGKILL)


async def test_only_the_first_process_misbehaves_with_once(start: Start) -> None:
    first = await start("die=initialize", "once")
    first.post("initialize", protocolVersion=1)
    assert await first.ended() == 1
    second = await start("die=initialize", "once")
    assert await second.open_session()


@pytest.mark.parametrize(
    ("second", "first_stop"), [("queue", "end_turn"), ("cancel", "cancelled"), ("error", "end_turn")]
)
async def test_a_prompt_during_a_prompt(start: Start, second: str, first_stop: str) -> None:
    agent = await start(f"second={second}")
    session = await agent.open_session()
    one = agent.post_prompt(session, "say one", "wait go")
    await agent.until(agent.is_update)
    two = agent.post_prompt(session, "say two")
    if second == "error":
        assert "error" in await agent.answer(two)
    if second != "cancel":
        (agent.cwd / "go").touch()
    assert (await agent.answer(one))["result"]["stopReason"] == first_stop
    if second != "error":
        assert (await agent.answer(two))["result"]["stopReason"] == "end_turn"


async def test_a_prompt_that_joins_another_is_answered_with_it(start: Start) -> None:
    agent = await start("second=join")
    session = await agent.open_session()
    one = agent.post_prompt(session, "say one", "wait go")
    await agent.until(agent.is_update)
    two = agent.post_prompt(session, "say two")
    await agent.call("no/such_method")  # The second prompt has been read.
    (agent.cwd / "go").touch()
    answers = [await agent.answer(one), await agent.answer(two)]
    assert [each["result"]["stopReason"] for each in answers] == ["end_turn", "end_turn"]
    assert agent.said() == "onetwo"


async def test_a_quick_cancel_takes_the_permission_request_back(start: Start) -> None:
    agent = await start("cancel=quick")
    session = await agent.open_session()
    key = agent.post_prompt(session, "request_id 77", "ask execute touch made")
    agent.answers_requests = False
    await agent.until(lambda message: message.get("method") == "session/request_permission")
    agent.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert (await agent.answer(key))["result"]["stopReason"] == "cancelled"
    assert {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "77"}} in agent.seen
    assert agent.effects() == []


@needs_sandbox
async def test_it_works_in_the_sandbox(tmp_path: Path) -> None:
    """Without network, with a home of its own, and with children that the end of the sandbox ends."""
    repository = tmp_path / "repo"
    repository.mkdir()
    program = SandboxedProgram(
        argv=("/usr/bin/python3", str(SCRIPT.resolve()), "children=2", f"mark={NAP}", "ignore=sigterm,eof"),
        env={},
        cwd=repository,
        writable=(repository,),
        readable=(SCRIPT.parent.resolve(),),
        limits=SandboxLimits(memory_bytes=512 * 1024**2, processes=64),
    )
    async with asyncio.timeout(PATIENCE), open_program(program) as running:
        agent = Pipes(running, repository.resolve())  # type: ignore[arg-type]  # It has the same streams.
        await agent.prompt(await agent.open_session(), "write a.txt text", "ask execute touch made", "env HOME")
        assert agent.said() == "allowed by onceHOME=/home/agent"
        assert agent.effects() == ["write a.txt text", "execute touch made"]
    assert not processes_with(f"mark={NAP}")


async def test_the_agent_uses_the_files_and_the_terminal_of_the_client(start: Start) -> None:
    agent = await start()
    session = await agent.open_session()
    key = agent.post_prompt(session, "client_read ../x 2 3", "client_run ls")
    request = await agent.until(lambda message: "method" in message and "id" in message)
    path = f"{agent.cwd}/../x"
    assert request["params"] == {"sessionId": session, "path": path, "line": 2, "limit": 3}
    agent.send({"id": request["id"], "error": {"code": -32602, "message": "outside"}})
    for method, result in (
        ("terminal/create", {"terminalId": "t1"}),
        ("terminal/wait_for_exit", {"exitCode": 0, "signal": None}),
        ("terminal/output", {"output": "files\n", "truncated": False}),
        ("terminal/release", {}),
    ):
        request = await agent.until(lambda message: "method" in message and "id" in message)
        assert request["method"] == method
        agent.send({"id": request["id"], "result": result})
    await agent.answer(key)
    assert agent.said() == "refused -32602: outsidefiles\n[exit 0 signal None]"


class SdkClient:
    """Collects the updates and allows everything once."""

    def __init__(self) -> None:
        self.updates: list[Json] = []

    async def session_update(self, session_id: str, update: Json, **_: Json) -> None:
        self.updates.append((session_id, update))

    async def request_permission(self, session_id: str, tool_call: Json, options: list[Json], **_: Json) -> Json:
        from acp import schema  # noqa: PLC0415 - it costs half a second.

        self.updates.append((session_id, tool_call))
        chosen = next(option for option in options if option.kind == "allow_once")
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )


@asynccontextmanager
async def sdk_connection(agent: Pipes, client: SdkClient) -> AsyncIterator[Json]:
    from acp.core import ClientSideConnection  # noqa: PLC0415 - it costs half a second.

    connection = ClientSideConnection(client, agent.process.stdin, agent.process.stdout)  # type: ignore[arg-type] # The client has the methods that are called.
    try:
        async with asyncio.timeout(PATIENCE):
            yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("modes", ["ask,edit", "opaque", "config", "none"])
async def test_the_client_of_the_sdk_understands_it(start: Start, modes: str) -> None:
    from acp import PROTOCOL_VERSION, schema, text_block  # noqa: PLC0415 - it costs half a second.

    agent = await start(f"modes={modes}", "auth=required", "resume=yes")
    client = SdkClient()
    async with sdk_connection(agent, client) as connection:
        hello = await connection.initialize(protocol_version=PROTOCOL_VERSION)
        assert hello.agent_capabilities.load_session
        assert hello.agent_capabilities.session_capabilities.resume is not None
        await connection.authenticate(method_id=hello.auth_methods[0].id)
        session = await connection.new_session(cwd=str(agent.cwd), mcp_servers=[])
        if modes == "config":
            assert session.modes is None
            assert [option.id for option in session.config_options] == ["mode", "model"]
            await connection.set_config_option(config_id="mode", session_id=session.session_id, value="ask")
        elif modes == "none":
            assert session.modes is None
        else:
            first = session.modes.available_modes[0].id
            await connection.set_session_mode(session_id=session.session_id, mode_id=first)
        script = [
            "say hello ;; think hm ;; image ;; plan a;b",
            "tool search x ;; edit a.txt text ;; ask execute true ;; ask_first edit a.txt other ;; orphan lost",
            "usage 10 5 0.25 ;; commands ;; title New title ;; mode ask ;; config ;; stop max_tokens",
        ]
        answer = await connection.prompt(session_id=session.session_id, prompt=[text_block("\n".join(script))])
        assert answer.stop_reason == "max_tokens"
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 5)
    kinds = {type(update) for _, update in client.updates}
    assert kinds == {
        schema.AgentMessageChunk,
        schema.AgentThoughtChunk,
        schema.AgentPlanUpdate,
        schema.ToolCallStart,
        schema.ToolCallProgress,
        schema.ToolCallUpdate,
        schema.UsageUpdate,
        schema.AvailableCommandsUpdate,
        schema.SessionInfoUpdate,
        schema.CurrentModeUpdate,
        schema.ConfigOptionUpdate,
    }


async def test_the_client_of_the_sdk_loads_and_resumes_a_session(start: Start) -> None:
    from acp import PROTOCOL_VERSION, text_block  # noqa: PLC0415 - it costs half a second.

    first = await start()
    session = await first.open_session()
    await first.prompt(session, "say hello")
    for verb, replayed in (("load_session", 2), ("resume_session", 0)):
        agent = await start("resume=yes")
        client = SdkClient()
        async with sdk_connection(agent, client) as connection:
            await connection.initialize(protocol_version=PROTOCOL_VERSION)
            await getattr(connection, verb)(cwd=str(agent.cwd), session_id=session, mcp_servers=[])
            assert len(client.updates) >= replayed
            await connection.prompt(session_id=session, prompt=[text_block("recall")])
        assert "say hello" in client.updates[-1][1].content.text
