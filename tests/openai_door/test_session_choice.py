"""Which session a request belongs to."""

from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.contract import TokenScope
from gateway.sessions import SessionStatus
from tests.daemon.harness import settings
from tests.openai_door.harness import DoorTest, door

TWO_AGENTS: Any = {"agents": {"main": {}, "coder": {}}}


async def names(test: DoorTest, *sent: dict[str, Any]) -> list[str]:
    """Send a request with each of these fields, and return the titles of the sessions that they made."""
    for fields in sent:
        await test.openai.responses.create(**{"model": "main", "input": "hello", "store": False, **fields})
    return sorted(session.title for session in test.sessions())


async def test_without_a_name_nothing_is_stored(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        assert await names(test, {}, {}) == []
        assert [len(prompt.messages) for prompt in test.model.prompts] == [1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": "trip"},
        {"conversation": {"id": "trip"}},
        {"extra_headers": {"X-Gatehouse-Session": "trip"}},
        {"model": "main@trip"},
        {"prompt_cache_key": "trip"},
        {"safety_identifier": "trip"},
        {"user": "trip"},
    ],
)
async def test_each_way_names_the_same_session(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with door(tmp_path) as test:
        assert await names(test, fields, {"model": "main@trip"}) == ["trip"]
        assert len(test.model.prompts[1].messages) == 3, "it has a memory"


async def test_the_ways_have_an_order(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "conversation": "by conversation",
        "extra_headers": {"X-Gatehouse-Session": "by header"},
        "model": "main@by suffix",
        "prompt_cache_key": "by cache key",
        "safety_identifier": "by identifier",
        "user": "by user",
    }
    expected = [name["X-Gatehouse-Session"] if isinstance(name, dict) else name for name in fields.values()]
    async with door(tmp_path) as owner, owner.client(session="by token") as test:
        found = []
        while fields:
            await names(test, fields)
            found.append(test.sessions()[-1].title)
            del fields[next(iter(fields))]
        await names(test, {})
        titles = {session.title for session in test.sessions()}
        assert titles == {*(name.removeprefix("main@") for name in expected), "by token"}
        for number, name in enumerate([*expected, "by token"]):
            session = next(each for each in test.sessions() if each.title == name.removeprefix("main@"))
            assert session.messages == 2, f"request {number} went there, and no other"


async def test_two_tokens_with_the_same_name_do_not_meet(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as one, owner.client(TokenScope.ADMIN) as other:
        for test in (owner, one, other):
            await test.ask("hello", "main@trip")
            assert len(test.model.prompts[-1].messages) == 1
        assert len({session.scope for session in owner.sessions()}) == 3


async def test_agents_with_the_same_name_do_not_meet(tmp_path: Path) -> None:
    async with door(tmp_path, **TWO_AGENTS) as test:
        test.model.install(test.daemon, "coder")
        await test.ask("hello", "main@trip")
        await test.ask("hello", "coder@trip")
        assert [len(prompt.messages) for prompt in test.model.prompts] == [1, 1]
        assert sorted(session.agent for session in test.sessions()) == ["coder", "main"]


async def test_a_token_that_is_bound_to_an_agent_sees_only_that(tmp_path: Path) -> None:
    async with door(tmp_path, **TWO_AGENTS) as owner, owner.client(agent="coder") as test:
        owner.model.install(owner.daemon, "coder")
        assert [model.id async for model in owner.openai.models.list()] == ["main", "coder"]
        assert [model.id async for model in test.openai.models.list()] == ["coder"]
        assert (await test.openai.models.retrieve("coder")).owned_by == "gatehouse"
        assert (await test.openai.models.retrieve("coder@trip")).id == "coder@trip"
        assert await test.ask("hello", "coder") == "You said: hello"
        for model in ("main", "main@trip"):
            with pytest.raises(openai.NotFoundError):
                await test.ask("hello", model)
            with pytest.raises(openai.NotFoundError):
                await test.openai.models.retrieve(model)


@pytest.mark.parametrize("name", ["x" * 201, "two\nlines", "\x7f"])
async def test_a_name_is_short_and_printable(tmp_path: Path, name: str) -> None:
    async with door(tmp_path) as test:
        for fields in ({"conversation": name}, {"user": name}, {"model": f"main@{name}"}):
            with pytest.raises(openai.BadRequestError, match="printable"):
                await names(test, fields)
        with pytest.raises(openai.BadRequestError, match="missing"):
            await names(test, {"model": "main@"})
        assert test.sessions() == []


async def test_names_with_special_characters_stay_apart(tmp_path: Path) -> None:
    odd = ["a/b", "a%2Fb", "a:b", "../../etc", "a#2", "ä", "日本", "a b", "A B", "agent:main:main"]
    async with door(tmp_path) as test:
        for name in odd:
            await test.ask("hello", f"main@{name}")
            assert len(test.model.prompts[-1].messages) == 1
        assert len(test.sessions()) == len(odd)


async def test_the_id_of_a_session_names_it(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        started = await test.program.start(title="From the session API")
        await test.program.prompt(started, "hello")
        await test.program.answered(started)
        response = await test.openai.chat.completions.with_raw_response.create(
            model=f"main@{started['id']}", messages=[{"role": "user", "content": "and again"}]
        )
        assert response.headers["X-Gatehouse-Session"] == started["id"]
        assert await test.program.answered(started, 2) == [
            ("user", "hello"),
            ("agent", "You said: hello"),
            ("user", "and again"),
            ("agent", "You said: and again"),
        ]
        assert test.sessions() == []


async def test_an_owner_can_join_a_chat(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as program:
        chat: Any = owner.daemon.channels.by_identity["loopback", "default"]
        await chat.say("hello")
        await chat.hear_message()
        (found,) = (await owner.program.call("GET", "/api/sessions"))[1]["sessions"]
        await owner.ask("from a program", f"main@{found['id']}")
        assert owner.model.said() == ["hello", "You said: hello", "from a program"]
        await program.ask("mine", f"main@{found['id']}")
        assert owner.model.said() == ["mine"], "for a program that may not see the chat, the id is a name like any"


async def test_a_program_without_rights_gets_a_session_of_its_own(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as program:
        started = await owner.program.start()
        await program.ask("hello", f"main@{started['id']}")
        (own,) = owner.sessions()
        assert own.id != started["id"]
        assert own.created_by
        assert await owner.program.texts(started) == []


async def test_the_agent_of_a_session_has_to_be_the_model(tmp_path: Path) -> None:
    async with door(tmp_path, **TWO_AGENTS) as test:
        started = await test.program.start(agent="coder")
        with pytest.raises(openai.BadRequestError, match="`coder`") as caught:
            await test.ask("hello", f"main@{started['id']}")
        assert caught.value.param == "model"


async def test_a_session_that_has_ended_is_followed_by_a_new_one(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        await test.ask("hello", "main@trip")
        (session,) = test.sessions()
        await test.daemon.sessions.set_status(session.key, SessionStatus.COMPLETED)
        await test.ask("hello", "main@trip")
        assert [len(prompt.messages) for prompt in test.model.prompts] == [1, 1]
        with pytest.raises(openai.ConflictError) as caught:
            await test.ask("hello", f"main@{session.id}")
        assert caught.value.code == "session_ended"


async def test_sessions_of_the_door_are_not_counted_or_ended(tmp_path: Path) -> None:
    async with door(tmp_path, api={"max_active_sessions": 1, "idle_minutes": 1}) as test:
        for number in range(3):
            await test.ask("hello", f"main@{number}")
        await test.program.start()
        await test.daemon.programs.complete_idle()
        assert {session.status for session in test.sessions()} == {SessionStatus.ACTIVE}


async def test_a_session_of_a_token_works_in_its_repository(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    configured = settings(tmp_path, repos=[{"name": "tool", "path": tmp_path / "tool"}])
    async with door(tmp_path, configured) as owner, owner.client(repo="tool") as test:
        for model in ("main", "main@trip"):
            await test.ask("hello", model)
            assert '"tool"' in owner.model.prompts[-1].system
        (session,) = owner.sessions()
        assert session.repo == "tool"
        await test.ask("hello", f"main@{session.id}")
        assert len(owner.model.prompts[-1].messages) == 3
