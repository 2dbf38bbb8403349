"""The session API: start, prompt, read, list, end; statuses, limits and idempotency."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.agent.protocol import TextDelta
from gateway.contract import Sender, TokenScope
from gateway.conversation import ToolCall
from gateway.daemon import Daemon
from gateway.errors import ModelUnavailable, ProviderBusy
from gateway.sessions import SessionStatus, entries
from tests.agent.scripted import ScriptedProvider
from tests.api.harness import Api, Json, api
from tests.daemon.harness import Parrot, gateway, settings
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.polling import until


async def test_a_program_starts_a_session_prompts_it_and_reads_the_answer(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start(title="Nightly build")
        assert session["status"] == "active"
        assert session["repoId"] is None
        assert session["title"] == "Nightly build"
        assert datetime.fromisoformat(session["createdAt"]).tzinfo is not None
        message = await program.prompt(session, "hello")
        assert message["role"] == "user"
        assert message["content"] == {"type": "text", "text": "hello", "partial": False}
        assert await program.answered(session) == [("user", "hello"), ("agent", "heard: hello")]
        detail = await program.read(session)
        assert detail["messages"][0]["id"] == message["id"]
        assert detail["repo"] is None
        assert detail["messages"][0]["sessionId"] == session["id"]


async def test_a_prompt_that_looks_like_a_command_goes_to_the_agent(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        for number, text in enumerate(["/new", "//path", "!stop", "/nonsense"], start=1):
            await program.prompt(session, text)
            assert (await program.answered(session, number))[-1] == ("agent", f"heard: {text}")
        status, page = await program.call("GET", "/api/sessions")
        assert (status, page["total"]) == (200, 1)


async def test_an_unknown_session_is_not_found(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as program:
        for path in ("x", "..%2f..", "7b0c9a52-0000-4000-8000-000000000000", "%00", "a" * 300):
            status, problem = await program.call("GET", f"/api/sessions/{path}")
            assert (status, problem["title"]) == (404, "Not Found"), path
            assert "detail" in problem


async def test_at_most_so_many_sessions_are_active(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 2})) as program:
        first = await program.start()
        await program.start()
        refused = await program.request("POST", "/api/sessions", {})
        assert refused.status == 429
        assert refused.headers["Retry-After"] == "60"
        assert "api.max_active_sessions" in (await refused.json(content_type=None))["detail"]
        status, ended = await program.call("POST", f"/api/sessions/{first['id']}/complete")
        assert (status, ended["status"]) == (200, "completed")
        assert ended["statusInfo"] == {"by": "owner", "reason": "requested"}
        await program.start()
        # A completed session may be opened again, but only if there is room.
        status, _ = await program.call("POST", f"/api/sessions/{first['id']}/resume")
        assert status == 429


async def test_an_archived_session_is_restored_only_if_there_is_room(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 1}), Parrot.answering) as program:
        session = await program.start()
        await program.prompt(session, "hello")
        await program.answered(session)
        await program.call("POST", f"/api/sessions/{session['id']}/archive")
        other = await program.start()
        path = f"/api/sessions/{session['id']}/restore"
        assert (await program.call("POST", path))[0] == 429
        await program.call("DELETE", f"/api/sessions/{other['id']}")
        assert (await program.call("POST", path))[0] == 200


async def test_a_message_and_everything_after_it_is_undone(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with api(settings(tmp_path), parrot.installed) as program:
        session = await program.start()
        first, second, _ = [
            await said(program, session, text, at) for at, text in enumerate(["one", "two", "three"], 1)
        ]
        path = f"/api/sessions/{session['id']}/undo"
        assert (await program.call("POST", path, {"message": second["id"]}))[0] == 200
        await said(program, session, "four", 2)
        assert parrot.heard[-1] == ["one", "four"]
        # An undone message has no turn that could be undone again.
        assert (await program.call("POST", path, {"message": second["id"]}))[0] == 404
        assert (await program.call("POST", path, {"message": "nonsense"}))[0] == 404
        status, undone = await program.call("POST", path, {"message": first["id"]})
        assert (status, undone["messageCount"]) == (200, 0)
        parrot.may_answer.clear()
        parrot.is_asked.clear()
        running = await program.prompt(session, "five")
        await parrot.is_asked.wait()
        assert parrot.heard[-1] == ["five"]
        status, problem = await program.call("POST", path, {"message": running["id"]})
        assert (status, problem["title"]) == (409, "Conflict")


async def said(program: Api, session: Json, text: str, answers: int) -> Json:
    message = await program.prompt(session, text)
    await program.answered(session, answers)
    return message


async def test_only_an_active_session_takes_prompts(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        await program.call("POST", f"/api/sessions/{session['id']}/complete")
        status, problem = await program.call("POST", f"/api/sessions/{session['id']}/prompt", {"text": "hello"})
        assert (status, problem["detail"]) == (409, "This session is completed, so it takes no more messages.")
        status, opened = await program.call("POST", f"/api/sessions/{session['id']}/resume")
        assert (status, opened["status"]) == (200, "active")
        await program.prompt(session, "hello again")
        assert (await program.answered(session))[-1] == ("agent", "heard: hello again")


async def test_cancelling_stops_the_run_and_drops_what_waits(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        await program.prompt(session, "first")
        await slow.is_asked.wait()
        second = await program.prompt(session, "second")
        status, cancelled = await program.call("DELETE", f"/api/sessions/{session['id']}")
        assert (status, cancelled["status"]) == (200, "cancelled")
        await until(lambda: not program.daemon.lanes.is_busy(session["key"]))
        texts = await program.texts(session)
        assert ("system", "The session was cancelled by owner.") in texts
        assert not any(text == "second" for _, text in texts)
        assert len(slow.heard) == 1
        dropped = [each for each in (await program.read(session))["messages"] if each.get("inReplyTo")]
        assert [each["inReplyTo"] for each in dropped] == [second["id"]]
        assert dropped[0]["content"]["text"].startswith("This wasn't answered: its session was cancelled.")
        status, again = await program.call("DELETE", f"/api/sessions/{session['id']}")
        assert (status, again["status"]) == (200, "cancelled")


async def test_a_run_is_stopped_and_its_session_stays_open(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        path = f"/api/sessions/{session['id']}/stop"
        await program.prompt(session, "first")
        await slow.is_asked.wait()
        second = await program.prompt(session, "second")
        status, stopped = await program.call("POST", path)
        assert (status, stopped["status"]) == (200, "active")
        await until(lambda: not program.daemon.lanes.is_busy(session["key"]))
        texts = await program.texts(session)
        assert ("system", "Stopped by owner.") in texts
        assert len(slow.heard) == 1
        (dropped,) = [each for each in (await program.read(session))["messages"] if each.get("inReplyTo")]
        assert dropped["inReplyTo"] == second["id"]
        assert dropped["content"]["text"].startswith("This wasn't answered: owner has stopped the session.")
        before = await program.texts(session)
        status, again = await program.call("POST", path)
        assert (status, again["status"], again["isRunning"]) == (200, "active", False)
        assert await program.texts(session) == before


async def test_a_completed_session_that_still_runs_can_be_cancelled(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        path = f"/api/sessions/{session['id']}"
        await program.prompt(session, "first")
        await program.prompt(session, "second")
        await slow.is_asked.wait()
        await program.call("POST", f"{path}/complete")
        status, cancelled = await program.call("DELETE", path)
        assert (status, cancelled["status"]) == (200, "cancelled")
        await until(lambda: not program.daemon.lanes.is_busy(session["key"]))
        assert len(slow.heard) == 1
        # Without a run, it stays as it was.
        done = await program.start()
        await program.call("POST", f"/api/sessions/{done['id']}/complete")
        status, same = await program.call("DELETE", f"/api/sessions/{done['id']}")
        assert (status, same["status"]) == (200, "completed")


async def test_completing_lets_accepted_prompts_be_answered(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        await program.prompt(session, "first")
        await program.prompt(session, "second")
        status, completed = await program.call("POST", f"/api/sessions/{session['id']}/complete")
        assert (status, completed["status"]) == (200, "completed")
        slow.may_answer.set()
        texts = await program.answered(session, 2)
        assert [text for role, text in texts if role == "agent"] == ["heard: first", "heard: second"]


async def test_deleting_for_good_removes_the_text(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        await program.prompt(session, "a secret")
        await program.answered(session)
        status, _ = await program.call("DELETE", f"/api/sessions/{session['id']}?permanent=true")
        assert status == 200
        status, _ = await program.call("GET", f"/api/sessions/{session['id']}")
        assert status == 404


@pytest.mark.parametrize("failure", [ModelUnavailable("The API key was rejected."), ProviderBusy("It is busy.")])
async def test_a_model_that_fails_for_good_ends_the_session(tmp_path: Path, failure: Exception) -> None:
    provider = ScriptedProvider([failure], [failure], [TextDelta(text="fine")])
    async with api(settings(tmp_path), agent(provider, Rocket())) as program:
        session = await program.start()
        await program.prompt(session, "hello")
        texts = await program.answered(session)
        assert texts[-1] == ("system", str(failure))
        detail = await program.read(session)
        is_final = isinstance(failure, ModelUnavailable)
        assert detail["status"] == ("error" if is_final else "active")
        if is_final:
            assert detail["statusInfo"] == {"by": "agent", "reason": "model_unavailable"}
            status, _ = await program.call("POST", f"/api/sessions/{session['id']}/prompt", {"text": "again"})
            assert status == 409
            status, _ = await program.call("POST", f"/api/sessions/{session['id']}/resume")
            assert status == 409


async def test_an_idle_session_is_completed(tmp_path: Path) -> None:
    moment = datetime.now(UTC)
    async with api(settings(tmp_path), Parrot.answering, now=lambda: moment) as program:
        session = await program.start()
        moment += timedelta(minutes=29)
        await program.daemon.programs.complete_idle()
        await program.prompt(session, "still here")
        await program.answered(session)
        moment += timedelta(minutes=29)
        await program.daemon.programs.complete_idle()
        assert (await program.read(session))["status"] == "active"
        moment += timedelta(minutes=2)
        await program.daemon.programs.complete_idle()
        detail = await program.read(session)
        assert detail["status"] == "completed"
        assert detail["statusInfo"] == {"by": "gateway", "reason": "idle_timeout"}


async def test_a_repeated_key_is_accepted_once(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with api(settings(tmp_path), parrot.installed) as program:
        session = await program.start()
        first = await program.prompt(session, "once", Idempotency_Key="k1")
        again = await program.prompt(session, "once", Idempotency_Key="k1")
        assert again["id"] == first["id"]
        status, problem = await program.call(
            "POST", f"/api/sessions/{session['id']}/prompt", {"text": "other"}, Idempotency_Key="k1"
        )
        assert (status, "Idempotency-Key" in problem["detail"]) == (422, True)
        await program.answered(session)
        await program.call("POST", f"/api/sessions/{session['id']}/complete")
        # The answer to a repetition stays the same, whatever has happened to the session.
        assert (await program.prompt(session, "once", Idempotency_Key="k1"))["id"] == first["id"]
        assert len(parrot.heard) == 1
    async with api(settings(tmp_path), parrot.installed) as program:
        assert (await program.prompt(session, "once", Idempotency_Key="k1"))["id"] == first["id"]
        assert len(parrot.heard) == 1


async def test_a_session_survives_a_restart(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start(title="Long job")
        await program.prompt(session, "work")
        await slow.is_asked.wait()
        program.daemon.stop()  # Twice: the second time does not wait for the turn.
        program.daemon.stop()
    async with api(settings(tmp_path), Parrot.answering) as program:
        assert (await program.answered(session))[-1] == ("agent", "heard: work")
        _, page = await program.call("GET", "/api/sessions?status=active&channel=api")
        assert [each["id"] for each in page["sessions"]] == [session["id"]]


async def test_a_turn_that_was_cancelled_does_not_go_on_after_a_crash(tmp_path: Path) -> None:
    """The gateway died after the commit of the cancellation, and before the turn had stopped."""
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        await program.prompt(session, "work")
        await slow.is_asked.wait()
        cancelled = entries.Status(value=SessionStatus.CANCELLED, by="owner", why="requested")
        await program.daemon.sessions.append(session["key"], [cancelled])
        program.daemon.stop()  # Twice: the second time does not wait for the turn.
        program.daemon.stop()
    again = Parrot()
    again.may_answer.set()
    async with api(settings(tmp_path), again.installed) as program:
        texts = await program.answered(session)
        assert texts == [("user", "work"), ("system", "The session was cancelled before this was answered.")]
        assert again.heard == []
        await program.call("POST", f"/api/sessions/{session['id']}/resume")
        await program.prompt(session, "more")
        assert (await program.answered(session, 2))[-1] == ("agent", "heard: more")


async def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    async with api(settings(tmp_path, api={"max_active_sessions": 50})) as program:
        made = [await program.start(title=f"Job {number} {'odd' if number % 2 else 'even'}") for number in range(7)]
        await program.call("POST", f"/api/sessions/{made[0]['id']}/complete")
        status, page = await program.call("GET", "/api/sessions?limit=2&offset=1")
        assert (page["total"], page["limit"], page["offset"]) == (7, 2, 1)
        assert [each["id"] for each in page["sessions"]] == [made[5]["id"], made[4]["id"]]
        _, page = await program.call("GET", "/api/sessions?status=completed,error")
        assert [each["id"] for each in page["sessions"]] == [made[0]["id"]]
        _, page = await program.call("GET", "/api/sessions?q=ODD")
        assert page["total"] == 3
        _, page = await program.call("GET", "/api/sessions?agent=other")
        assert page["sessions"] == []
        for wrong in ("limit=0", "limit=x", "offset=-1", "status=lost", "colour=red", "limit=1&limit=2"):
            status, problem = await program.call("GET", f"/api/sessions?{wrong}")
            assert status == 422, (wrong, problem)


async def test_tools_plans_and_approvals_are_typed_messages(tmp_path: Path) -> None:
    rocket, provider = Rocket(), scripted([TextDelta(text="I will."), launch("Mars")], [TextDelta(text="Done.")])
    async with api(settings(tmp_path), agent(provider, rocket)) as program:
        session = await program.start()
        await program.prompt(session, "go")

        async def question() -> list[dict[str, object]]:
            contents = [each["content"] for each in (await program.read(session))["messages"]]
            return [each for each in contents if each["type"] == "approval"]

        await until(question)
        (asked,) = await question()
        assert asked["decision"] is None
        path = f"/api/sessions/{session['id']}/approvals/{asked['approvalId']}"
        status, _ = await program.call("POST", path, {"decision": "perhaps"})
        assert status == 422
        status, decided = await program.call("POST", path, {"decision": "approve"})
        assert (status, decided["decision"]) == (200, "approved")
        await program.answered(session)
        messages = (await program.read(session))["messages"]
        tools = [each for each in messages if each["content"]["type"] == "tool"]
        assert [(each["role"], each["content"]["tool"]) for each in tools] == [("system", "launch")]
        assert tools[0]["content"]["args"] == {"target": "Mars"}
        assert tools[0]["content"]["result"]
        assert [each["content"]["decision"] for each in messages if each["content"]["type"] == "approval"] == [
            "approved"
        ]
        status, _ = await program.call("POST", path, {"decision": "deny"})
        assert status == 404
        assert rocket.launched == ["Mars"]


async def test_messages_after_a_position_or_a_time(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        path = f"/api/sessions/{session['id']}/messages"
        await program.prompt(session, "one")
        await program.answered(session)
        _, before = await program.call("GET", path)
        last = before["messages"][-1]
        await program.prompt(session, "two")
        await program.answered(session, 2)
        _, after = await program.call("GET", f"{path}?since={last['seq']}")
        assert [each["content"]["text"] for each in after["messages"]] == ["two", "heard: two"]
        moment = last["timestamp"].replace("+", "%2B")
        _, later = await program.call("GET", f"{path}?since={moment}")
        assert [each["content"]["text"] for each in later["messages"]] == ["two", "heard: two"]
        status, _ = await program.call("GET", f"{path}?since=yesterday")
        assert status == 422


async def test_repositories_are_checked_when_a_session_starts(tmp_path: Path) -> None:
    inside, outside = tmp_path / "src" / "app", tmp_path / "elsewhere"
    inside.mkdir(parents=True)
    outside.mkdir()
    repos = [{"name": "app", "path": inside}, {"name": "stray", "path": outside}]
    made = settings(tmp_path, repos=repos)
    made = made.model_copy(update={"gateway": made.gateway.model_copy(update={"repo_root": tmp_path / "src"})})
    async with api(made, Parrot.answering) as program:
        session = await program.start(repoId="app")
        assert session["repoId"] == "app"
        assert (await program.read(session))["repo"] == {"id": "app", "name": "app"}
        for name in ("stray", "unknown"):
            status, problem = await program.call("POST", "/api/sessions", {"repoId": name})
            assert (status, name in problem["detail"]) == (422, True)
        status, _ = await program.call("POST", "/api/sessions", {"repoId": "../app"})
        assert status == 422
        _, page = await program.call("GET", "/api/sessions?repoId=app")
        assert page["total"] == 1
        _, listed = await program.call("GET", "/api/repos")
        assert [each["id"] for each in listed["repos"]] == ["app", "stray"]


async def test_chats_of_people_are_there_too(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    async with gateway(configured, Parrot.answering) as (_, chat):
        await chat.say("my name is Ada", peer="ada")
        await chat.hear_message()
    async with api(configured, Parrot.answering) as program:
        _, page = await program.call("GET", "/api/sessions?channel=loopback")
        (session,) = page["sessions"]
        assert session["channel"] == "loopback"
        await program.prompt(session, "and from a program")
        assert (await program.answered(session, 2))[-1] == ("agent", "heard: and from a program")
        status, renamed = await program.call("PATCH", f"/api/sessions/{session['id']}", {"title": "Ada"})
        assert (status, renamed["title"]) == (200, "Ada")
        _, found = await program.call("GET", "/api/search?q=program")
        assert {hit["sessionId"] for hit in found["hits"]} == {session["id"]}
        assert [(hit["role"], hit["isArchived"]) for hit in found["hits"]] == [("agent", False), ("user", False)]
        exported = await program.request("GET", f"/api/sessions/{session['id']}/export?format=markdown")
        assert "my name is Ada" in await exported.text()
        status, _ = await program.call("POST", f"/api/sessions/{session['id']}/archive")
        assert status == 200
        status, _ = await program.call("GET", f"/api/sessions/{session['id']}")
        assert status == 404
        _, page = await program.call("GET", "/api/sessions?archived=true&q=ada")
        assert [each["id"] for each in page["sessions"]] == [session["id"]]
        _, found = await program.call("GET", "/api/search?q=program")
        assert [(hit["sessionId"], hit["isArchived"]) for hit in found["hits"]] == [(session["id"], True)] * 2
        assert found["isComplete"]
        _, page = await program.call("GET", "/api/sessions?archived=true&channel=api")
        assert page["total"] == 0
        status, back = await program.call("POST", f"/api/sessions/{session['id']}/restore")
        assert (status, back["id"]) == (200, session["id"])
        # Only `admin` sees the chats of people.
        reader = await program.token_for(TokenScope.READ, TokenScope.PROMPT, TokenScope.MANAGE)
        status, _ = await reader.call("GET", f"/api/sessions/{session['id']}")
        assert status == 404
        await program.call("POST", f"/api/sessions/{session['id']}/archive")
        _, found = await reader.call("GET", "/api/search?q=program")
        assert found["hits"] == []
        _, page = await reader.call("GET", "/api/sessions?channel=loopback")
        assert page["total"] == 0


async def test_what_a_token_sees_depends_on_its_scopes(tmp_path: Path) -> None:
    async with api(settings(tmp_path, agents={"main": {}, "ops": {}}), Parrot.answering) as program:
        own = await program.start()
        prompter = await program.token_for(TokenScope.PROMPT)
        reader = await program.token_for(TokenScope.READ)
        bound = await program.token_for(TokenScope.READ, TokenScope.PROMPT, agent="ops")
        mine = await prompter.start()
        assert [each["id"] for each in await _listed(prompter)] == [mine["id"]]
        assert {each["id"] for each in await _listed(reader)} == {own["id"], mine["id"]}
        assert await _listed(bound) == []
        status, _ = await prompter.call("GET", f"/api/sessions/{own['id']}")
        assert status == 404
        status, problem = await reader.call("POST", f"/api/sessions/{own['id']}/prompt", {"text": "hello"})
        assert (status, "prompt" in problem["detail"]) == (403, True)
        status, _ = await reader.call("POST", f"/api/sessions/{own['id']}/complete")
        assert status == 403
        status, _ = await bound.call("POST", "/api/sessions", {"agent": "main"})
        assert status == 403
        assert (await bound.start())["agent"] == "ops"
        status, _ = await prompter.call("DELETE", f"/api/sessions/{mine['id']}?permanent=true")
        assert status == 403
        status, ended = await prompter.call("DELETE", f"/api/sessions/{mine['id']}")
        assert (status, ended["status"]) == (200, "cancelled")


async def _listed(program: Api) -> list[dict[str, str]]:
    status, page = await program.call("GET", "/api/sessions")
    assert status == 200, page
    sessions: list[dict[str, str]] = page["sessions"]
    return sessions


async def test_bad_bodies_get_a_problem_document(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as program:
        session = await program.start()
        prompt = f"/api/sessions/{session['id']}/prompt"
        for body in ({}, {"text": 5}, {"text": "x", "colour": "red"}, {"text": "  "}, {"text": "x" * 200_000}):
            response = await program.request("POST", prompt, body)
            assert response.status == 422, body.keys()
            assert response.content_type == "application/problem+json"
        for body in ({"repoId": 5}, {"agent": "nobody"}, {"title": ""}, {"unknown": 1}):
            response = await program.request("POST", "/api/sessions", body)
            assert response.status == 422, body
        response = await program.request("PUT", prompt, {"text": "x"})
        assert (response.status, response.content_type) == (405, "application/problem+json")


async def test_files_go_in_and_out(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        url = f"{program.daemon.server.url}/api/files?name=notes.txt"
        uploaded = await program.http.post(
            url, data=b"buy milk", headers={**program.authorization, "Content-Type": "application/octet-stream"}
        )
        stored = await uploaded.json()
        assert uploaded.status == 200, stored
        files = [{"name": "notes.txt", "ref": stored["ref"]}, {"name": "more.txt", "data": "YnV5IGJyZWFk"}]
        status, _ = await program.call(
            "POST", f"/api/sessions/{session['id']}/prompt", {"text": "read these", "attachments": files}
        )
        assert status == 202
        await program.answered(session)
        message = (await program.read(session))["messages"][0]
        assert [each["name"] for each in message["content"]["attachments"]] == ["notes.txt", "more.txt"]
        downloaded = await program.request("GET", message["content"]["attachments"][0]["url"])
        assert (downloaded.status, await downloaded.read()) == (200, b"buy milk")
        for wrong in ({"name": "x"}, {"name": "x", "data": "%%"}, {"name": "x", "ref": "../http.token"}):
            status, _ = await program.call(
                "POST", f"/api/sessions/{session['id']}/prompt", {"text": "read", "attachments": [wrong]}
            )
            assert status == 422, wrong


async def test_the_overview_routes(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        await program.start()
        _, found = await program.call("GET", "/api/agents")
        assert [each["id"] for each in found["agents"]] == ["main"]
        _, found = await program.call("GET", "/api/status")
        assert (found["ready"], found["activeSessions"], found["maxActiveSessions"]) == (True, 1, 5)
        _, found = await program.call("GET", "/api/usage")
        assert found["total"]["inputTokens"] >= 0
        status, _ = await program.call("GET", "/api/usage?day=2026-02-31")
        assert status == 422


async def test_a_prompt_that_is_too_old_after_a_restart_is_explained(tmp_path: Path) -> None:
    slow, moment = Parrot(), datetime.now(UTC)
    async with api(settings(tmp_path), slow.installed, now=lambda: moment) as program:
        session = await program.start()
        await program.prompt(session, "first")
        await slow.is_asked.wait()
        waiting = await program.prompt(session, "second")
        program.daemon.stop()
        program.daemon.stop()
    moment += timedelta(days=30)
    async with api(settings(tmp_path), Parrot.answering, now=lambda: moment) as program:

        async def explained() -> list[str]:
            return [each["inReplyTo"] for each in (await program.read(session))["messages"] if "inReplyTo" in each]

        await until(explained)
        assert await explained() == [waiting["id"]]


async def test_the_author_of_a_prompt_and_managers_answer_the_questions_about_it(tmp_path: Path) -> None:
    """A token that has started a session must not decide for an admin, who may be allowed to do more."""
    rocket, provider = Rocket(), scripted([launch("Mars")], [TextDelta(text="Done.")], [launch("Moon")])
    async with api(settings(tmp_path), agent(provider, rocket)) as program:
        starter = await program.token_for(TokenScope.PROMPT)
        guest = await program.token_for(TokenScope.PROMPT, TokenScope.READ)
        manager = await program.token_for(TokenScope.MANAGE)
        session = await starter.start()
        for asker, wrong, right in ((program, starter, manager), (guest, starter, guest)):
            await asker.prompt(session, "go")
            await until(lambda: program.daemon.approvals.open_questions)
            (question,) = program.daemon.approvals.open_questions
            path = f"/api/sessions/{session['id']}/approvals/{question}"
            assert (await wrong.call("POST", path, {"decision": "approve"}))[0] == 403
            assert (await right.call("POST", path, {"decision": "deny"}))[0] == 200
            await until(lambda: program.daemon.lanes.busy_count == 0)
        assert rocket.launched == []


async def test_an_agent_promises_no_reminder_to_a_program(tmp_path: Path) -> None:
    """No one would get it: a program reads its session while it waits for an answer."""
    call = ToolCall(id="call1", name="remind", input={"text": "call mum", "when": "PT5M"})
    provider = scripted([call])

    def install(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda main: replace(main, provider=provider))

    async with api(settings(tmp_path), install) as program:
        session = await program.start()
        await program.prompt(session, "remind me in 5 minutes to call mum")
        await program.answered(session)
        (used,) = [
            each["content"] for each in (await program.read(session))["messages"] if each["content"]["type"] == "tool"
        ]
        assert used["isError"]
        assert "only people can be reminded" in used["result"]


async def test_sessions_are_found_by_their_chat(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as program:
        loopback = program.daemon.channels.by_identity["loopback", "default"]
        assert isinstance(loopback, LoopbackChannel)
        for name in ("ann", "bob"):
            await loopback.say("hello", peer=name, sender=Sender(id=name, is_owner=True))
            await loopback.hear_message()
        _, found = await program.call("GET", "/api/sessions?chat=ANN")
        assert [each["key"].rpartition(":")[2] for each in found["sessions"]] == ["ann"]
        _, found = await program.call("GET", "/api/sessions?chat=ann&q=hello&channel=loopback")
        assert found["total"] == 1
        _, found = await program.call("GET", "/api/sessions?chat=eve")
        assert found["total"] == 0
