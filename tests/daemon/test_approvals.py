"""Tools that ask: the turn stops, a person answers, and the turn goes on, over restarts too."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.access.guests import Person
from gateway.agent.protocol import TextDelta
from gateway.agent.tools import Toolbox, ToolContext, tool
from gateway.contract import Outbound, OutboundKind, PeerKind, Sender, Verdict
from gateway.conversation import Json, ToolCall, ToolMessage
from gateway.daemon import Daemon
from gateway.sessions.entries import Approval, ToolResult, TurnEnd
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.spool import InboxState, Spool, StartTurn
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import accepted, begin_a_session, gateway, leave, settings, transcript_entries
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.polling import until

ADA, BOB = Sender(id="ada", name="Ada"), Sender(id="bob", name="Bob")
OWNER = Sender(id="olga", name="Olga", is_owner=True)


def house(folder: Path, **keys: object) -> Settings:
    made = settings(folder, channels={"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": OPEN})
    return made.model_copy(update={"gateway": made.gateway.model_copy(update=keys)})


OPEN = {"dm_policy": "open", "group_policy": "open"}


async def asked(chat: LoopbackChannel) -> Outbound:
    question = await chat.hear_message()
    assert question.text.startswith("May I use launch?"), question
    return question


def decisions(folder: Path) -> list[str | None]:
    return [entry.decision for entry in transcript_entries(folder) if isinstance(entry, Approval)]


async def states(folder: Path) -> list[InboxState]:
    async with await Spool.open(folder / "data") as spool:
        return [row.state for row in (await spool.recover()).inbox]


@pytest.mark.parametrize(("answer", "runs"), [("yes", 1), (" Yes! ", 1), ("no", 0), ("/approve", 1), ("/deny", 0)])
async def test_the_answer_decides_whether_the_tool_runs(tmp_path: Path, answer: str, runs: int) -> None:
    rocket, provider = Rocket(), scripted([TextDelta(text="I will."), launch("Mars")])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        assert question.kind is OutboundKind.NOTICE
        assert '  target: "Mars"' in question.text
        assert [button.label for button in question.buttons] == ["Yes", "No"]
        assert rocket.launched == []
        await chat.say(answer, sender=ADA, peer="ada")
        said = [(await chat.hear_message()).text for _ in range(2)]
    assert said == ["Approved: launch will run." if runs else "Denied: launch won't run.", "I will.\n\nDone."]
    assert len(rocket.launched) == runs
    outcome = provider.prompts[1].messages[-1]
    assert isinstance(outcome, ToolMessage)
    assert outcome.outcomes[0].is_error is (runs == 0)
    assert decisions(tmp_path) == [None, "approved" if runs else "denied"]


async def test_a_button_answers_its_own_question(tmp_path: Path) -> None:
    rocket = Rocket()
    step = [launch("Mars", 1), ToolCall(id="call2", name="look", input={}), launch("Venus", 3)]
    async with gateway(house(tmp_path), agent(scripted(step), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        first = await asked(chat)
        await chat.say(first.buttons[0].command, sender=ADA, peer="ada")
        heard = [await chat.hear_message(), await chat.hear_message()]
        (second,) = [message for message in heard if message.buttons]
        assert rocket.launched == [], "everything is asked before anything runs"
        await chat.say(first.buttons[0].command, sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "This was already approved."
        await chat.say(second.buttons[1].command, sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Denied: launch won't run.", "Done."}
        await chat.say(second.buttons[0].command, sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "This was already denied."
    assert rocket.launched == ["Mars"]


async def test_a_question_that_times_out_counts_as_no_and_the_model_is_told(tmp_path: Path) -> None:
    rocket, provider = Rocket(), scripted([launch("Mars")])
    # A turn's own time does not run while it waits.
    async with gateway(house(tmp_path, approval_timeout=3.0, turn_timeout=2.9), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        assert (await chat.hear_message()).text == "Done."
        await chat.say(question.buttons[0].command, sender=ADA, peer="ada")
        assert "has expired" in (await chat.hear_message()).text
    assert rocket.launched == []
    outcome = provider.prompts[1].messages[-1]
    assert isinstance(outcome, ToolMessage)
    assert outcome.outcomes[0].output == "The person was asked and did not answer within 3 s, so it was not run."


async def test_a_restart_keeps_the_question_open_and_does_not_ask_again(tmp_path: Path) -> None:
    rocket = Rocket()
    provider = scripted([launch("Mars")])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        await chat.say("and then?", sender=ADA, peer="ada")
    assert await states(tmp_path) == [InboxState.WAITING, InboxState.RECEIVED]
    for _ in range(4):  # More often than a turn may be begun.
        async with gateway(house(tmp_path), agent(provider, rocket)) as (daemon, chat):
            status = ""
            while "0 turns running, 1 waiting for approval, 1 message waiting." not in status:
                await chat.say("/status", sender=ADA, peer="ada")
                status = (await chat.hear_message()).text
                assert "Waiting for your approval: may I use launch?" in status
            assert (await daemon.status.report()).turns_awaiting_approval == 1
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say(question.buttons[0].command, sender=ADA, peer="ada")
        said = [(await chat.hear_message()).text for _ in range(3)]
    assert said == ["Approved: launch will run.", "Done.", "Done."]
    assert rocket.launched == ["Mars"]
    assert decisions(tmp_path) == [None, "approved"]


async def test_an_impossible_call_is_not_run_after_a_restart(tmp_path: Path) -> None:
    rocket = Rocket()
    broken = ToolCall(id="call2", name="look", input={}, fault="The arguments were cut off.")
    provider = scripted([launch("Mars"), broken])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("yes", sender=ADA, peer="ada")
        assert [(await chat.hear_message()).text for _ in range(2)] == ["Approved: launch will run.", "Done."]
    results = [entry.output for entry in transcript_entries(tmp_path) if isinstance(entry, ToolResult)]
    assert results == ["launched at Mars", "The arguments were cut off."]


async def test_a_turn_that_waits_for_approval_delays_neither_other_turns_nor_the_shutdown(tmp_path: Path) -> None:
    rocket = Rocket()
    provider = ScriptedProvider([launch("Mars")], [TextDelta(text="Hello Bob.")])
    began = asyncio.get_running_loop().time()
    config = house(tmp_path, max_parallel_turns=1, shutdown_timeout=3600.0)
    async with gateway(config, agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        await chat.say("hello", sender=BOB, peer="bob")
        assert (await chat.hear_message()).text == "Hello Bob."
    assert asyncio.get_running_loop().time() - began < 20
    assert await states(tmp_path) == [InboxState.WAITING]


async def test_stopping_a_turn_that_waits_for_approval_records_a_result_for_every_call(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(house(tmp_path), agent(scripted([launch("Mars"), launch("Io", 2)]), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        await chat.say("/stop", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "Stopped."
        await chat.say(question.buttons[0].command, sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "This question is no longer open."
        await chat.say("yes", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "Done."
    entries = transcript_entries(tmp_path)
    results = [entry for entry in entries if isinstance(entry, ToolResult)]
    assert [result.tool_use_id for result in results] == ["call1", "call2"]
    assert all("not run" in result.output for result in results)
    assert [entry.outcome for entry in entries if isinstance(entry, TurnEnd)] == ["stopped", "answered"]
    assert rocket.launched == []


async def test_in_a_group_only_the_asker_or_an_owner_can_answer(tmp_path: Path) -> None:
    rocket = Rocket()

    async def say(text: str, sender: Sender) -> Verdict:
        return await chat.say(text, sender=sender, peer="crew", kind=PeerKind.GROUP)

    async with gateway(house(tmp_path), agent(scripted([launch("Mars")], [launch("Io")]), rocket)) as (_, chat):
        await say("go", ADA)
        question = await asked(chat)
        assert "Ada or an owner, reply yes or no." in question.text
        assert await say(question.buttons[0].command, BOB) is Verdict.REFUSED
        assert (await chat.hear_message()).text.startswith("Only the person who wrote that message, or an owner")
        await say("yes", BOB)  # Is for the agent, and waits behind the turn.
        await say(question.buttons[0].command, ADA)
        heard = [await chat.hear_message() for _ in range(2)]
        assert heard[0].text == "Approved: launch will run."
        assert heard[1].buttons
        assert rocket.launched == ["Mars"]
        await say("no", OWNER)
        texts = [(await chat.hear_message()).text for _ in range(3)]
        assert texts == ["Denied: launch won't run.", "Done.", "Done."]
    assert rocket.launched == ["Mars"]


async def test_a_question_is_unknown_outside_its_own_chat(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(house(tmp_path), agent(scripted([launch("Mars")]), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        await chat.say(question.buttons[0].command, sender=OWNER, peer="olga")
        assert (await chat.hear_message()).text == "This question is no longer open."
        await chat.say("/approve", sender=OWNER, peer="olga")
        assert (await chat.hear_message()).text == "There is no open question here."
    assert rocket.launched == []


async def test_a_repeated_answer_counts_once(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(house(tmp_path), agent(scripted([launch("Mars")], [launch("Io")]), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        assert await chat.say("yes", sender=ADA, peer="ada", event_id="again") is Verdict.ACCEPTED
        assert (await chat.hear_message()).text == "Approved: launch will run."
        await asked(chat)
        assert await chat.say("yes", sender=ADA, peer="ada", event_id="again") is Verdict.DUPLICATE
        await chat.say("no", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "Denied: launch won't run."
    assert rocket.launched == ["Mars"]


async def test_of_several_simultaneous_answers_only_one_counts(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(house(tmp_path), agent(scripted([launch("Mars")]), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        presses = [question.buttons[number % 2].command for number in range(8)]
        await asyncio.gather(*(chat.say(press, sender=ADA, peer="ada") for press in presses))
        texts = [(await chat.hear_message()).text for _ in range(9)]
    assert texts.count("Approved: launch will run.") == 1
    assert texts.count("This was already approved.") == 7
    assert rocket.launched == ["Mars"]
    assert decisions(tmp_path) == [None, "approved"]


async def test_an_approved_call_that_was_cut_off_is_reported_as_uncertain_and_asked_about_again(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def launch_slowly(_context: ToolContext, target: str) -> str:
        """Launch."""
        begun.set()
        await asyncio.Event().wait()
        return target

    hanging = replace(tool(needs_approval=True)(launch_slowly), spec=replace(tool(launch_slowly).spec, name="launch"))

    def slow(daemon: Daemon) -> None:
        provider = scripted([launch("Mars")])
        daemon.agents.replace("main", lambda main: replace(main, provider=provider, toolbox=Toolbox([hanging])))

    async with gateway(house(tmp_path, shutdown_timeout=0.0), slow) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        first = await asked(chat)
        await chat.say("yes", sender=ADA, peer="ada")
        await begun.wait()
    assert await states(tmp_path) == [InboxState.RUNNING]
    rocket, provider = Rocket(), scripted([launch("Mars", 2)])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        second = await asked(chat)
        assert second.buttons != first.buttons
        outcome = provider.prompts[0].messages[-1]
        assert isinstance(outcome, ToolMessage)
        assert outcome.outcomes[0].output == INTERRUPTED
        assert rocket.launched == []
        await chat.say("yes", sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: launch will run.", "Done."}
    assert rocket.launched == ["Mars"]


async def test_a_decision_survives_a_crash_and_is_not_asked_for_again(tmp_path: Path) -> None:
    """The answer is committed, and the daemon ends before the tool runs: it has not run, so it runs now."""
    rocket, provider = Rocket(), scripted([launch("Mars"), launch("Io", 2)])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        first = await asked(chat)
        await chat.say(first.buttons[0].command, sender=ADA, peer="ada")
        heard = [await chat.hear_message(), await chat.hear_message()]
        (second,) = [message for message in heard if message.buttons]
    assert rocket.launched == []
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say(second.buttons[0].command, sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: launch will run.", "Done."}
    assert rocket.launched == ["Mars", "Io"]
    assert decisions(tmp_path).count("approved") == 2


async def test_a_suspect_turn_that_waits_for_approval_delays_no_other_turn(tmp_path: Path) -> None:
    """Turns that crashed the daemon twice run one at a time; one that waits for a person does not run."""
    await begin_a_session(tmp_path, "ada", "bob")
    for peer in ("ada", "bob"):
        await leave(tmp_path, accepted(peer, "go", peer=peer), *[StartTurn(turn=peer)] * 2)
    provider, rocket = scripted([launch("Mars")]), Rocket()
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        question = await asked(chat)
        answer = await chat.hear_message()
        assert {question.address.peer, answer.address.peer} == {"ada", "bob"}
        assert answer.text == "Done."


@dataclass
class Runner:
    """A tool that needs approval and names a file, next to one that writes files without approval."""

    ran: list[str] = field(default_factory=list)

    def toolbox(self) -> Toolbox:
        async def run(_context: ToolContext, path: str) -> str:
            """Run."""
            self.ran.append(path)
            return f"ran {path}"

        async def write(context: ToolContext, path: str) -> str:
            """Write."""
            (context.workspace / path).write_text("changed")
            return "written"

        return Toolbox([tool(needs_approval=True)(run), tool(write)])


def run_script(number: int = 1, **arguments: Json) -> ToolCall:
    return ToolCall(id=f"call{number}", name="run", input=arguments or {"path": "build.sh"})


async def workspace_of_ada(chat: LoopbackChannel, daemon: Daemon) -> Path:
    """Return the folder of a session that has begun, which exists."""
    await chat.say("hello", sender=ADA, peer="ada")
    await chat.hear_message()
    (scope,) = daemon.sessions.scopes()
    (meta,) = daemon.sessions.list(scope)
    folder = daemon.agents.chosen("main", meta).workspace.path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_changes_after_the_question_is_not_run(tmp_path: Path, *, restarts: bool) -> None:
    runner, provider = Runner(), ScriptedProvider([TextDelta(text="Hi.")], [run_script()], [TextDelta(text="Done.")])
    async with gateway(house(tmp_path), agent(provider, runner)) as (daemon, chat):
        folder = await workspace_of_ada(chat, daemon)
        (folder / "build.sh").write_text("make")
        await chat.say("go", sender=ADA, peer="ada")
        question = await chat.hear_message()
        assert "It names 1 file: build.sh. If it changes, I won't run this." in question.text
        (folder / "build.sh").write_text("rm -rf /")
        if not restarts:
            await chat.say("yes", sender=ADA, peer="ada")
            assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: run will run.", "Done."}
    if restarts:
        async with gateway(house(tmp_path), agent(provider, runner)) as (_, chat):
            await chat.say("yes", sender=ADA, peer="ada")
            assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: run will run.", "Done."}
    assert runner.ran == []
    (result,) = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, ToolResult)]
    assert result.is_error
    assert result.output.startswith("`build.sh` changed after the person was asked about this call")


async def test_a_call_of_the_same_step_cannot_change_the_file_that_was_approved(tmp_path: Path) -> None:
    runner = Runner()
    write = ToolCall(id="call1", name="write", input={"path": "build.sh"})
    provider = ScriptedProvider([TextDelta(text="Hi.")], [write, run_script(2)], [TextDelta(text="Done.")])
    async with gateway(house(tmp_path), agent(provider, runner)) as (daemon, chat):
        await workspace_of_ada(chat, daemon)
        await chat.say("go", sender=ADA, peer="ada")
        await chat.hear_message()
        await chat.say("yes", sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: run will run.", "Done."}
    assert runner.ran == []


async def test_an_unchanged_file_is_run(tmp_path: Path) -> None:
    runner, provider = Runner(), ScriptedProvider([TextDelta(text="Hi.")], [run_script()], [TextDelta(text="Done.")])
    async with gateway(house(tmp_path), agent(provider, runner)) as (daemon, chat):
        folder = await workspace_of_ada(chat, daemon)
        (folder / "build.sh").write_text("make")
        await chat.say("go", sender=ADA, peer="ada")
        await chat.hear_message()
        await chat.say("yes", sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Approved: run will run.", "Done."}
    assert runner.ran == ["build.sh"]


async def test_a_call_with_invalid_arguments_is_an_error_and_asks_no_one(tmp_path: Path) -> None:
    rocket = Rocket()
    provider = scripted([ToolCall(id="call1", name="launch", input={"target": 5})])
    async with gateway(house(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text == "Done."
    assert rocket.launched == []
    outcome = provider.prompts[1].messages[-1]
    assert isinstance(outcome, ToolMessage)
    assert outcome.outcomes[0].is_error
    assert outcome.outcomes[0].output.startswith("The arguments of launch are wrong")


async def test_a_long_question_is_shown_in_full_on_request(tmp_path: Path) -> None:
    rocket, target = Rocket(), "M" * 900 + "; rm -rf / ;" + "s" * 900
    async with gateway(house(tmp_path), agent(scripted([launch(target)]), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        assert "rm -rf" not in question.text
        assert "This is shortened. /approvals show shows all of it." in question.text
        assert [(button.label, button.is_answer) for button in question.buttons] == [
            ("Yes", True),
            ("No", True),
            ("Show all", False),
        ]
        for show in (question.buttons[2].command, "/approvals show"):
            await chat.say(show, sender=ADA, peer="ada")
            assert (await chat.hear_message()).text == f"All of launch:\ntarget:\n  | {target}"
        await chat.say("no", sender=ADA, peer="ada")
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Denied: launch won't run.", "Done."}


def generous(folder: Path, **keys: object) -> Settings:
    """Return settings whose owner lets people allow everything for good."""
    made = house(folder, **keys)
    main = made.agents["main"].model_copy(update={"always_allow": ("*",)})
    return made.model_copy(update={"agents": {**made.agents, "main": main}})


def launching(*targets: str) -> ScriptedProvider:
    return ScriptedProvider(*(step for target in targets for step in ([launch(target)], [TextDelta(text="Done.")])))


async def say_and_hear(chat: LoopbackChannel, text: str, number: int = 1, *, sender: Sender = ADA) -> list[str]:
    await chat.say(text, sender=sender, peer=sender.id)
    return [(await chat.hear_message()).text for _ in range(number)]


async def test_without_the_owners_permission_nothing_is_allowed_for_good(tmp_path: Path) -> None:
    async with gateway(house(tmp_path), agent(launching("Mars"), Rocket())) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        assert [button.label for button in question.buttons] == ["Yes", "No"]
        (refused,) = await say_and_hear(chat, "/approve always")
        assert refused.startswith("The owner doesn't let this tool be allowed for good.")
        await say_and_hear(chat, "no", 2)


@pytest.mark.parametrize("span", ["session", "always"])
async def test_an_allowed_call_runs_again_without_a_question_also_after_a_restart(tmp_path: Path, span: str) -> None:
    rocket, provider = Rocket(), launching("Mars", "Mars", "Mars", "Venus")
    async with gateway(generous(tmp_path), agent(provider, rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        question = await asked(chat)
        assert [button.label for button in question.buttons] == ["Yes", "No", "Always in this session", "Always for me"]
        (command,) = [each.command for each in question.buttons if each.command.endswith(span)]
        said = await say_and_hear(chat, command, 2)
        assert any("From now on I won't ask" in text and 'launch with target: "Mars"' in text for text in said)
        assert await say_and_hear(chat, "again") == ["Done."]
    async with gateway(generous(tmp_path), agent(provider, rocket)) as (_, chat):
        assert await say_and_hear(chat, "again") == ["Done."]
        await chat.say("now Venus", sender=ADA, peer="ada")
        await asked(chat)  # Other arguments are another call.
        await say_and_hear(chat, "no", 2)
    assert rocket.launched == ["Mars"] * 3


async def test_a_grant_for_a_session_ends_with_it_and_one_for_a_person_is_only_theirs(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(generous(tmp_path), agent(launching(*["Mars"] * 4), rocket)) as (daemon, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        await say_and_hear(chat, "/approve session", 2)
        await say_and_hear(chat, "/new")
        await chat.say("again", sender=ADA, peer="ada")
        await asked(chat)
        await say_and_hear(chat, "/approve always", 2)
        await chat.say("go", sender=BOB, peer="bob")
        await asked(chat)
        await say_and_hear(chat, "no", 2, sender=BOB)
        (listed,) = await say_and_hear(chat, "/approvals", sender=BOB)
        assert listed == "No questions are open, and nothing is allowed without asking."
        (listed,) = await say_and_hear(chat, "/approvals")
        assert listed.count('launch with target: "Mars"') == 2
        await daemon.sessions.delete("agent:main:loopback:direct:ada")
        assert not [name for name in await daemon.spool.facts("grants/") if not name.startswith("grants/\t")]


async def test_a_revoked_grant_asks_again(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(generous(tmp_path), agent(launching("Mars", "Mars"), rocket)) as (daemon, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        await say_and_hear(chat, "/approve always", 2)
        (wrong,) = await say_and_hear(chat, "/approvals revoke nonsense")
        assert wrong == "Which one? /approvals lists them with their ids."
        (said,) = await say_and_hear(chat, "/approvals revoke all")
        assert said == 'Revoked: launch with target: "Mars". I\'ll ask again.'
        assert await daemon.spool.facts("grants/") == {}
        await chat.say("again", sender=ADA, peer="ada")
        await asked(chat)
        await say_and_hear(chat, "no", 2)
    assert rocket.launched == ["Mars"]


async def test_a_pattern_allows_what_it_shows_and_nothing_else(tmp_path: Path) -> None:
    rocket, targets = Rocket(), ["moons/io", "moons/europa", "moons/../sun", "moons/io; rm"]
    async with gateway(generous(tmp_path), agent(launching(*targets), rocket)) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        (refused,) = await say_and_hear(chat, "/approve always target=*")
        assert refused.startswith("That would allow every call of launch.")
        (refused,) = await say_and_hear(chat, "/approve always target=planets/*")
        assert refused == "The pattern for target doesn't match this call, so nothing was approved."
        await say_and_hear(chat, "/approve always target=moons/*", 2)
        assert await say_and_hear(chat, "again") == ["Done."]
        for _ in range(2):
            await chat.say("again", sender=ADA, peer="ada")
            await asked(chat)
            await say_and_hear(chat, "no", 2)
    assert rocket.launched == ["moons/io", "moons/europa"]


async def test_a_grant_ends_when_the_named_file_changes_and_when_its_person_loses_access(tmp_path: Path) -> None:
    runner = Runner()
    steps = [([run_script()], [TextDelta(text="Done.")]) for _ in range(3)]
    provider = ScriptedProvider([TextDelta(text="Hi.")], *(step for pair in steps for step in pair))
    async with gateway(generous(tmp_path), agent(provider, runner)) as (daemon, chat):
        folder = await workspace_of_ada(chat, daemon)
        (folder / "build.sh").write_text("make")
        await chat.say("go", sender=ADA, peer="ada")
        await chat.hear_message()
        await say_and_hear(chat, "/approve always", 2)
        assert await say_and_hear(chat, "again") == ["Done."]
        (folder / "build.sh").write_text("make install")
        await chat.say("again", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text.startswith("May I use run?")
        await say_and_hear(chat, "no", 2)
        assert len(await daemon.spool.facts("grants/")) == 1
        await daemon.pairing.shut_out([Person(channel="loopback", account="default", sender="ada")])
        assert await daemon.spool.facts("grants/") == {}
    assert runner.ran == ["build.sh"] * 2


async def test_a_pattern_allows_a_script_in_its_fixed_part_only_as_it_was(tmp_path: Path) -> None:
    runner = Runner()
    steps = [([run_script()], [TextDelta(text="Done.")]) for _ in range(3)]
    provider = ScriptedProvider([TextDelta(text="Hi.")], *(step for pair in steps for step in pair))
    async with gateway(generous(tmp_path), agent(provider, runner)) as (daemon, chat):
        folder = await workspace_of_ada(chat, daemon)
        (folder / "build.sh").write_text("make")
        await chat.say("go", sender=ADA, peer="ada")
        await chat.hear_message()
        said = await say_and_hear(chat, "/approve always path=*build.sh", 2)
        assert any("unless a file that it names changes" in text for text in said)
        assert await say_and_hear(chat, "again") == ["Done."]
        (folder / "build.sh").write_text("make install")
        await chat.say("again", sender=ADA, peer="ada")
        assert (await chat.hear_message()).text.startswith("May I use run?")
        await say_and_hear(chat, "no", 2)
    assert runner.ran == ["build.sh"] * 2


@dataclass
class Slow(Runner):
    """The approved call runs until `leave` is set."""

    steps: list[str] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    def toolbox(self) -> Toolbox:
        async def run(_context: ToolContext, path: str) -> str:
            """Run."""
            self.entered.set()
            await self.leave.wait()
            self.steps.append("ran")
            return f"ran {path}"

        async def write(_context: ToolContext, path: str) -> str:
            """Write."""
            self.steps.append("written")
            return f"wrote {path}"

        return Toolbox([tool(needs_approval=True)(run), tool(write)])


async def test_another_session_cannot_change_files_while_an_approved_call_runs(tmp_path: Path) -> None:
    slow = Slow()
    write = ToolCall(id="call1", name="write", input={"path": "build.sh"})
    provider = ScriptedProvider(
        [TextDelta(text="Hi.")], [run_script()], [write], [TextDelta(text="Done.")], [TextDelta(text="Done.")]
    )
    async with gateway(house(tmp_path), agent(provider, slow)) as (daemon, chat):
        folder = await workspace_of_ada(chat, daemon)
        (folder / "build.sh").write_text("make")
        await chat.say("go", sender=ADA, peer="ada")
        await chat.hear_message()
        await say_and_hear(chat, "yes")
        await slow.entered.wait()
        await say_and_hear(chat, "/new")
        await chat.say("write", sender=ADA, peer="ada")
        await until(lambda: len(provider.prompts) == 3)
        slow.leave.set()
        assert [(await chat.hear_message()).text for _ in range(2)] == ["Done.", "Done."]
    assert slow.steps == ["ran", "written"]


async def test_a_call_that_is_too_long_for_the_chat_is_shown_as_a_file(tmp_path: Path) -> None:
    target = "word " * 20_000
    async with gateway(house(tmp_path), agent(scripted([launch(target)]), Rocket())) as (_, chat):
        await chat.say("go", sender=ADA, peer="ada")
        await asked(chat)
        await chat.say("/approvals show", sender=ADA, peer="ada")
        hint, file = await chat.hear_message(), await chat.hear_message()
        assert hint.text.startswith("This call is too long for a chat (")
        assert hint.text.endswith("The file call.txt has all of it.")
        assert file.file is not None
        assert file.file.name == "call.txt"
        (stored,) = (tmp_path / "data" / "files").rglob("*-call.txt")
        assert stored.read_text() == f"All of launch:\ntarget:\n  | {target}"
        await say_and_hear(chat, "no", 2)
