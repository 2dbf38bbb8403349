"""Requests that race for one session or for the last free place: each outcome is one that some order would have."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.sessions import SessionStatus
from tests.api.harness import Api, Json, api
from tests.crash.scale import SCALE
from tests.daemon.harness import Parrot, settings
from tests.polling import until

ROUNDS = 30


async def started(program: Api) -> Json:
    session = await program.start()
    await program.prompt(session, "hello")
    await program.answered(session)
    return session


@pytest.mark.parametrize("ending", ["archive", "cancel"])
async def test_a_prompt_and_the_end_of_its_session_have_an_order(tmp_path: Path, ending: str) -> None:
    """Either the prompt comes first and is answered or dropped with a notice, or it is refused."""
    parrot = Parrot()
    parrot.may_answer.set()
    async with api(settings(tmp_path, api={"rate_limit": 0, "max_active_sessions": 100}), parrot.installed) as program:
        for steps in range(ROUNDS):
            session = await started(program)
            path = f"/api/sessions/{session['id']}"
            # A prompt with a file is not written to the transcript before its turn begins.
            body = {"text": f"late {steps}", "attachments": [{"name": "a.txt", "data": "aGVsbG8="}]}
            prompt = asyncio.create_task(program.call("POST", f"{path}/prompt", body))
            for _ in range(steps):
                await asyncio.sleep(0.0003)
            end = program.call("POST", f"{path}/archive") if ending == "archive" else program.call("DELETE", path)
            ended, accepted = (await end)[0], (await prompt)[0]
            await until(lambda: program.daemon.lanes.busy_count == 0)
            if accepted == 202 and ended == 200 and ending == "archive":
                _, restored = await program.call("POST", f"{path}/restore")
                texts = await program.texts(session)
                assert any(text == f"late {steps}" for _, text in texts), (steps, restored)
            if ending == "cancel":
                assert ended == 200
                messages = (await program.read(session))["messages"]
                cancelled = [each["seq"] for each in messages if "was cancelled by" in each["content"]["text"]]
                answers = [each["seq"] for each in messages if each["content"]["text"] == f"heard: late {steps}"]
                assert max([0, *answers]) < min(cancelled), messages
            await program.call("DELETE", f"{path}?permanent=true")


async def test_no_more_sessions_become_active_than_allowed(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 5})) as program:
        outcomes = await asyncio.gather(*(program.call("POST", "/api/sessions", {}) for _ in range(40)))
        assert Counter(status for status, _ in outcomes) == {201: 5, 429: 35}
        started = [session for status, session in outcomes if status == 201]
        for session in started:
            await program.call("POST", f"/api/sessions/{session['id']}/complete")
        # Each of them comes back at most once, together with new ones.
        calls = [program.call("POST", f"/api/sessions/{session['id']}/resume") for session in started]
        calls += [program.call("POST", "/api/sessions", {}) for _ in range(20)]
        outcomes = await asyncio.gather(*calls)
        assert sum(status in (200, 201) for status, _ in outcomes) == 5
        _, report = await program.call("GET", "/api/status")
        assert report["activeSessions"] == 5


async def test_the_archive_is_no_way_around_the_limit(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 1}), Parrot.answering) as program:
        first = await program.start()
        await program.prompt(first, "hello")
        await program.answered(first)
        status, _ = await program.call("POST", f"/api/sessions/{first['id']}/archive")
        assert status == 200
        second = await program.start()
        status, problem = await program.call("POST", f"/api/sessions/{first['id']}/restore")
        assert (status, "max_active_sessions" in problem["detail"]) == (429, True)
        await program.call("POST", f"/api/sessions/{second['id']}/complete")
        status, back = await program.call("POST", f"/api/sessions/{first['id']}/restore")
        assert (status, back["status"]) == (200, "active")
        # One that has ended takes no room.
        await program.call("POST", f"/api/sessions/{first['id']}/complete")
        await program.call("POST", f"/api/sessions/{first['id']}/archive")
        await program.start()
        status, back = await program.call("POST", f"/api/sessions/{first['id']}/restore")
        assert (status, back["status"]) == (200, "completed")


@pytest.mark.parametrize("attempt", range(5 * SCALE))
async def test_a_session_ends_once(tmp_path: Path, attempt: int) -> None:
    """The answers agree with each other and with the transcript."""
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        path = f"/api/sessions/{session['id']}"
        calls = [("DELETE", path), ("POST", f"{path}/complete")] * 5
        calls = calls[attempt % 2 :]
        outcomes = await asyncio.gather(*(program.call(method, target) for method, target in calls))
        detail = await program.read(session)
        reported = {body["status"] for status, body in outcomes if status == 200}
        assert reported == {detail["status"]}
        found = await program.request("GET", f"{path}/export")
        assert (await found.text()).count('"type":"status"') == 1


@pytest.mark.parametrize("attempt", range(5 * SCALE))
async def test_no_prompt_runs_in_a_session_after_its_end(tmp_path: Path, attempt: int) -> None:
    """Each accepted prompt is answered, or the cancellation has dropped it."""
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        path = f"/api/sessions/{session['id']}"
        prompts = [program.call("POST", f"{path}/prompt", {"text": f"p{number}"}) for number in range(10)]
        at = 2 * attempt % 10
        outcomes = await asyncio.gather(*prompts[:at], program.call("DELETE", path), *prompts[at:])
        await until(lambda: not program.daemon.lanes.is_busy(session["key"]))
        del outcomes[at]
        detail = await program.read(session)
        assert detail["status"] == "cancelled"
        assert {status for status, _ in outcomes} <= {202, 409}
        texts = [each["content"].get("text", "") for each in detail["messages"]]
        ended = next(number for number, text in enumerate(texts) if "was cancelled" in text)
        # What follows belongs to the turn that was stopped.
        turns = [each.get("turn") for each in detail["messages"]]
        assert set(filter(None, turns[ended:])) <= set(turns[:ended])
        assert set(filter(None, turns)) <= {body["turn"] for status, body in outcomes if status == 202}


class Model:
    """Applies random requests to one session, in parallel, and checks what must hold in every order of them."""

    REQUESTS = (
        ("POST", "/prompt", {"text": "hello"}),
        ("POST", "/complete", None),
        ("POST", "/resume", None),
        ("DELETE", "", None),
        ("PATCH", "", {"title": "x"}),
        ("POST", "/archive", None),
        ("POST", "/restore", None),
        ("DELETE", "?permanent=true", None),
        ("GET", "", None),
        ("GET", "/messages", None),
        ("GET", "/export?format=markdown", None),
    )

    def __init__(self, program: Api, session: Json) -> None:
        self.program = program
        self.session = session
        self.accepted: list[str] = []

    async def apply(self, number: int) -> int:
        method, path, body = self.REQUESTS[number]
        response = await self.program.request(method, f"/api/sessions/{self.session['id']}{path}", body)
        found = await response.read()
        assert response.status in (200, 202, 404, 409, 429), (method, path, found)
        if response.status == 202:
            self.accepted.append((await response.json())["id"])
        return response.status

    async def check(self) -> None:
        await until(lambda: not self.program.daemon.lanes.is_busy(self.session["key"]))
        status, detail = await self.program.call("GET", f"/api/sessions/{self.session['id']}")
        if status == 200:
            asked = Counter(each["id"] for each in detail["messages"] if each["role"] == "user")
            assert set(asked) <= set(self.accepted)
            assert all(times == 1 for times in asked.values())
            answers = Counter(each["turn"] for each in detail["messages"] if each["role"] == "agent")
            assert all(times == 1 for times in answers.values())
        count = await self.program.daemon.sessions.directory.count("api", SessionStatus.ACTIVE)
        _, page = await self.program.call("GET", "/api/sessions?status=active&channel=api&limit=200")
        assert page["total"] == count == len(page["sessions"])
        assert not self.program.daemon.lanes.waiting


async def test_any_requests_at_once_leave_the_session_sound(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 1000, "rate_limit": 0}), Parrot.answering) as program:
        loop = asyncio.get_running_loop()

        async def run(rounds: list[list[int]]) -> None:
            model = Model(program, await program.start())
            for numbers in rounds:
                await asyncio.gather(*map(model.apply, numbers))
            await model.check()

        requests = st.integers(min_value=0, max_value=len(Model.REQUESTS) - 1)

        @hypothesis_settings(max_examples=40 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.lists(requests, min_size=1, max_size=6), min_size=1, max_size=4))
        def explore(rounds: list[list[int]]) -> None:
            asyncio.run_coroutine_threadsafe(run(rounds), loop).result()

        await asyncio.to_thread(explore)
