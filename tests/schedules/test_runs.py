"""Schedules in the whole gateway, by a clock that the test moves: when they run, and what reaches chat and model."""

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gateway.contract import OutboundKind, Sender
from gateway.daemon import Daemon
from gateway.spool import RunState, ScheduleState
from tests.agent.wire import OPENAI, Call, serving
from tests.daemon.harness import delivered, gateway
from tests.polling import until
from tests.schedules.harness import ADA, OPEN, SCOPE, START, Clock, runs_of, scheduled, the_schedule, told

DAILY = '/schedule add "0 13 * * *" Look at the news and tell me'


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_schedule_asks_the_model_at_its_time_and_the_chat_gets_the_answer(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("Nothing new.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        answer = await told(chat, DAILY)
        assert answer.text == (
            "Schedule 1 is set. It runs on Monday, 16 November 2020, 13:00 UTC, then cron 0 13 * * *. "
            "/schedules lists all."
        )
        assert not server.requests
        clock.move(daemon, hours=1)
        heard = await chat.hear_message()
        assert (heard.text, heard.kind, heard.session) == ("Nothing new.", OutboundKind.REPLY, None)
        await delivered(daemon)
        row = await the_schedule(daemon)
        assert (row.due_at, row.ran_for) == (START + timedelta(hours=25), START + timedelta(hours=1))
        (run,) = await runs_of(daemon)
        assert (run.state, run.session) == (RunState.DONE, SCOPE)
        assert run.tokens > 0
    (message,) = [each for each in server.requests[0].body["messages"] if each["role"] == "user"]
    assert message["content"] == "[prompt of schedule 1; no person is writing now]\nLook at the news and tell me"


async def test_a_schedule_has_a_session_of_its_own_that_a_person_can_resume(tmp_path: Path, clock: Clock) -> None:
    replies = [OPENAI.answer(text) for text in ("Hi.", "News.", "Again.", "About that...")]
    async with serving(OPENAI, *replies) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, "hello")
        await told(chat, DAILY)
        for text in ("News.", "Again."):
            clock.move(daemon, days=1)
            assert (await chat.hear_message()).text == text
        active = daemon.sessions.active(SCOPE)
        assert active is not None
        assert active.number == 1
        (run, _) = await runs_of(daemon)
        assert run.session == f"{SCOPE}#2"
        assert "Schedule 1 (Look at the news" in (await told(chat, "/sessions")).text
        await told(chat, "/session resume 2")
        await told(chat, "what do you mean?")
    texts = [each["content"] for each in server.requests[3].body["messages"] if each["role"] == "assistant"]
    assert texts == ["News.", "Again."]


async def test_with_the_session_of_the_chat_a_schedule_continues_the_conversation(tmp_path: Path, clock: Clock) -> None:
    replies = [OPENAI.answer(text) for text in ("Hi.", "News.")]
    async with serving(OPENAI, *replies) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, "hello")
        await told(chat, "/schedule add in 30m session=chat Look at the news")
        clock.move(daemon, minutes=30)
        heard = await chat.hear_message()
        assert (heard.text, heard.session) == ("News.", 1)
        assert (await the_schedule(daemon)).state is ScheduleState.ENDED
    assert [each["role"] for each in server.requests[1].body["messages"][1:]] == ["user", "assistant", "user"]


async def test_commands_in_a_prompt_are_not_executed(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("I can't.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add in 30m /restart")
        clock.move(daemon, minutes=30)
        assert (await chat.hear_message()).text == "I can't."
    assert "/restart" in server.requests[0].body["messages"][-1]["content"]


@pytest.mark.parametrize(("missed", "answers"), [("once", ["Late."]), ("skip", [])])
async def test_a_time_that_was_missed_runs_once_or_not_at_all(
    tmp_path: Path, clock: Clock, missed: str, answers: list[str]
) -> None:
    async with serving(OPENAI, OPENAI.answer("Late."), OPENAI.answer("On time.")) as server:
        async with gateway(scheduled(tmp_path, server), now=clock) as (_, chat):
            await told(chat, f'/schedule add "0 13 * * *" missed={missed} Look')
        clock.now += timedelta(days=3)
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            for text in answers:
                assert (await chat.hear_message()).text == text
            await until_due(daemon, START + timedelta(days=3, hours=1))
            states = [run.state for run in await runs_of(daemon)]
            assert states == ([RunState.DONE] if answers else [RunState.SKIPPED])
    if answers:
        assert "(This was due on Monday, 16 November 2020, 13:00 UTC.)" in str(server.requests[0].body)


async def until_due(daemon: Daemon, at: datetime) -> None:
    """Wait until the schedule is due at that time, and no run of it is under way."""

    async def is_due() -> bool:
        row = await the_schedule(daemon)
        return row.due_at == at and not row.is_running

    await until(is_due)


async def until_idle(daemon: Daemon, clock: Clock) -> None:
    """Wait until nothing is due, and no run is under way."""

    async def is_idle() -> bool:
        row = await the_schedule(daemon)
        return not row.is_running and row.due_at is not None and row.due_at > clock.now

    await until(is_idle)


async def until_run(daemon: Daemon, state: RunState) -> None:
    async def has_run() -> bool:
        return state in {run.state for run in await runs_of(daemon)}

    await until(has_run)


async def test_a_clock_that_jumps_repeats_and_drops_no_run(tmp_path: Path, clock: Clock) -> None:
    replies = [OPENAI.answer(str(number)) for number in range(4)]
    async with serving(OPENAI, *replies) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, '/schedule add "0 13 * * *" Look')
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "0"
        await delivered(daemon)
        clock.move(daemon, hours=-2)  # It is 11:00 again.
        await until_due(daemon, START + timedelta(hours=25))
        clock.move(daemon, hours=2)
        clock.move(daemon, hours=24)
        assert (await chat.hear_message()).text == "1"
    assert len(server.requests) == 2


async def test_summer_time_neither_skips_nor_doubles_a_run(tmp_path: Path, clock: Clock) -> None:
    clock.now = START.replace(month=10, day=24)  # The night before clocks go back in Berlin.
    replies = [OPENAI.answer(str(number)) for number in range(4)]
    async with serving(OPENAI, *replies) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, '/schedule add "30 2 * * *" zone=Europe/Berlin Look')
        for hours in (12.5, 1, 1, 22, 1):  # 02:30 summer time, 02:30 winter time, 03:30, 01:30, 02:30
            clock.move(daemon, hours=hours)
            await until_idle(daemon, clock)
        await delivered(daemon)
    assert len(server.requests) == 2


async def test_runs_do_not_overlap(tmp_path: Path, clock: Clock) -> None:
    may_answer = asyncio.Event()
    async with (
        serving(OPENAI, [may_answer, *OPENAI.answer("Done.")]) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 5m Look")
        clock.move(daemon, minutes=5)
        await server.asked(1)
        clock.move(daemon, minutes=5)
        await until_run(daemon, RunState.SKIPPED)
        may_answer.set()
        assert (await chat.hear_message()).text == "Done."
        assert len(server.requests) == 1


async def test_pausing_resuming_running_and_deleting(tmp_path: Path, clock: Clock) -> None:
    replies = [OPENAI.answer(str(number)) for number in range(4)]
    async with serving(OPENAI, *replies) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, DAILY)
        assert "is paused" in (await told(chat, "/schedule pause 1")).text
        assert "paused already" in (await told(chat, "/schedule pause 1")).text
        clock.move(daemon, days=2)
        assert "paused ·" in (await told(chat, "/schedules")).text
        await chat.say("/schedule run 1", peer="ada", sender=ADA)
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Schedule 1 runs now.", "0"}
        await delivered(daemon)
        assert (await the_schedule(daemon)).state is ScheduleState.PAUSED
        assert (await told(chat, "/schedule resume 1")).text == "Schedule 1 goes on."
        assert (await the_schedule(daemon)).due_at == START + timedelta(days=2, hours=1)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "1"
        await delivered(daemon)
        history = (await told(chat, "/schedule history 1")).text.splitlines()
        assert [line.split(" · ")[1:3] for line in history[1:]] == [["done", "session 1"], ["done", "session 1"]]
        shown = await told(chat, "/schedule show 1")
        assert [each.command for each in shown.buttons] == [
            *("/schedule run 1", "/schedule pause 1", "/schedule delete 1", "/schedule history 1"),
        ]
        assert (await told(chat, "/schedule delete 1")).text == "Schedule 1 is deleted."
        assert "no schedules here" in (await told(chat, "/schedules")).text
        clock.move(daemon, days=9)
        assert "no schedule 1 here" in (await told(chat, "/schedule run 1")).text
    assert len(server.requests) == 2


async def test_a_schedule_is_shown_with_its_options(tmp_path: Path, clock: Clock) -> None:
    async with gateway(scheduled(tmp_path), now=clock) as (_, chat):
        await told(chat, "/schedule add daily 8:00 session=chat missed=skip jitter=5m url=http://127.0.0.1/ Tell me")
        shown = (await told(chat, "/schedule show 1")).text
        assert "\nCheck: http://127.0.0.1/\n" in shown
        options = ("writes into the session of this chat", "skips times that were missed", "runs up to 5 min late")
        assert f"\nOptions: {', '.join(options)}\n" in shown
        ran = (await told(chat, "/schedule run 1")).text
        assert ran.startswith("Schedule 1 runs now. You hear from it if its check finds something.")


async def test_an_unknown_zone_is_refused_with_an_example(tmp_path: Path, clock: Clock) -> None:
    async with gateway(scheduled(tmp_path), now=clock) as (_, chat):
        assert (await told(chat, "/schedule add daily 8:00 zone=Mars/Olympus Tell me")).text == (
            "This system does not know the time zone 'Mars/Olympus'. Write it like Europe/Berlin."
        )


async def test_deliver_sends_the_text_without_a_model(tmp_path: Path, clock: Clock) -> None:
    async with serving(OPENAI) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await told(chat, "/schedule add in 30m deliver=yes Take your pills!")
        clock.move(daemon, minutes=30)
        heard = await chat.hear_message()
        assert (heard.text, heard.kind) == ("Take your pills!", OutboundKind.NOTICE)
        (run,) = await runs_of(daemon)
        assert run.state is RunState.DELIVERED
    assert not server.requests


async def test_a_failing_schedule_tells_its_owner_once_and_again_when_it_works(tmp_path: Path, clock: Clock) -> None:
    broken = [OPENAI.refusal(401, "invalid_api_key") for _ in range(3)]
    async with (
        serving(OPENAI, *broken, OPENAI.answer("News.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, DAILY)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text.startswith("Schedule 1 (Look at the news and tell me) has failed: ")
        for failures, minutes in ((1, 1), (2, 5), (3, 15)):
            row = await the_schedule(daemon)
            assert (row.failures, row.due_at) == (failures, clock.now + timedelta(minutes=minutes))
            clock.move(daemon, minutes=minutes)
            await server.asked(failures + 1)
            await until_idle(daemon, clock)
        assert {(await chat.hear_message()).text for _ in range(2)} == {
            "Schedule 1 (Look at the news and tell me) works again.",
            "News.",
        }
        row = await the_schedule(daemon)
        assert (row.failures, row.due_at) == (0, START + timedelta(hours=25))


async def test_a_person_without_the_right_makes_no_schedule_and_a_role_can_grant_it(
    tmp_path: Path, clock: Clock
) -> None:
    bob, eve = Sender(id="bob", name="Bob"), Sender(id="eve", name="Eve")
    roles = {"planner": {"people": ["loopback:bob"], "commands": ["schedule *"]}}
    async with gateway(scheduled(tmp_path, channels=OPEN, roles=roles), now=clock) as (_, chat):
        assert "Only owners" in (await told(chat, DAILY, sender=eve)).text
        assert "Schedule 1 is set" in (await told(chat, DAILY, sender=bob)).text
        assert "no schedules here" in (await told(chat, "/schedules")).text


async def test_a_schedule_is_paused_when_its_maker_loses_the_right(tmp_path: Path, clock: Clock) -> None:
    bob = Sender(id="bob", name="Bob")
    roles = {"planner": {"people": ["loopback:bob"], "commands": ["schedule *"]}}
    async with serving(OPENAI) as server:
        async with gateway(scheduled(tmp_path, server, channels=OPEN, roles=roles), now=clock) as (_, chat):
            await told(chat, DAILY, sender=bob)
            await told(chat, "/whoami")  # So that the chat of the owner is known.
        clock.now += timedelta(hours=1)
        async with gateway(scheduled(tmp_path, server, channels=OPEN), now=clock) as (daemon, chat):
            heard = await chat.hear_message()
            assert heard.address.peer == "ada"
            assert "of Bob is paused: people with the role guest can't make schedules." in heard.text
            assert (await the_schedule(daemon)).state is ScheduleState.PAUSED
    assert not server.requests


async def test_the_agent_makes_a_schedule_after_an_approval_and_a_schedule_makes_none(
    tmp_path: Path, clock: Clock
) -> None:
    call = json.dumps({"text": "Look at the news", "when": "0 13 * * *", "act": True})
    script = [
        OPENAI.answer(calls=[Call("remind", [call], id="1")]),
        OPENAI.answer("It is set."),
        OPENAI.answer(calls=[Call("remind", [call], id="2")]),
        OPENAI.answer("I tried."),
    ]
    async with serving(OPENAI, *script) as server, gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
        await chat.say("every day at one, tell me the news", peer="ada", sender=ADA)
        assert (await chat.hear_message()).is_question
        assert not await daemon.spool.schedules()
        await chat.say("yes", peer="ada", sender=ADA)
        while (await chat.hear_message()).text != "It is set.":
            pass
        assert (await the_schedule(daemon)).about.prompt == "Look at the news"
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).is_question  # Its people may approve what it wants to do.
        await chat.say("/approve", peer="ada", sender=ADA)
        while (await chat.hear_message()).text != "I tried.":
            pass
        await the_schedule(daemon)
    assert "A schedule can't make schedules" in str(server.requests[3].body)


async def test_a_budget_of_tokens_stops_the_runs_of_a_day(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("One."), OPENAI.answer("Two.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h tokens_per_day=1 Look")
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "One."
        await delivered(daemon)
        clock.move(daemon, hours=1)
        assert "waits until tomorrow: its budget of today is used up" in (await chat.hear_message()).text
        clock.move(daemon, hours=1)
        await until_idle(daemon, clock)
        clock.move(daemon, hours=12)
        assert (await chat.hear_message()).text == "Two."
    assert len(server.requests) == 2


async def test_deleting_the_session_of_a_schedule_lets_the_next_run_start_another(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("One."), OPENAI.answer("Two.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, DAILY)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "One."
        await delivered(daemon)
        await told(chat, "/session delete 1")
        await told(chat, "/session delete 1 yes")
        assert [run.session for run in await runs_of(daemon)] == [""]
        clock.move(daemon, days=1)
        assert (await chat.hear_message()).text == "Two."
        assert [run.session for run in await runs_of(daemon)] == [f"{SCOPE}#2", ""]
