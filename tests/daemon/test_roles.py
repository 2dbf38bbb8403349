"""Roles in a running gateway: tools, commands, agents, models, budgets and approvals follow the role at once."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from config import Settings
from gateway.agent.models import ModelInfo, Prices
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.tools import Toolbox, ToolContext, tool
from gateway.contract import Address, PeerKind, Sender
from gateway.conversation import ToolCall, ToolMessage, ToolOutcome
from gateway.daemon import Daemon
from gateway.errors import CannotStart
from gateway.turns.agents import ConfiguredAgent
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import ask, gateway, message, replies, say_and_hear, settings
from tests.polling import until
from tests.skills.harness import add_skill

ANN, BOB = Sender(id="ann", name="Ann"), Sender(id="bob", name="Bob")
OWNER = Sender(id="olga", name="Olga", is_owner=True)
CLOSED: dict[str, object] = {"tools": ["current_time"]}


def house(folder: Path, loopback: dict[str, object] | None = None, **tables: object) -> Settings:
    channels = {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"dm_policy": "open", "group_policy": "open", "require_mention": False, **(loopback or {})},
    }
    return settings(folder, channels=channels, **tables)


@dataclass
class Tools:
    """Two tools with the names of built-in ones. `read_file` runs until `leave` is set."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    ran: list[str] = field(default_factory=list)

    def toolbox(self) -> Toolbox:
        async def read_file(_context: ToolContext) -> str:
            """Read."""
            self.ran.append("read_file")
            self.entered.set()
            await self.leave.wait()
            return "read"

        async def current_time(_context: ToolContext) -> str:
            """Tell the time."""
            self.ran.append("current_time")
            return "noon"

        return Toolbox([tool(read_file), tool(current_time)])

    def given(self, provider: ScriptedProvider, info: ModelInfo | None = None) -> Callable[[Daemon], None]:
        """Return a function that gives all agents these tools and this model, and `info` about it."""
        toolbox = self.toolbox()

        def change(agent: ConfiguredAgent) -> ConfiguredAgent:
            agent = replace(agent, provider=provider, toolbox=toolbox)
            return agent if info is None else replace(agent, model="m", info=info, about=lambda _name: info)

        def apply(daemon: Daemon) -> None:
            for agent in list(daemon.agents):
                daemon.agents.replace(agent.name, change)

        return apply


def uses(*names: str) -> list[Chunk | Exception]:
    return [ToolCall(id=f"call{number}", name=name, input={}) for number, name in enumerate(names)]


def says(text: str = "Done.", tokens: int = 0) -> list[Chunk | Exception]:
    return [TextDelta(text=text), *([TokenUsage(input_tokens=tokens, output_tokens=0)] if tokens else [])]


def offered(provider: ScriptedProvider) -> list[list[str]]:
    return [[spec.name for spec in prompt.tools] for prompt in provider.prompts]


def outcomes(provider: ScriptedProvider) -> list[ToolOutcome]:
    last = provider.prompts[-1].messages[-1]
    assert isinstance(last, ToolMessage)
    return list(last.outcomes)


async def test_a_reload_takes_a_tool_away_between_two_calls_of_a_turn(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file", "read_file", "current_time"), says())
    async with gateway(house(tmp_path), tools.given(provider)) as (daemon, chat):
        await chat.say("go", sender=ANN, peer="ann")
        await tools.entered.wait()
        await daemon.reload(house(tmp_path, roles={"guest": CLOSED}))
        tools.leave.set()
        assert (await chat.hear_message()).text == "Done."
    assert tools.ran == ["read_file", "current_time"]
    assert [each.is_error for each in outcomes(provider)] == [False, True, False]
    assert "not for the person who asks" in outcomes(provider)[1].output
    assert offered(provider) == [["read_file", "current_time"], ["current_time"]]


async def test_a_role_that_is_given_by_command_holds_in_the_running_turn(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file", "read_file"), says())
    configured = house(tmp_path, {"dm_policy": "pairing"}, roles={"kids": CLOSED})
    async with gateway(configured, tools.given(provider)) as (daemon, chat):
        code = (await ask(chat, "hi", sender=ANN)).split("code: ")[1][:9]
        assert "is approved" in await ask(chat, f"/pair approve {code}", sender=OWNER)
        await chat.hear_message()  # The welcome.
        await chat.say("go", sender=ANN, peer="ann")
        await tools.entered.wait()
        assert await ask(chat, "/pair role loopback:ann kids", sender=OWNER) == (
            "Ann (loopback:ann) has the role kids from now on."
        )
        tools.leave.set()
        assert (await chat.hear_message()).text == "Done."
        assert tools.ran == ["read_file"]
        assert "loopback:ann  Ann (kids)" in await ask(chat, "/pair", sender=OWNER)
        assert "Tools: current_time." in await ask(chat, "/whoami", sender=ANN)
        assert "no role nobody" in await ask(chat, "/pair role loopback:ann nobody", sender=OWNER)
        assert "command line" in await ask(chat, "/pair role loopback:ann owner", sender=OWNER)
        assert "Only an owner" in await ask(chat, "/pair role loopback:ann member", sender=ANN)
        # The role is gone from the settings: rights never grow by that.
        await daemon.reload(house(tmp_path, {"dm_policy": "pairing"}))
        tools.given(provider)(daemon)
        assert "kids, which no longer exists" in await ask(chat, "/whoami", sender=ANN)
        assert await ask(chat, "go", sender=ANN) == "Done."
        assert offered(provider)[-1] == []


async def test_a_reload_gives_tools_and_skills_to_a_running_turn_and_takes_them_back(tmp_path: Path) -> None:
    add_skill(tmp_path / "skills", "counting", "Counts things.")
    skills = {"folders": [tmp_path / "skills"]}
    roles = {"guest": {"tools": ["current_time", "read_file"]}}
    read = ToolCall(id="read", name="read_file", input={"path": "/skills/counting/SKILL.md"})
    use = ToolCall(id="use", name="use_skill", input={"name": "counting"})
    provider = ScriptedProvider([read], [use], [read], says())
    reloads: list[dict[str, Any]] = [roles, {}, roles, roles]

    class Reloading:
        """The model. The roles of each step are in force when it answers."""

        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            await daemon.reload(house(tmp_path, skills=skills, roles=reloads.pop(0)))
            async for chunk in provider.stream(prompt):
                yield chunk

    async with gateway(house(tmp_path, skills=skills, roles=roles)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=Reloading()))
        assert await ask(chat, "go", sender=ANN) == "Done."
    assert [{"use_skill", "write_file"} <= {*names} for names in offered(provider)] == [False, False, True, False]
    results = [each.outcomes[0] for each in provider.prompts[-1].messages if isinstance(each, ToolMessage)]
    assert [each.is_error for each in results] == [True, False, True]


async def test_a_code_can_be_approved_with_a_role(tmp_path: Path) -> None:
    configured = house(tmp_path, {"dm_policy": "pairing"}, roles={"kids": {}})
    async with gateway(configured) as (_, chat):
        code = (await ask(chat, "hi", sender=ANN)).split("code: ")[1][:9]
        assert "no role boss" in await ask(chat, f"/pair approve {code} boss", sender=OWNER)
        approved = await ask(chat, f"/pair approve {code.replace('-', '')} kids", sender=OWNER)
        assert approved == "Ann (loopback:ann) is approved with the role kids and has been notified."
        await chat.hear_message()
        assert "kids." in await ask(chat, "/whoami", sender=ANN)
    async with gateway(configured) as (_, chat):
        assert "kids." in await ask(chat, "/whoami", sender=ANN)


async def test_the_role_of_a_chat_holds_for_people_without_their_own(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(says())
    roles = {"team": {**CLOSED, "chats": ["loopback:room"]}, "lead": {"people": ["loopback:bob"]}}
    async with gateway(house(tmp_path, roles=roles), tools.given(provider)) as (_, chat):
        for sender in (ANN, BOB):
            await ask(chat, "hello", sender=sender, group="room")
        await ask(chat, "hello", sender=ANN)
    assert offered(provider) == [["current_time"], *[["read_file", "current_time"]] * 2]


async def _is_waiting(daemon: Daemon, messages: int = 1) -> bool:
    return daemon.lanes.waiting == messages


async def test_several_people_in_one_turn_have_the_narrowest_rights(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file"), uses("read_file"), says())
    configured = house(tmp_path, {"busy": "steer"}, roles={"kids": {**CLOSED, "people": ["loopback:bob"]}})
    async with gateway(configured, tools.given(provider)) as (daemon, chat):
        await chat.say("go", sender=ANN, peer="room", kind=PeerKind.GROUP)
        await tools.entered.wait()
        await chat.say("me too", sender=BOB, peer="room", kind=PeerKind.GROUP)
        await until(lambda: _is_waiting(daemon))
        tools.leave.set()
        while (await chat.hear_message()).text != "Done.":
            pass
    assert tools.ran == ["read_file"]
    assert offered(provider)[:2] == [["read_file", "current_time"], ["current_time"]]


@pytest.mark.parametrize(("busy", "answers"), [("steer", ["For Ann."]), ("collect", ["For Ann.", "Done."])])
@pytest.mark.parametrize("limit", [{"agents": ["kids"]}, {"tokens_per_day": 1}, {"tokens_per_turn": 1}], ids=str)
async def test_a_message_does_not_stop_the_turn_of_another_person(
    tmp_path: Path, busy: str, answers: list[str], limit: dict[str, object]
) -> None:
    tools, provider = Tools(), ScriptedProvider(says("First.", 10), uses("read_file"), says("For Ann.", 10), says())
    roles = {"child": {**limit, "people": ["loopback:bob"]}}
    configured = house(tmp_path, {"busy": busy}, agents={"kids": {}}, roles=roles)
    async with gateway(configured, tools.given(provider)) as (daemon, chat):
        await ask(chat, "hello", sender=ANN, group="room")
        await chat.say("go", sender=ANN, peer="room", kind=PeerKind.GROUP)
        await tools.entered.wait()
        await chat.say("and this", sender=ANN, peer="room", kind=PeerKind.GROUP)
        await chat.say("me too", sender=BOB, peer="room", kind=PeerKind.GROUP)
        await until(lambda: _is_waiting(daemon, 2))
        tools.leave.set()
        assert await replies(chat, len(answers)) == answers
        # Bob's message has a turn of its own, with his own limits.
        (answer,) = await replies(chat, 1)
    assert answer == "Done." if "agents" not in limit else "doesn't answer people with the role child" in answer


async def test_commands_and_help_follow_the_role(tmp_path: Path) -> None:
    roles = {"guest": {"commands": ["new", "restart"], "approve": "none"}}
    async with gateway(house(tmp_path, roles=roles)) as (daemon, chat):
        shown = [line.split()[0] for line in (await ask(chat, "/help", sender=ANN)).splitlines() if line[0] == "/"]
        assert shown == ["/new", "/approvals", "/approvals", "/stop", "/whoami", "/restart", "/start", "/help"]
        assert await ask(chat, "/status", sender=ANN) == (
            "People with the role guest can't use /status. /help lists what you can use."
        )
        assert "can't use /workspace" in await ask(chat, "/workspace", sender=ANN)
        assert await ask(chat, "hello", sender=ANN)
        assert "can't use /retry" in await ask(chat, "/retry", sender=ANN)
        assert "can't use /undo" in await ask(chat, "/undo", sender=ANN)
        assert "Only an owner decides who has access." in await ask(chat, "/pair", sender=ANN)
        await daemon.reload(house(tmp_path))
        assert "Session 1" in await ask(chat, "/status", sender=ANN)
        assert "Only an owner may restart" in await ask(chat, "/restart", sender=ANN)


async def test_help_follows_the_role_of_a_server(tmp_path: Path) -> None:
    room = Address(channel="loopback", kind=PeerKind.GROUP, peer="room")
    asked = message("/help", "e1", address=room, sender=ANN, guild="guild")
    roles = {"team": {"commands": ["new"], "chats": ["loopback:guild"]}}
    async with gateway(house(tmp_path, roles=roles)) as (_, chat):
        await chat.submit(asked)
        shown = (await chat.hear_message()).text
    assert "/new" in shown
    assert "/status" not in shown


async def test_a_role_may_moderate_a_shared_chat(tmp_path: Path) -> None:
    roles = {"mod": {"moderate": True, "people": ["loopback:bob"]}}
    async with gateway(house(tmp_path, roles=roles), Tools().given(ScriptedProvider(says()))) as (_, chat):
        await ask(chat, "hello", sender=ANN, group="room")
        assert "only an owner may clear" in await ask(chat, "/clear", sender=ANN, group="room")
        assert "forgotten" in (await ask(chat, "/clear", sender=BOB, group="room")).lower()


async def test_an_agent_of_the_role_answers_and_others_do_not(tmp_path: Path) -> None:
    agents: dict[str, object] = {"kids": {}, "coder": {}}
    roles = {"child": {"agents": ["kids"], "people": ["loopback:ann"]}}
    quiet = Tools().given(ScriptedProvider(says()))
    async with gateway(house(tmp_path, agents=agents, roles=roles), quiet) as (daemon, chat):
        assert "Agents: kids." in await ask(chat, "/whoami", sender=ANN)
        await ask(chat, "hello", sender=ANN)
        assert "Agent: kids" in await ask(chat, "/status", sender=ANN)
        assert "no agent coder" in await ask(chat, "/agent coder", sender=ANN)
        # In a group, somebody else has started the session.
        await ask(chat, "hello", sender=BOB, group="room")
        refused = await ask(chat, "hello", sender=ANN, group="room")
        assert "doesn't answer people with the role child. Send /new to start a session with one that does." in refused
        assert "with kids" in await ask(chat, "/new", sender=ANN, group="room")
        assert await ask(chat, "hello", sender=ANN, group="room") == "Done."
        # A running turn ends as soon as its agent is not for the person any more.
        tools, provider = Tools(), ScriptedProvider(uses("read_file"), says())
        tools.given(provider)(daemon)
        await chat.say("go", sender=BOB, peer="bob")
        await tools.entered.wait()
        await daemon.reload(house(tmp_path, agents=agents, roles={"guest": {"agents": ["kids"]}}))
        assert "The agent main doesn't answer people with the role guest" in (await chat.hear_message()).text


async def test_a_repository_of_the_role_may_be_used_and_others_may_not(tmp_path: Path) -> None:
    for name in ("app", "site"):
        (tmp_path / name).mkdir()
    repos = [{"id": name, "path": tmp_path / name} for name in ("app", "site")]

    def limited(*workspaces: str) -> Settings:
        return house(tmp_path, repos=repos, roles={"guest": {"workspaces": workspaces, "commands": ["*", "workspace"]}})

    tools, provider = Tools(), ScriptedProvider(uses("read_file"), says())
    async with gateway(limited("site"), tools.given(provider)) as (daemon, chat):
        assert "There is no workspace app" in await ask(chat, "/workspace app", sender=ANN)
        assert "now work in site" in await ask(chat, "/workspace site", sender=ANN)
        await chat.say("go", sender=ANN, peer="ann")
        await tools.entered.wait()
        await daemon.reload(limited("app"))
        tools.given(provider)(daemon)
        assert "This session works in site, which is not for people" in (await chat.hear_message()).text
        assert "Send /new" in await ask(chat, "hello", sender=ANN)
        await ask(chat, "/new", sender=ANN)
        assert await ask(chat, "hello", sender=ANN) == "Done."
    assert len(provider.prompts) == 2


async def test_a_model_of_the_role_answers_and_others_are_no_fallbacks(tmp_path: Path) -> None:
    provider = ScriptedProvider(says())

    def about(name: str) -> ModelInfo:
        return ModelInfo(name=name if "/" in name else f"house/{name}", context_tokens=100_000)

    def give(daemon: Daemon) -> None:
        daemon.agents.replace(
            "main",
            lambda main: replace(
                main,
                provider=provider,
                model="big",
                models=("big", "mid", "x/small"),
                about=about,
                info=about("big"),
            ),
        )

    providers = {"x": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    roles = {"child": {"models": ["x/*"], "people": ["loopback:ann"]}}
    async with gateway(house(tmp_path, providers=providers, roles=roles), give) as (daemon, chat):
        assert await ask(chat, "hello", sender=BOB) == "Done."
        assert await ask(chat, "hello", sender=ANN) == "Done."
        assert "You can choose one of: x/small, default." in await ask(chat, "/model big", sender=ANN)
        await daemon.reload(house(tmp_path, providers=providers, roles={"guest": {"models": ["x/other"]}}))
        give(daemon)
        assert "No model of the agent main is for you" in await ask(chat, "hello", sender=BOB)
    asked = [(prompt.model, sorted(prompt.excluded)) for prompt in provider.prompts]
    assert asked == [(None, []), ("x/small", ["house/big", "house/mid"])]


async def test_a_reload_takes_a_fallback_away_from_a_running_turn(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file"), says())

    def give(daemon: Daemon) -> None:
        tools.given(provider, ModelInfo(name="house/big", context_tokens=100_000))(daemon)

        def about(name: str) -> ModelInfo:
            return ModelInfo(name=f"house/{name}", context_tokens=100_000)

        models = ("big", "small")
        daemon.agents.replace("main", lambda main: replace(main, model="big", models=models, about=about))

    providers = {"house": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    async with gateway(house(tmp_path, providers=providers), give) as (daemon, chat):
        await chat.say("go", sender=ANN, peer="ann")
        await tools.entered.wait()
        await daemon.reload(house(tmp_path, providers=providers, roles={"guest": {"models": ["house/big"]}}))
        tools.leave.set()
        assert (await chat.hear_message()).text == "Done."
    assert [sorted(prompt.excluded) for prompt in provider.prompts] == [[], ["house/small"]]


async def test_a_summary_on_request_stays_within_models_and_budget(tmp_path: Path) -> None:
    provider = ScriptedProvider(says(tokens=100))

    def about(name: str) -> ModelInfo:
        return ModelInfo(name=f"house/{name}", context_tokens=100_000)

    def give(daemon: Daemon) -> None:
        def change(main: ConfiguredAgent) -> ConfiguredAgent:
            models = ("big", "small")
            return replace(main, provider=provider, model="big", models=models, about=about, info=about("big"))

        daemon.agents.replace("main", change)

    child = {"models": ["house/small"], "people": ["loopback:ann"], "tokens_per_day": 600}
    providers = {"house": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    async with gateway(house(tmp_path, providers=providers, roles={"child": child}), give) as (_, chat):
        for _number in range(5):
            await ask(chat, "hello", sender=ANN)
        assert "Summarised" in await ask(chat, "/compact", sender=ANN)
        assert {(prompt.model, *prompt.excluded) for prompt in provider.prompts} == {("small", "house/big")}
        assert "600 of 600 tokens" in await ask(chat, "hello", sender=ANN)
        assert "600 of 600 tokens" in await ask(chat, "/compact", sender=ANN)
    assert len(provider.prompts) == 6


async def test_the_budget_of_a_role_replaces_the_general_limits(tmp_path: Path) -> None:
    info = ModelInfo(
        name="house/m", context_tokens=100_000, prices=Prices(input=1_000.0, output=0, cached_input=0, cache_write=0)
    )
    provider, tools = ScriptedProvider(says(tokens=1_000)), Tools()
    roles: dict[str, object] = {"child": {"tokens_per_day": 1_500, "people": ["loopback:ann"]}}
    async with gateway(house(tmp_path, roles=roles), tools.given(provider, info)) as (daemon, chat):
        assert [await ask(chat, "hello", sender=ANN) for _ in range(2)] == ["Done.", "Done."]
        assert "2,000 of 1,500 tokens" in (text := await ask(chat, "hello", sender=ANN))
        assert "roles.child.tokens_per_day" in text
        await daemon.reload(house(tmp_path, roles={"child": {"tokens_per_day": 0, "people": ["loopback:ann"]}}))
        tools.given(provider, info)(daemon)
        assert await ask(chat, "hello", sender=ANN) == "Done."
        await daemon.reload(house(tmp_path, roles={"child": {"cost_per_day": 2.5, "people": ["loopback:ann"]}}))
        tools.given(provider, info)(daemon)
        assert "a cost of 3.00 of 2.50" in await ask(chat, "hello", sender=ANN)
        assert "0.00 of 2.50 can still be spent" in await ask(chat, "/usage", sender=ANN)


async def test_a_role_decides_who_may_approve(tmp_path: Path) -> None:
    """Without the right, a call in a direct chat is denied at once. In a group, a person with the right decides."""
    tools, provider = Tools(), ScriptedProvider(uses("current_time"), says(), uses("current_time"), says())
    roles = {
        "child": {"approve": "none", "ask": ["current_*"], "people": ["loopback:ann"]},
        "lead": {"approve": "chat", "people": ["loopback:bob"]},
    }
    async with gateway(house(tmp_path, roles=roles), tools.given(provider)) as (_, chat):
        assert await ask(chat, "go", sender=ANN) == "Done."
        assert "No one may approve it" in outcomes(provider)[0].output
        question = await ask(chat, "go", sender=ANN, group="room")
        assert "An owner, reply yes or no" in question
        assert await ask(chat, "/approve", sender=ANN, group="room") == (
            "People with the role child can't approve tool calls."
        )
        assert tools.ran == []
        assert await ask(chat, "/approve", sender=BOB, group="room") == "Approved: current_time will run."
        assert (await chat.hear_message()).text == "Done."
    assert tools.ran == ["current_time"]


@pytest.mark.parametrize(
    ("role", "reason"),
    [({"approve": "none"}, "No one may approve it in the chat"), ({"tools": ["current_time"]}, "read_file is not for")],
)
async def test_a_question_ends_once_no_answer_can_help(tmp_path: Path, role: dict[str, object], reason: str) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file"), says())
    tools.leave.set()
    async with gateway(house(tmp_path, roles={"guest": {"ask": ["read_file"]}}), tools.given(provider)) as (_, chat):
        assert (await say_and_hear(chat, "go", sender=ANN)).is_question
    # It waits over the restart, and ends with the reload.
    async with gateway(house(tmp_path, roles={"guest": {"ask": ["read_file"]}}), tools.given(provider)) as (
        daemon,
        chat,
    ):
        await until(lambda: daemon.approvals.open_questions)
        await daemon.reload(house(tmp_path, roles={"guest": {"ask": ["read_file"], **role}}))
        assert (await chat.hear_message()).text == "Done."
        assert not daemon.approvals.open_questions
    assert tools.ran == []
    assert reason in outcomes(provider)[0].output


async def test_a_tool_that_begins_to_need_approval_does_not_run_without(tmp_path: Path) -> None:
    tools, provider = Tools(), ScriptedProvider(uses("read_file", "current_time"), says())
    async with gateway(house(tmp_path), tools.given(provider)) as (daemon, chat):
        await chat.say("go", sender=ANN, peer="ann")
        await tools.entered.wait()
        await daemon.reload(house(tmp_path, roles={"guest": {"ask": ["current_time"]}}))
        tools.leave.set()
        assert (await chat.hear_message()).text == "Done."
    assert tools.ran == ["read_file"]
    assert "needs a person's approval" in outcomes(provider)[1].output


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        ({"commands": ["fly"]}, "roles.x.commands: `fly` matches no command. /help lists the commands."),
        ({"commands": ["reset"]}, "roles.x.commands: `reset` matches no command. Write it as `new`."),
        ({"tools": ["raed_file"]}, "roles.x.tools: unknown tool raed_file."),
        ({"ask": ["fly*"]}, "roles.x.ask: unknown tool fly*."),
    ],
)
async def test_roles_with_unknown_names_change_nothing(tmp_path: Path, role: dict[str, object], sentence: str) -> None:
    async with gateway(house(tmp_path)) as (daemon, chat):
        with pytest.raises(CannotStart) as refused:
            await daemon.reload(house(tmp_path, roles={"x": role}))
        assert sentence in str(refused.value)
        assert "guest." in await ask(chat, "/whoami", sender=ANN)
