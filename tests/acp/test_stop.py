"""`/stop` while a coding agent works, and messages that come while it does."""

from pathlib import Path
from uuid import uuid4

import pytest

from channels.loopback import LoopbackChannel
from gateway.sessions import SessionStatus, TurnOutcome, entries
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.turns.recorder import NOT_RUN
from tests.acp.harness import coder, effects, limited, needs_sandbox, processes, received, sessions_of
from tests.daemon.harness import ask, gateway, say_and_hear, transcript_entries
from tests.polling import until

pytestmark = needs_sandbox


async def stop(chat: LoopbackChannel) -> str:
    """Stop the turn, and return the parts of the answer that come with it."""
    await chat.say("/stop")
    texts = [(await chat.hear_message()).text]
    while not any(text.startswith("Stopped") for text in texts):
        texts.append((await chat.hear_message()).text)
    return "\n".join(texts)


async def prompted(folder: Path, times: int = 1) -> None:
    """Wait until the agents have got so many prompts."""
    await until(lambda: received(folder).count("session/prompt") == times)


async def test_a_stop_cancels_the_prompt_and_the_same_process_answers_the_next_message(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (daemon, chat):
        assert await ask(chat, "say One.") == "One."
        await chat.say("say I begin. ;; hang ;; say Never.")
        await prompted(tmp_path, 2)
        while (heard := await chat.hear()).message is None or heard.message.text != "I begin.":
            pass
        await chat.say("/stop")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Stopped.", "I begin."}
        assert await ask(chat, "recall") == "say One. | say I begin. ;; hang ;; say Never."
        assert await ask(chat, "say Two.") == "Two."
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]
    assert received(tmp_path).count("session/cancel") == 1
    assert received(tmp_path).count("start") == 1, "the same process goes on"
    ends = [entry.outcome for entry in transcript_entries(tmp_path) if isinstance(entry, entries.TurnEnd)]
    assert ends == [TurnOutcome.ANSWERED, TurnOutcome.STOPPED, TurnOutcome.ANSWERED, TurnOutcome.ANSWERED]


async def test_an_agent_that_ignores_the_cancel_is_killed_and_started_again_with_its_memory(tmp_path: Path) -> None:
    mark = uuid4().hex
    options = ["ignore=cancel,eof,sigterm", "children=2", "once", f"mark={mark}"]
    async with gateway(coder(tmp_path, options)) as (_, chat):
        assert await ask(chat, "say One.") == "One."
        before = processes(mark)
        await chat.say("wait never")
        await prompted(tmp_path, 2)
        await stop(chat)
        assert await ask(chat, "recall") == "say One. | wait never"
        assert not set(before) & set(processes(mark))
    assert processes(mark) == []
    assert received(tmp_path).count("session/load") == 1
    assert "sigterm" in received(tmp_path)


async def test_an_agent_that_dies_of_the_cancel_is_started_again(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, ["die=cancel", "once"])) as (daemon, chat):
        await chat.say("hang")
        await prompted(tmp_path)
        await stop(chat)
        assert await ask(chat, "recall") == "hang"
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]


async def test_a_stop_closes_the_question_and_the_agent_hears_of_the_cancel(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        await chat.say("ask execute touch danger ;; say Never.")
        question = await chat.hear_message()
        assert question.is_question
        await stop(chat)
        assert await ask(chat, question.buttons[0].command) == "This question is no longer open."
        assert await ask(chat, "say Next.") == "Next."
    assert not (tmp_path / "repos" / "app" / "danger").exists()
    assert effects(tmp_path) == []
    assert received(tmp_path).count("start") == 1


async def test_a_permission_asked_after_the_cancel_reaches_no_person(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        await chat.say("ask_after_cancel execute touch danger")
        await prompted(tmp_path)
        await stop(chat)
        answer = await say_and_hear(chat, "say Next.")
        assert (answer.text, answer.is_question) == ("Next.", False)
    assert effects(tmp_path) == []


async def test_a_stop_during_the_start_lets_the_next_message_use_the_program(tmp_path: Path) -> None:
    configured = coder(tmp_path, ["silent=new", "once"], start_timeout=1.0)
    async with gateway(configured) as (daemon, chat):
        await chat.say("say Never.")
        await until(lambda: "session/new" in received(tmp_path))
        await stop(chat)
        await until(lambda: not daemon.coding_agents.running)
        assert (await ask(chat, "say Hello.")).endswith("Hello.")
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]


async def test_a_program_that_was_stopped_while_it_started_is_loaded_later(tmp_path: Path) -> None:
    configured = coder(tmp_path, ["garbage=new"], max_active=1)
    async with gateway(configured) as (daemon, chat):
        await chat.say("hang")  # It may have got the prompt by the time of the stop.
        await until(lambda: "start" in received(tmp_path))
        await stop(chat)
        assert (await ask(chat, "say Hello.")).endswith("Hello.")
        assert await ask(chat, "say From another chat.", sender=None, group="team") == "From another chat."
        assert "say Hello." in await ask(chat, "recall")
        assert daemon.coding_agents.running == {"coder": 1}
    assert received(tmp_path).count("session/load") == 1


async def test_the_time_of_a_turn_ends_it_and_the_session_goes_on(tmp_path: Path) -> None:
    configured = limited(coder(tmp_path), turn_timeout=2.0)
    async with gateway(configured) as (daemon, chat):
        assert await ask(chat, "say One.") == "One."
        late = await ask(chat, "say Slow. ;; hang")
        assert late == "Slow.\n\n*This took longer than 2 seconds, so I stopped.*"
        assert await ask(chat, "say Two.") == "Two."
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]
    assert received(tmp_path).count("start") == 1


@pytest.mark.parametrize("busy", ["followup", "collect", "interrupt", "steer"])
async def test_messages_while_it_works_wait_or_interrupt_as_the_busy_mode_says(tmp_path: Path, busy: str) -> None:
    async with gateway(coder(tmp_path, channel={"busy": busy})) as (_, chat):
        await chat.say("tool other look ;; wait go ;; say First.", event_id="1")
        await prompted(tmp_path)
        await chat.say("say Second.", event_id="2")
        await chat.say("say Third.", event_id="3")
        (tmp_path / "repos" / "app" / "go").touch()
        texts: list[str] = []
        while not texts or "Third." not in texts[-1]:
            texts.append((await chat.hear_message()).text)
        if busy in {"followup", "steer"}:  # It cannot be steered, so the messages wait.
            assert texts == ["First.", "Second.", "Third."]
        elif busy == "collect":
            assert texts == ["First.", "Second.Third."]
        else:
            assert "First." not in texts
    assert received(tmp_path).count("start") == 1


async def test_only_the_call_that_was_asked_about_counts_as_not_run(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_daemon, chat):
        await say_and_hear(chat, "open read a.txt ;; ask execute true")
        await ask(chat, "/stop")
        await until(lambda: any(isinstance(each, entries.TurnEnd) for each in transcript_entries(tmp_path)))
        results = [each.output for each in transcript_entries(tmp_path) if isinstance(each, entries.ToolResult)]
        assert results == [INTERRUPTED, NOT_RUN]
