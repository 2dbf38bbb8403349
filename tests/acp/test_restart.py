"""Restarts of the daemon while a coding agent works: nothing is lost, nothing is done twice, and no program is left."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.sessions.turn_progress import INTERRUPTED
from tests.acp.harness import SCRIPTED_AGENT, needs_sandbox
from tests.crash.coding import RESTARTED, CodingHarness, coder, effects, open_coding_harness, programs
from tests.crash.stored import rows
from tests.daemon_process import by_shell, gatehouse, running
from tests.polling import until

pytestmark = needs_sandbox

OPTIONS = '[{"optionId": "once", "name": "Once", "kind": "allow_once"}]'


async def shut_down(harness: CodingHarness, pid: int) -> None:
    await harness.stop(pid)
    harness.check()


@pytest.mark.parametrize(("options", "notice"), [((), "It has loaded this session"), (("load=no",), "the transcript")])
async def test_a_turn_goes_on_after_a_kill_and_the_person_is_told(
    tmp_path: Path, options: tuple[str, ...], notice: str
) -> None:
    async with open_coding_harness(tmp_path, *options) as harness:
        pid = await harness.start()
        asked = harness.ask("append a one ;; say Working. ;; tool read README.md ;; wait gate ;; say Done. #")
        await until(lambda: harness.spec.data_dir.exists() and harness.entries("tool_result"))
        await harness.kill(pid)
        (harness.spec.repo / "gate").touch()
        pid = await harness.start()
        answer = await harness.answer(asked)
        assert RESTARTED in answer
        assert notice in answer
        assert answer.startswith("Working.")
        assert answer.endswith("Done. #")
        await shut_down(harness, pid)
        if not options:
            assert effects(harness.spec) == ["append a one"]


@pytest.mark.parametrize("button", [0, 1], ids=["approve", "deny"])
@pytest.mark.parametrize("when", ["down", "after"])
async def test_a_decision_counts_once_whenever_it_is_made(tmp_path: Path, when: str, button: int) -> None:
    """While no daemon runs, or after the restart."""
    async with open_coding_harness(tmp_path) as harness:
        pid = await harness.start()
        asked = harness.ask("ask edit b text ;; say Done. #")
        (question,) = await harness.questions()
        press = question.buttons[button]
        await harness.kill(pid)
        if when == "down":
            harness.ask(press)
        pid = await harness.start()
        if when == "after":
            await until(lambda: "work_recovered" in harness.spec.log.read_text())
            harness.ask(press)
        answer = await harness.answer(asked)
        assert RESTARTED in answer
        assert ("allowed by once" if button == 0 else "rejected by no") in answer
        assert effects(harness.spec) == (["edit b text"] if button == 0 else [])
        assert len(await harness.questions()) == 1
        late = harness.ask(press)
        assert "already" in await harness.answer(late)
        await shut_down(harness, pid)


async def test_an_answer_that_the_program_has_got_counts_no_more_after_a_kill(tmp_path: Path) -> None:
    """Its call may have been done. If the program asks again, so does the gateway."""
    async with open_coding_harness(tmp_path, "load=no") as harness:
        pid = await harness.start()
        asked = harness.ask("ask edit b text ;; wait gate ;; say Done. #")
        (question,) = await harness.questions()
        harness.ask(question.buttons[0])
        await until(lambda: len(effects(harness.spec)) == 1)
        await harness.kill(pid)
        (harness.spec.repo / "gate").touch()
        pid = await harness.start()
        _, again = await harness.questions(2)
        harness.ask(again.buttons[1])
        assert "rejected by no" in await harness.answer(asked)
        assert len(effects(harness.spec)) == 1
        await shut_down(harness, pid)


async def test_a_call_that_was_approved_and_ran_during_the_next_question_is_not_approved_again(tmp_path: Path) -> None:
    async with open_coding_harness(tmp_path) as harness:
        pid = await harness.start()
        call = '{"toolCallId": "x", "kind": "edit", "title": "edit a", "rawInput": {"argument": "a 1"}}'
        request = f'session/request_permission {{"toolCall": {call}, "options": {OPTIONS}}}'
        asked = harness.ask(f"request {request} ;; append a 1 ;; ask edit b text ;; say Done. #")
        (first,) = await harness.questions()
        harness.ask(first.buttons[0])
        _, second = await harness.questions(2)
        await harness.kill(pid)
        harness.ask(second.buttons[0])
        pid = await harness.start()
        assert "allowed by once" in await harness.answer(asked)
        await shut_down(harness, pid)
        results = [entry["output"] for entry in harness.entries("tool_result")]
        assert results[0] == INTERRUPTED
        assert "which was yes" in results[1]


async def test_a_turn_that_always_kills_the_daemon_is_given_up(tmp_path: Path) -> None:
    async with open_coding_harness(tmp_path) as harness:
        asked = harness.ask("append a one ;; hang ;; say Done. #")
        for attempt in range(1, 4):
            pid = await harness.start()
            await harness.done(*["append a one"] * min(attempt, 1))
            await until(lambda: len(programs(harness.spec.home)) > 0)
            await harness.kill(pid)
        pid = await harness.start()
        assert "I crashed 3 times" in await harness.answer(asked)
        assert await harness.answer_to("say Next. #") == "Next. #"
        await harness.stop(pid)


async def test_sigterm_lets_the_turn_finish(tmp_path: Path) -> None:
    async with open_coding_harness(tmp_path) as harness:
        pid = await harness.start(shutdown_timeout=60)
        asked = harness.ask("append a one ;; wait gate ;; say Done. #")
        await harness.done("append a one")
        os.kill(pid, signal.SIGTERM)
        await until(lambda: "shutdown_started" in harness.spec.log.read_text())
        (harness.spec.repo / "gate").touch()
        assert await harness.answer(asked) == "Done. #"
        await shut_down(harness, pid)


@pytest.mark.parametrize("signals", [1, 2])
async def test_sigterm_suspends_a_turn_that_takes_too_long(tmp_path: Path, signals: int) -> None:
    """With the second signal at once."""
    async with open_coding_harness(tmp_path) as harness:
        pid = await harness.start(shutdown_timeout=0.0 if signals == 1 else 3600.0)
        asked = harness.ask("append a one ;; wait gate ;; say Done. #")
        await harness.done("append a one")
        os.kill(pid, signal.SIGTERM)
        if signals == 2:
            await until(lambda: "shutdown_started" in harness.spec.log.read_text())
        await harness.stop(pid)
        assert rows(harness.spec, "SELECT state, attempts FROM inbox") == [("running", 0)]
        (harness.spec.repo / "gate").touch()
        pid = await harness.start()
        answer = await harness.answer(asked)
        assert RESTARTED in answer
        assert answer.endswith("Done. #")
        await shut_down(harness, pid)
        assert effects(harness.spec) == ["append a one"]


async def test_sigterm_keeps_an_open_question(tmp_path: Path) -> None:
    async with open_coding_harness(tmp_path) as harness:
        pid = await harness.start(shutdown_timeout=60)
        asked = harness.ask("ask edit b text ;; say Done. #")
        (question,) = await harness.questions()
        await harness.stop(pid)
        assert rows(harness.spec, "SELECT state FROM inbox") == [("waiting",)]
        pid = await harness.start()
        harness.ask(question.buttons[0])
        answer = await harness.answer(asked)
        assert "allowed by once" in answer
        assert RESTARTED in answer
        await shut_down(harness, pid)
        assert effects(harness.spec) == ["edit b text"]


async def test_a_kill_leaves_no_process_of_a_program_that_resists(tmp_path: Path) -> None:
    async with open_coding_harness(tmp_path, "children=2", "ignore=sigterm,eof,cancel") as harness:
        pid = await harness.start()
        asked = harness.ask("fork 3 ;; append a one ;; wait gate ;; say Done. #")
        await harness.done("append a one")
        assert len(programs(harness.spec.home)) == 1 + 2 + 3  # The agent, the children of its start, those of `fork`.
        await harness.kill(pid)
        (harness.spec.repo / "gate").touch()
        pid = await harness.start()
        await harness.answer(asked)
        await harness.stop(pid)
        assert programs(harness.spec.home) == []


SERVICE = """
import asyncio, socket, sys
from gateway.sandbox.remote import serve_commands
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    asyncio.run(serve_commands(listener, has_network=True))
"""


@asynccontextmanager
async def sandbox_service(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the sandbox service as a process of its own."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVICE, str(path), stdout=PIPE)
    assert process.stdout
    assert await process.stdout.readline() == b"listening\n"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.to_thread(path.unlink)


async def test_a_kill_leaves_no_process_in_the_sandbox_service(tmp_path: Path) -> None:
    socket = tmp_path / "sandbox.sock"
    async with (
        sandbox_service(socket),
        open_coding_harness(tmp_path, "children=2", "ignore=sigterm,eof,cancel", sandbox_socket=socket) as harness,
    ):
        pid = await harness.start()
        asked = harness.ask("fork 3 ;; append a one ;; wait gate ;; say Done. #")
        await harness.done("append a one")
        await harness.kill(pid)
        (harness.spec.repo / "gate").touch()
        pid = await harness.start()
        assert RESTARTED in await harness.answer(asked)
        await shut_down(harness, pid)


async def test_a_sandbox_service_that_is_killed_ends_the_turn_and_the_next_one_works(tmp_path: Path) -> None:
    socket = tmp_path / "sandbox.sock"
    async with open_coding_harness(tmp_path, sandbox_socket=socket) as harness:
        async with sandbox_service(socket) as service:
            pid = await harness.start()
            asked = harness.ask("fork 2 ;; append a one ;; hang ;; say Done. #")
            await harness.done("append a one")
            service.kill()
            assert "The agent coder failed" in await harness.answer(asked)
            await until(lambda: not programs(harness.spec.home))
        async with sandbox_service(socket):
            assert (await harness.answer_to("say Next. #")).endswith("Next. #")
            await shut_down(harness, pid)


CONFIG = """
[gateway]
data_dir = "{home}/data"
shutdown_timeout = 0
[http]
port = 0
[agents.coder]
backend = "acp"
command = COMMAND
[agents.coder.sandbox]
readable = ["SCRIPT"]
[[repos]]
id = "app"
path = "{home}/repos/app"
[[bindings]]
agent = "coder"
channel = "terminal"
"""


def test_the_restart_command_suspends_a_turn_and_leaves_no_program(tmp_path: Path) -> None:
    """With `gatehouse run` itself, which replaces its own process."""
    command = coder(tmp_path)["command"]
    config = CONFIG.replace("COMMAND", str(command)).replace("SCRIPT", str(SCRIPTED_AGENT))
    effects_log = tmp_path / "repos/app/effects.log"
    with running(tmp_path, config, by_shell()) as daemon, ThreadPoolExecutor() as threads:
        talk = partial(gatehouse, "chat", "--once", home=tmp_path)
        asked = threads.submit(talk, "append a one ;; wait gate ;; say Done.")
        daemon.wait_for("agent_ready")
        asyncio.run(until(effects_log.exists))
        before = programs(tmp_path)
        assert before
        # Another terminal session, so that it does not wait for the first.
        assert gatehouse("chat", "--once", "/restart", home=tmp_path).returncode == 0
        daemon.wait_for("shutdown_finished", suspended=1)
        assert not set(before) & set(programs(tmp_path))
        daemon.wait_for("gateway_ready")
        (tmp_path / "repos/app/gate").touch()
        daemon.wait_for("message_handled", outcome="answered")
        asked.result(60)
        assert daemon.stop() == 0
    assert effects_log.read_text() == "append a one\n"
    assert programs(tmp_path) == []
    verified = gatehouse("sessions", "verify", home=tmp_path)
    assert verified.returncode == 0, verified.stdout
