"""The status of a gateway with running turns."""

from dataclasses import replace
from pathlib import Path

from gateway.cli.status import render
from tests.daemon.harness import Slow, gateway, settings
from tests.observability.scrape import scrape


async def test_status_shows_running_turns_with_their_age_and_counts_waiting_messages(tmp_path: Path) -> None:
    model = Slow()
    async with gateway(settings(tmp_path)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))
        await chat.say("hello", peer="ada")
        await model.is_asked.wait()
        await chat.say("and another", peer="ada")
        facts, seen = await daemon.status.report(), await scrape(tmp_path / "data")
        model.may_answer.set()
        assert [(await chat.hear_message()).text for _ in range(2)] == ["Done.", "Done."]
    (turn,) = facts.turns
    assert (turn.channel, turn.agent, turn.session) == ("loopback", "main", "agent:main:loopback:direct:ada")
    assert (facts.turns_running, facts.messages_waiting) == (1, 1)
    assert facts.spool is not None
    assert facts.spool.messages == {"received": 1, "running": 1}
    assert any("1 turn running, 1 message waiting" in line for line in render(facts))
    assert seen.value("gatehouse_turn_oldest_seconds") > 0
    assert (seen.value("gatehouse_turns_running"), seen.value("gatehouse_queue_messages")) == (1, 1)
    assert seen.value("gatehouse_spool_messages", state="running") == 1
