"""Requests that race for one session: a prompt that is accepted is answered, or its session says why not."""

import asyncio
from pathlib import Path

import pytest

from tests.api.harness import Api, Json, api
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
