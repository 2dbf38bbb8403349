"""Schedules that answer into a Telegram chat: the real daemon, with a fake Bot API server and a fake model."""

from pathlib import Path

import pytest

from config import Settings
from gateway.daemon import Daemon
from gateway.spool import ScheduleState
from tests.agent.wire import OPENAI, WireServer, serving
from tests.channels.telegram.bot_api import ADA, GROUP, FakeBotApi, refusal
from tests.channels.telegram.harness import gateway, heard, settings
from tests.polling import until
from tests.schedules.harness import START, Clock, the_schedule

BLOCKED = refusal(403, "Forbidden: bot was kicked from the supergroup chat")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def modelled(folder: Path, api: FakeBotApi, server: WireServer) -> Settings:
    """Return the settings of a gateway with Telegram and a model, whose owner is Ada."""
    tables = Settings.model_validate(
        {
            "gateway": {"data_dir": folder / "data", "owners": [f"telegram:{ADA['id']}"]},
            "providers": {"fake": server.table()},
            "agents": {"main": {"provider": "fake", "model": "m"}},
        }
    )
    changed = {"gateway": tables.gateway, "providers": tables.providers, "agents": tables.agents}
    return settings(folder, api).model_copy(update=changed)


async def until_answered(daemon: Daemon) -> None:
    async def is_answered() -> bool:
        return not (await the_schedule(daemon)).is_running and not (await daemon.status.report()).replies_waiting

    await until(is_answered)


async def test_the_answer_of_a_schedule_arrives_in_its_chat(tmp_path: Path, api: FakeBotApi, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("Nothing **new**."), OPENAI.answer("Nothing.")) as server,
        gateway(modelled(tmp_path, api, server), now=clock) as daemon,
    ):
        await api.say('/schedule add "0 13 * * *" Look at the news')
        assert "Schedule 1 is set" in (await heard(api, 1)).fields["text"]
        clock.move(daemon, hours=1)
        answer = await heard(api, 2)
        assert (answer.fields["chat_id"], answer.fields["text"]) == ("42", "Nothing <b>new</b>.")
        assert "reply_parameters" not in answer.fields  # There is no message of a person that it answers.
        await until_answered(daemon)
        await api.say("/schedule show 1")
        rows = (await heard(api, 3)).json("reply_markup")["inline_keyboard"]
        assert "/schedule run 1" in [button["callback_data"] for row in rows for button in row]
    assert "[prompt of schedule 1; no person is writing now]" in str(server.requests[0].body)


async def test_an_answer_that_cannot_be_delivered_pauses_its_schedule_and_the_owner_is_told(
    tmp_path: Path, api: FakeBotApi, clock: Clock
) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("News."), OPENAI.answer("Again.")) as server,
        gateway(modelled(tmp_path, api, server), now=clock) as daemon,
    ):
        await api.say("/whoami")  # So that the chat of the owner is known.
        await heard(api, 1)
        command = [{"type": "bot_command", "offset": 0, "length": len("/schedule@gate_bot")}]
        await api.say("/schedule@gate_bot add every 1h Look at the news", chat=GROUP, entities=command)
        assert "Schedule 1 is set" in (await heard(api, 2)).fields["text"]
        api.scripted["sendMessage"].append(BLOCKED)
        clock.move(daemon, hours=1)
        assert (await heard(api, 3)).fields["chat_id"] == str(GROUP["id"])
        await until_answered(daemon)
        clock.move(daemon, hours=1)
        notice = await heard(api, 4)
        assert notice.fields["chat_id"] == "42"
        assert "is paused: its last answer could not be delivered." in notice.fields["text"]
        row = await the_schedule(daemon)
        assert (row.state, row.due_at, row.runs) == (ScheduleState.PAUSED, None, 1)
        await api.say("/schedule@gate_bot resume 1", chat=GROUP, entities=command)
        assert "goes on" in (await heard(api, 5)).fields["text"]
        clock.move(daemon, hours=1)
        assert (await heard(api, 6)).fields["text"] == "Again."
    assert len(server.requests) == 2
    assert clock.now > START
