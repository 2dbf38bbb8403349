"""Answers of an owner in the place of an agent."""

from pathlib import Path

from gateway.admin_api.replies import MARK
from gateway.contract import TokenScope
from tests.admin_api.harness import administered
from tests.admin_api.test_overview import loopback, slow_agent
from tests.api.harness import Api, Json
from tests.daemon.harness import Slow, ask
from tests.daemon.tools import Rocket, agent, scripted


async def first_session(owner: Api) -> Json:
    _, found = await owner.call("GET", "/api/sessions")
    session: Json = found["sessions"][0]
    return session


async def test_an_owner_answers_in_a_chat_and_the_agent_knows_it(tmp_path: Path) -> None:
    provider = scripted()
    async with administered(tmp_path, before=agent(provider, Rocket())) as owner:
        await ask(loopback(owner.daemon), "hello")
        session = await first_session(owner)
        admin = await owner.token_for(TokenScope.ADMIN)
        path = f"/api/sessions/{session['id']}/reply"
        status, found = await admin.call("POST", path, {"text": " I'll call you.\x00 "})
        assert (status, found["isSent"]) == (200, True)
        heard = await loopback(owner.daemon).hear_message()
        assert (heard.text, heard.address.peer) == (f"I'll call you.\ufffd\n\n{MARK}", "somebody")
        assert (await owner.texts(session))[-1] == ("agent", heard.text)
        program = await owner.token_for(TokenScope.MANAGE, TokenScope.PROMPT)
        assert (await program.call("POST", path, {"text": "hi"}))[0] == 403
        assert (await owner.call("POST", path, {"text": " \n"}))[0] == 422


async def test_an_owner_answers_a_program_in_its_transcript(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        session = await owner.start()
        status, found = await owner.call("POST", f"/api/sessions/{session['id']}/reply", {"text": "hi"})
        assert (status, found["isSent"]) == (200, False)
        assert await owner.texts(session) == [("agent", f"hi\n\n{MARK}")]


async def test_an_owner_does_not_interrupt_the_agent(tmp_path: Path) -> None:
    slow = Slow()
    async with administered(tmp_path, before=lambda daemon: slow_agent(daemon, slow)) as owner:
        session = await owner.start()
        await owner.prompt(session, "hello")
        await slow.is_asked.wait()
        status, found = await owner.call("POST", f"/api/sessions/{session['id']}/reply", {"text": "hi"})
        assert (status, "works on an answer" in found["detail"]) == (409, True)
        slow.may_answer.set()
        await owner.answered(session)
