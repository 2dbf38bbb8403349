"""Real coding agents from npm through the whole gateway, in the real sandbox, with a fake model server behind them."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.contract import Outbound
from gateway.sessions import entries
from tests.acp.harness import make_repo
from tests.acp.model_server import INPUT_TOKENS, OUTPUT_TOKENS, ModelServer, Reply, Request, Say, Script
from tests.acp.real_agents import RealAgent, agent_cases, app, coder, obey
from tests.channels.telegram.bot_api import ADA, TOKEN, bot_api
from tests.channels.telegram.harness import gateway as telegram_gateway
from tests.channels.telegram.harness import heard
from tests.daemon.harness import ask, gateway, replies, transcript_entries
from tests.polling import until

every_agent = pytest.mark.parametrize("agent", agent_cases())
one_agent = pytest.mark.parametrize("agent", agent_cases("claude"))


async def asked(chat: LoopbackChannel) -> Outbound:
    question = await chat.hear_message()
    assert question.text.startswith("May coder do this"), question.text
    return question


async def decide(chat: LoopbackChannel, answer: str) -> str:
    """Answer a question, and return the agent's answer of the turn."""
    await chat.say(answer)
    [reply] = await replies(chat, 1)
    return reply


def paused(word: str, until: asyncio.Event) -> Script:
    """Stop in the middle of an answer to a prompt with `word`, until the event."""

    def script(request: Request) -> Reply:
        reply = obey(request)
        return Say(text=reply.text, until=until) if word in request.text and isinstance(reply, Say) else reply

    return script


async def drafted(chat: LoopbackChannel, text: str) -> str:
    """Wait for a draft with `text`, and return it."""
    while True:
        event = await chat.hear()
        if event.how == "draft" and event.message is not None and text in event.message.text:
            return event.message.text


def processes_with(argument: str) -> list[str]:
    """Return the command lines on this machine that name `argument`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # It has ended.
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [each for each in found if argument in each]


@every_agent
async def test_text_is_streamed_and_its_usage_is_charged(tmp_path: Path, agent: RealAgent) -> None:
    may_end = asyncio.Event()
    async with ModelServer(paused("slowly", may_end)) as model, gateway(coder(tmp_path, agent, model.url)) as (_, chat):
        await chat.say("⟦say Good morning, slowly and with all due respect.⟧")
        assert "respect" not in await drafted(chat, "Good mor")
        may_end.set()
        assert (await chat.hear_message()).text == "Good morning, slowly and with all due respect."
        assert f"This session: {INPUT_TOKENS} tokens read, {OUTPUT_TOKENS} written" in await ask(chat, "/usage")


@every_agent
async def test_commands_and_edits_wait_for_approval(tmp_path: Path, agent: RealAgent) -> None:
    """Also if the settings of the repository allow everything."""
    repo = make_repo(app(tmp_path))
    agent.seduce(repo)
    async with ModelServer(obey) as model, gateway(coder(tmp_path, agent, model.url)) as (_, chat):
        await chat.say("⟦run echo fine > approved.txt⟧")
        assert "echo fine > approved.txt" in (await asked(chat)).text
        assert not (repo / "approved.txt").exists()
        await decide(chat, "yes")
        assert (repo / "approved.txt").read_text() == "fine\n"
        await chat.say("⟦run touch denied.txt⟧")
        await asked(chat)
        await decide(chat, "no")
        await chat.say(f"⟦write {repo}/notes.txt remember the milk\n⟧")
        question = await asked(chat)
        assert "notes.txt" in question.text
        assert "remember the milk" in question.text
        await decide(chat, "yes")
    assert (repo / "notes.txt").read_text() == "remember the milk\n"
    assert not (repo / "denied.txt").exists()
    written = transcript_entries(tmp_path)
    uses = [entry for entry in written if isinstance(entry, entries.ToolUse)]
    results = {entry.tool_use_id: entry for entry in written if isinstance(entry, entries.ToolResult)}
    assert [use.name for use in uses] == ["execute", "execute", "edit"]
    assert [results[use.tool_use_id].is_error for use in uses] == [False, True, False]
    [diff] = results[uses[2].tool_use_id].diffs
    assert diff.path == str(repo / "notes.txt")
    assert "+remember the milk" in diff.diff
    usages = [entry.usage for entry in written if isinstance(entry, entries.Assistant)]
    assert all(usages), "every answer has its usage"
    if agent.model:
        assert agent.model in {request.model for request in model.requests}


@every_agent
async def test_a_stopped_session_answers_again(tmp_path: Path, agent: RealAgent) -> None:
    """Whether the agent writes, waits for an approval or runs a command."""
    is_running = app(tmp_path) / "is-running"
    script = paused("forever", asyncio.Event())
    async with ModelServer(script) as model, gateway(coder(tmp_path, agent, model.url)) as (_, chat):
        await chat.say("⟦say I talk forever and ever and ever.⟧")
        await drafted(chat, "I talk")
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Stopped."
        assert (await chat.hear_message()).text.startswith("I talk")
        assert await ask(chat, "⟦say Here I am.⟧") == "Here I am."
        await chat.say("⟦run touch never-approved⟧")
        await asked(chat)
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Stopped."
        await chat.say(f"⟦run touch {is_running}; tail -f {is_running}⟧")
        await asked(chat)
        await chat.say("yes")
        await until(lambda: [each for each in processes_with(str(is_running)) if each.startswith("tail")])
        await chat.say("/stop")
        assert "Stopped." in [(await chat.hear_message()).text for _ in range(2)]
        await until(lambda: not processes_with(str(is_running)))
        assert (await ask(chat, "⟦say Here I am again.⟧")).endswith("Here I am again.")
    assert not (app(tmp_path) / "never-approved").exists()


@every_agent
async def test_the_conversation_goes_on_after_a_restart(tmp_path: Path, agent: RealAgent) -> None:
    async with ModelServer(obey) as model:
        configured = coder(tmp_path, agent, model.url)
        async with gateway(configured) as (_, chat):
            assert await ask(chat, "The word is xylophone. ⟦say I'll remember.⟧") == "I'll remember."
        model.requests.clear()
        async with gateway(configured) as (_, chat):
            assert (await ask(chat, "What was the word? ⟦say It was that.⟧")).endswith("It was that.")
        [request] = [each for each in model.requests if "What was the word" in each.text]
        assert str(request.body).count("The word is xylophone") == 1


@every_agent
async def test_an_approval_after_a_restart_takes_effect_once(tmp_path: Path, agent: RealAgent) -> None:
    async with ModelServer(obey) as model:
        configured = coder(tmp_path, agent, model.url)
        async with gateway(configured) as (_, chat):
            await chat.say("⟦run echo once >> effects.log⟧")
            await asked(chat)
        async with gateway(configured) as (_, chat):
            answer = await decide(chat, "yes")
        assert "I was restarted while coder was working." in answer
        assert (app(tmp_path) / "effects.log").read_text() == "once\n"


@every_agent
async def test_the_shell_of_an_agent_stays_in_its_sandbox(
    tmp_path: Path, agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "xylophone")
    other = make_repo(tmp_path / "repos" / "other")
    (other / "private.txt").write_text("xylophone")
    (tmp_path / "outside").mkdir()
    attempts = f"""
echo started
echo hacked > {tmp_path}/outside/written
echo hacked > ../written
ln -s {tmp_path}/outside link && echo hacked > link/written
cat {other}/private.txt ../other/private.txt {tmp_path}/data/control.token
ls {tmp_path}/data
cat /proc/1/environ /proc/self/environ /proc/*/environ
cat /etc/shadow
kill -9 {os.getpid()}
env
echo ended
"""
    async with ModelServer(obey) as model, gateway(coder(tmp_path, agent, model.url)) as (_, chat):
        await chat.say("⟦run sh attempts.sh > report.txt 2>&1⟧")
        (app(tmp_path) / "attempts.sh").write_text(attempts)
        await asked(chat)
        await decide(chat, "yes")
    report = (app(tmp_path) / "report.txt").read_text()
    assert report.startswith("started\n")
    assert report.endswith("ended\n")
    assert "xylophone" not in report
    assert "sessions" not in report, "the data directory is not there"
    assert not [each for each in (tmp_path, tmp_path / "outside", tmp_path / "repos") if (each / "written").exists()]


@one_agent
async def test_a_button_on_telegram_approves_a_command(tmp_path: Path, agent: RealAgent) -> None:
    async with bot_api() as api, ModelServer(obey) as model:
        channels = {"web": {"enabled": False}, "terminal": {"enabled": False}}
        telegram = {"token": TOKEN, "api_base": api.url, "allow": [ADA["id"]]}
        async with telegram_gateway(coder(tmp_path, agent, model.url, channels={**channels, "telegram": telegram})):
            said = await api.say("⟦run echo fine > approved.txt⟧")
            question = await heard(api, 1)
            assert "echo fine > approved.txt" in question.fields["text"]
            yes = question.json("reply_markup")["inline_keyboard"][0][0]
            await api.press({**said["message"], "text": question.fields["text"]}, yes["callback_data"])
            assert "Approved" in (await heard(api, 2)).fields["text"]
            assert (await heard(api, 3)).fields["text"].startswith("Result:")
    assert (app(tmp_path) / "approved.txt").read_text() == "fine\n"
