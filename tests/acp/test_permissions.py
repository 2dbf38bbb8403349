"""Permission requests of a coding agent: who is asked, what the agent is told, and in which mode it works."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Outbound, PeerKind, Sender
from gateway.sessions import SessionStatus, entries
from tests.acp.harness import acp_sessions, coder, effects, limited, needs_sandbox, processes, received, sessions_of
from tests.api.harness import api
from tests.daemon.harness import ask, gateway, transcript_entries
from tests.polling import until

pytestmark = needs_sandbox

ADA, BOB = Sender(id="ada", name="Ada"), Sender(id="bob", name="Bob")
ASK = "ask execute echo hi"
DONE = ["execute echo hi"]


async def question(chat: LoopbackChannel, text: str = ASK) -> Outbound:
    await chat.say(text)
    asked = await chat.hear_message()
    assert asked.is_question, asked.text
    return asked


async def decide(chat: LoopbackChannel, answer: str) -> str:
    """Answer the question, and return what the agent says then."""
    await chat.say(answer)
    said = {(await chat.hear_message()).text for _ in range(2)}
    return next(text for text in said if not text.startswith(("Approved", "Denied")))


@pytest.mark.parametrize(
    ("answer", "outcome"), [("yes", "allowed by once"), ("no", "rejected by no"), ("/deny", "rejected by no")]
)
async def test_the_answer_of_the_person_is_the_answer_to_the_agent(tmp_path: Path, answer: str, outcome: str) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        asked = await question(chat)
        assert "echo hi" in asked.text
        assert await decide(chat, answer) == outcome
        late = await ask(chat, asked.buttons[0].command)
        assert late == f"This was already {'approved' if answer == 'yes' else 'denied'}."
    assert effects(tmp_path) == (DONE if answer == "yes" else [])


async def test_a_role_decides_which_kinds_of_permissions_are_asked_for(tmp_path: Path) -> None:
    def limited_to(*kinds: str) -> Settings:
        roles = Settings.model_validate({"roles": {"owner": {"tools": kinds}}}).roles
        return coder(tmp_path).model_copy(update={"roles": roles})

    async with gateway(limited_to("read")) as (daemon, chat):
        assert await ask(chat, ASK) == "rejected by no"
        await daemon.reload(limited_to("exec*"))
        await question(chat)
        assert await decide(chat, "yes") == "allowed by once"
    assert effects(tmp_path) == DONE


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        ("always_first", ("allowed by once", "rejected by no")),
        ("twice", ("allowed by once-1", "rejected by no-1")),
        ("only_never", ("allowed by once", "rejected by never")),
        ("only_allow", ("allowed by once", "cancelled")),
    ],
)
async def test_options_are_chosen_by_their_kind(tmp_path: Path, options: str, outcomes: tuple[str, str]) -> None:
    async with gateway(coder(tmp_path, [f"options={options}"])) as (_, chat):
        await question(chat)
        assert await decide(chat, "yes") == outcomes[0]
        await question(chat)
        assert await decide(chat, "no") == outcomes[1]
    assert effects(tmp_path) == DONE


@pytest.mark.parametrize(("options", "outcome"), [("only_always", "rejected by no"), ("none", "cancelled")])
async def test_a_permission_that_cannot_be_given_once_is_refused_without_a_question(
    tmp_path: Path, options: str, outcome: str
) -> None:
    async with gateway(coder(tmp_path, [f"options={options}"])) as (_, chat):
        answer = await ask(chat, ASK)
        assert answer.startswith("*coder asked for a permission that can't be given for this one time only")
        assert answer.endswith(outcome)
    assert effects(tmp_path) == []


async def test_allow_always_is_chosen_where_the_owner_permits_it(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, ["options=only_always"], always_allow=("execute",))) as (_, chat):
        await question(chat)
        assert await decide(chat, "yes") == "allowed by always"
        assert "can't be given" in await ask(chat, "ask edit x.txt y"), "another kind is not permitted"
    assert effects(tmp_path) == DONE


async def test_a_grant_answers_the_same_call_and_no_other(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, always_allow=("execute",))) as (_, chat):
        asked = await question(chat)
        assert any("ession" in button.label for button in asked.buttons)
        assert await decide(chat, "/approve session") == "allowed by once"
        assert await ask(chat, ASK) == "allowed by once"
        await question(chat, "ask execute echo ho")
        assert await decide(chat, "no") == "rejected by no"
        await question(chat, "ask edit x.txt y")
        assert await decide(chat, "no") == "rejected by no"
    assert effects(tmp_path) == DONE * 2


async def test_a_question_that_expires_is_answered_with_no(tmp_path: Path) -> None:
    async with gateway(limited(coder(tmp_path), approval_timeout=1.0)) as (_, chat):
        asked = await question(chat, f"{ASK} ;; say Then I stop.")
        assert (await chat.hear_message()).text == "rejected by noThen I stop."
        assert "has expired" in await ask(chat, asked.buttons[0].command)
    assert effects(tmp_path) == []


async def test_a_question_ends_with_the_agent_that_asked(tmp_path: Path) -> None:
    mark = uuid4().hex
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (daemon, chat):
        asked = await question(chat)
        for pid in processes(mark):
            with suppress(ProcessLookupError):  # The death of the process before has ended this one.
                os.kill(pid, signal.SIGKILL)
        assert "*The agent coder failed: it was killed by signal 9." in (await chat.hear_message()).text
        assert "has expired" in await ask(chat, asked.buttons[0].command)
        assert sessions_of(daemon)[0].status is SessionStatus.ERROR
    results = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, entries.ToolResult)]
    assert [result.is_error for result in results] == [True]


async def test_a_question_ends_with_the_prompt_that_asked(tmp_path: Path) -> None:
    """An agent that gives up on its own question must not keep the turn waiting for the person."""
    request = (
        'raw {"jsonrpc": "2.0", "id": "q", "method": "session/request_permission", "params": {"sessionId": "SESSION", '
        '"toolCall": {"toolCallId": "c", "kind": "execute", "title": "x"}, '
        '"options": [{"optionId": "o", "kind": "allow_once", "name": "O"}]}}'
    )
    async with gateway(coder(tmp_path)) as (daemon, chat):
        assert await ask(chat, "say Hello.") == "Hello."
        [acp_session] = acp_sessions(tmp_path)
        await chat.say(f"{request.replace('SESSION', acp_session)}\nsay I did not wait.")
        assert (await chat.hear_message()).is_question
        assert (await chat.hear_message()).text == "I did not wait."
        assert not daemon.approvals.open_questions


async def test_a_group_sees_who_has_asked_and_others_cannot_answer(tmp_path: Path) -> None:
    configured = coder(tmp_path, channel={"dm_policy": "open", "group_policy": "open"})
    async with gateway(configured) as (_, chat):
        await chat.say(ASK, peer="team", kind=PeerKind.GROUP, sender=ADA)
        asked = await chat.hear_message()
        assert "Ada" in asked.text
        refused = await ask(chat, asked.buttons[0].command, sender=BOB, group="team")
        assert not refused.startswith("Approved")
        assert effects(tmp_path) == []
        await chat.say(asked.buttons[0].command, peer="team", kind=PeerKind.GROUP, sender=ADA)
        assert "allowed by once" in {(await chat.hear_message()).text for _ in range(2)}


async def test_a_program_approves_over_the_api(tmp_path: Path) -> None:
    async with api(coder(tmp_path)) as program:
        session = await program.start(agent="coder")
        await program.prompt(session, ASK)
        await until(lambda: program.daemon.approvals.open_questions)
        (name,) = program.daemon.approvals.open_questions
        await program.call("POST", f"/api/sessions/{session['id']}/approvals/{name}", {"decision": "approve"})
        assert (await program.answered(session))[-1] == ("agent", "allowed by once")
        await program.prompt(session, "die")
        assert "takes no more prompts" in (await program.answered(session, 2))[-1][1]
        status, refused = await program.call("POST", f"/api/sessions/{session['id']}/prompt", {"text": "say Hello."})
        assert (status, "error" in str(refused)) == (409, True), refused
        status, refused = await program.call("POST", f"/api/sessions/{session['id']}/resume")
        assert (status, "can only be read" in str(refused)) == (409, True), refused


async def test_the_mode_is_set_for_new_and_loaded_sessions(tmp_path: Path) -> None:
    configured = coder(tmp_path, mode="ask")
    for prompt in ("modes", "say Between. ;; modes"):
        async with gateway(configured) as (_, chat):
            assert (await ask(chat, prompt)).endswith("ask")
    assert received(tmp_path).count("session/set_mode") == 2
    assert received(tmp_path).count("session/load") == 1


@pytest.mark.parametrize("options", ["modes=ask,yolo", "modes=config"])
async def test_a_mode_that_the_agent_chose_itself_is_set_back(tmp_path: Path, options: str) -> None:
    async with gateway(coder(tmp_path, [options], mode="ask")) as (_, chat):
        assert await ask(chat, "mode yolo ;; modes") == "yolo"
        assert await ask(chat, "modes") == "ask"
        await chat.say("mode yolo ;; say Now. ;; hang")
        await until(lambda: received(tmp_path).count("session/prompt") == 3)
        await chat.say("/stop")
        while not (await chat.hear_message()).text.startswith("Stopped"):
            pass
        await chat.say("modes")
        while (said := (await chat.hear_message()).text) == "Now.":
            pass
        assert said == "ask"


async def test_a_mode_that_the_agent_does_not_have_is_refused_with_the_list(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path, ["modes=plan,yolo"], mode="ask")) as (daemon, chat):
        refused = await ask(chat, "say Hello.")
        assert "has no mode `ask`, so I didn't use it. It has: `plan`, `yolo`." in refused
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]
    assert "session/prompt" not in received(tmp_path)


async def test_a_long_list_of_modes_is_shortened(tmp_path: Path) -> None:
    modes = ",".join(f"{'mode' * 50}{number}" for number in range(100))
    async with gateway(coder(tmp_path, [f"modes={modes}"], mode="ask")) as (_daemon, chat):
        assert len(await ask(chat, "say Hello.")) < 1_000
