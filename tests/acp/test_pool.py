"""How many coding agents run, when they end, and what the next one knows of the conversation."""

import asyncio
import base64
import json
from pathlib import Path
from uuid import uuid4

from config import Settings
from gateway.contract import Sender
from gateway.sessions import entries
from tests.acp.harness import coder, limited, needs_sandbox, processes, received
from tests.acp.scripted_agent import PICTURE
from tests.daemon.harness import ask, gateway, say_and_hear, transcript_entries
from tests.files.samples import offered
from tests.polling import until

pytestmark = needs_sandbox

ADA, BOB, EVE = (Sender(id=name, name=name, is_owner=True) for name in ("ada", "bob", "eve"))


def changed(configured: Settings, **agent: object) -> Settings:
    """Return the settings with other values for the coding agent."""
    agents = {**configured.agents, "coder": configured.agents["coder"].model_copy(update=agent)}
    return configured.model_copy(update={"agents": agents})


async def test_the_program_that_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, max_active=2)) as (daemon, chat):
        for sender in (ADA, BOB, ADA, EVE):
            assert await ask(chat, "say Hello.", sender=sender) == "Hello."
        assert daemon.coding_agents.running == {"coder": 2}
        assert received(tmp_path).count("start") == 3
        await ask(chat, "say Still there.", sender=ADA)
        assert received(tmp_path).count("start") == 3, "Bob's was ended"
        assert await ask(chat, "recall", sender=BOB) == "say Hello."


async def test_a_session_waits_while_all_programs_work_and_is_told(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, max_active=1)) as (_, chat):
        await chat.say("wait go ;; say First.", peer="ada", sender=ADA)
        await until(lambda: "session/prompt" in received(tmp_path))
        await chat.say("say Second.", peer="bob", sender=BOB)
        told = "*Another session of coder must finish first. I start this one as soon as there is room.*"
        while (heard := await chat.hear()).message is None or heard.message.text != told:
            pass
        (tmp_path / "repos" / "app" / "go").touch()
        assert {(await chat.hear_message()).text for _ in range(2)} == {"First.", "Second."}


async def test_a_session_gets_the_room_of_one_that_is_stopped(tmp_path: Path) -> None:
    """The stopped program had not obeyed yet when the other session looked, and no session looked again."""
    async with gateway(coder(tmp_path, max_active=1)) as (_, chat):
        await chat.say("hang", peer="ada", sender=ADA)
        await until(lambda: "session/prompt" in received(tmp_path))
        await chat.say("say Second.", peer="bob", sender=BOB)
        while (heard := await chat.hear()).message is None or "must finish first" not in heard.message.text:
            pass
        await chat.say("/stop", peer="ada", sender=ADA)
        async with asyncio.timeout(20):
            while (await chat.hear_message()).text != "Second.":
                pass


async def test_a_session_that_waits_for_room_takes_no_slot(tmp_path: Path) -> None:
    """The one that has the room was approved, and could not go on: the other one had the only slot."""
    async with gateway(limited(coder(tmp_path, max_active=1), max_parallel_turns=1)) as (_, chat):
        await say_and_hear(chat, "ask execute true ;; say First.", sender=ADA)
        await chat.say("say Second.", peer="bob", sender=BOB)
        while (heard := await chat.hear()).message is None or "must finish first" not in heard.message.text:
            pass
        await chat.say("yes", peer="ada", sender=ADA)
        async with asyncio.timeout(20):
            while (await chat.hear_message()).text != "Second.":
                pass


async def test_undone_turns_are_not_given_to_the_next_program(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        await ask(chat, "say One.")
        await ask(chat, "say Secret.")
        await ask(chat, "/undo")
        answer = await ask(chat, "recall ;; context")
        assert "nothing" in answer
        assert "One." in answer
        assert "Secret" not in answer
        await ask(chat, "/clear")
        assert "One." not in await ask(chat, "context ;; recall")
    assert received(tmp_path).count("session/new") == 3


async def test_a_retry_runs_the_message_again_without_its_first_answer(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        await ask(chat, "say One.")
        await ask(chat, "say Twice. ;; recall ;; context")
        answer = await ask(chat, "/retry")
        assert "say One." in answer
        assert answer.count("Twice.") == 1


async def test_the_home_of_a_deleted_session_is_removed(tmp_path: Path) -> None:
    mark = uuid4().hex
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (_, chat):
        await ask(chat, "say One.")
        asked = await ask(chat, "/session delete 1")
        assert processes(mark), asked
        await ask(chat, "/session delete 1 yes")
        await until(lambda: not processes(mark))
        await until(lambda: not received(tmp_path))


async def test_changed_settings_apply_to_the_next_turn(tmp_path: Path) -> None:
    configured = coder(tmp_path, mode="edit")
    async with gateway(configured) as (daemon, chat):
        assert await ask(chat, "modes") == "edit"
        daemon.live.settings = changed(configured, mode="ask")
        assert await ask(chat, "modes ;; recall") == "askmodes"
    assert received(tmp_path).count("start") == 2


async def test_the_model_is_an_option_of_the_agent(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, ["modes=config"], model="large")) as (_, chat):
        assert await ask(chat, "say Hello.") == "Hello."
        assert received(tmp_path).count("session/set_config_option") == 1
    async with gateway(coder(tmp_path, ["modes=config"], model="huge")) as (_, chat):
        assert "can't use the model `huge`. It offers: `small`, `large`." in await ask(chat, "say Hello.")


async def test_reports_of_tools_survive_reused_ids_and_missing_ends(tmp_path: Path) -> None:
    script = [
        *("think Hm.", "tool_id same", "tool other a", "tool other b", "orphan alone", "plan Look;Do", "tool_id x"),
        *("open execute sleep", "usage 1200 34", "late Too late.", "say Done."),
    ]
    async with gateway(coder(tmp_path)) as (_, chat):
        assert await ask(chat, " ;; ".join(script)) == "Done."
        assert await ask(chat, "say Next.") == "Next."
        assert "1,200" in await ask(chat, "/usage") or "1.2k" in await ask(chat, "/usage")
    written = transcript_entries(tmp_path)
    calls = [entry for entry in written if isinstance(entry, entries.ToolUse)]
    results = [entry for entry in written if isinstance(entry, entries.ToolResult)]
    assert len({call.tool_use_id for call in calls}) == len(calls) == len(results) == 4
    [plan] = [entry for entry in written if isinstance(entry, entries.Plan)]
    assert [step.content for step in plan.steps] == ["Look", "Do"]
    answers = [entry for entry in written if isinstance(entry, entries.Assistant) and entry.usage is not None]
    assert answers[0].usage is not None
    assert (answers[0].usage.input_tokens, answers[0].usage.output_tokens) == (1200, 34)


async def test_files_of_people_are_readable_for_the_agent(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        chat.files["F"] = b"The content."
        await chat.say("run cat /attachments/*", attachments=[offered(name="notes.zip")])
        assert "The content." in (await chat.hear_message()).text


async def test_an_answer_without_end_is_stopped(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        await chat.say(f"endless {'word ' * 1000}")
        while "*The agent wrote too much at once, so I stopped it." not in (await chat.hear_message()).text:
            pass


async def test_a_flood_of_errors_does_not_disturb_the_turn(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        assert (await say_and_hear(chat, "flood ;; say Fine.")).text == "Fine."
        failed = await say_and_hear(chat, "exit 1 the end")
        assert failed.is_failure
        assert len(failed.details) < 5_000


async def test_the_program_of_a_removed_agent_is_ended(tmp_path: Path) -> None:
    mark = uuid4().hex
    configured = coder(tmp_path, [f"mark={mark}"])
    async with gateway(configured) as (daemon, chat):
        await ask(chat, "say One.")
        agents = {name: agent for name, agent in configured.agents.items() if name != "coder"}
        await daemon.reload(configured.model_copy(update={"agents": agents, "bindings": ()}))
        await until(lambda: not processes(mark))


async def test_a_picture_reaches_the_agent_as_a_block(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        chat.files["F"] = base64.b64decode(PICTURE)
        await chat.say("context", attachments=[offered(name="p.png")])
        others = json.loads((await chat.hear_message()).text)
    assert [block["type"] for block in others] == ["text"], "the picture is the last block"
