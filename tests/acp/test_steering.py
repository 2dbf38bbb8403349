"""Busy mode `steer` with a coding agent that takes more input while it works, and with one that does not."""

from pathlib import Path

import pytest

from gateway.sessions import entries
from tests.acp.harness import coder, needs_sandbox, received
from tests.daemon.harness import gateway, transcript_entries
from tests.polling import until

pytestmark = needs_sandbox


@pytest.mark.parametrize("options", [["steer=yes"], []])
async def test_a_message_is_handed_over_between_two_steps(tmp_path: Path, options: list[str]) -> None:
    """If the program refuses it, the same turn answers it with another prompt."""
    configured = coder(tmp_path, options, preset="codex", mode="ask", channel={"busy": "steer"})
    async with gateway(configured) as (_, chat):
        await chat.say("wait go ;; tool other look ;; wait on ;; say First.", event_id="1")
        await until(lambda: "session/prompt" in received(tmp_path))
        await chat.say("say Second.", event_id="2")
        (tmp_path / "repos" / "app" / "go").touch()
        await until(lambda: "_session/steering" in received(tmp_path))
        (tmp_path / "repos" / "app" / "on").touch()
        answer = (await chat.hear_message()).text
        assert answer == ("[steered: say Second.]First." if options else "First.Second.")
    assert received(tmp_path).count("session/prompt") == (1 if options else 2)
    turns = [entry.turn for entry in transcript_entries(tmp_path) if isinstance(entry, entries.User)]
    assert len(turns) == 2
    assert turns[0] == turns[1]
