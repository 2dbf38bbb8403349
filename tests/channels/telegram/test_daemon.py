"""A Telegram bot end to end: the real daemon, with a fake Bot API server."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

from config import FileSettings, Settings
from gateway.admin.client import ControlClient
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import TextDelta
from gateway.conversation import UserMessage
from tests.agent.scripted import PatientProvider, ScriptedProvider
from tests.channels.telegram.bot_api import ADA, BOB, DROP, GROUP, TEST_TIMEOUT, TOKEN, Call, FakeBotApi, refusal
from tests.channels.telegram.harness import gateway, heard, settings
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.daemon_process import DEFAULTS, DaemonProcess, by_fork_with, write_config
from tests.files.samples import png
from tests.observability.scrape import scrape
from tests.polling import until


async def test_a_message_is_answered(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        await api.say("hello")
        answer = await heard(api, 1)
        assert answer.fields["chat_id"] == "42"
        assert answer.fields["parse_mode"] == "HTML"


async def test_a_message_during_shutdown_stays_with_telegram_and_the_channel_is_not_reported_lost(
    tmp_path: Path, api: FakeBotApi
) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(_piece: str) -> None:
        is_asked.set()
        await may_answer.wait()

    with capture_logs() as logs:
        async with gateway(settings(tmp_path, api)) as daemon:
            daemon.agents.replace("main", lambda main: replace(main, provider=PatientProvider(["Yes."], wait)))
            await api.say("hello")
            await is_asked.wait()
            daemon.stop()
            polls = len(api.calls_of("getUpdates"))
            await api.say("too late")
            await api.called("getUpdates", times=polls + 2)
            may_answer.set()
    assert [update["message"]["text"] for update in api.pending] == ["too late"]
    assert not [entry for entry in logs if entry["event"] == "channel_lost"]


async def test_pressing_a_button_in_the_session_list_resumes_that_session(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        await api.say("hello")
        await heard(api, 1)
        await api.say("/new Trip")
        said = await api.say("/session list")
        listed = await heard(api, 3)
        rows = listed.json("reply_markup")["inline_keyboard"]
        commands = [row[0]["callback_data"] for row in rows]
        assert commands == ["/session resume 2", "/session resume 1"]
        await api.press({**said["message"], "text": "the list"}, commands[1])
        assert "Back in session 1" in (await heard(api, 4)).fields["text"]


async def test_only_the_person_who_was_asked_can_approve_a_tool_by_button(tmp_path: Path, api: FakeBotApi) -> None:
    rocket = Rocket()
    async with gateway(settings(tmp_path, api)) as daemon:
        agent(scripted([launch("Mars")]), rocket)(daemon)
        said = await api.say("@gate_bot go", chat=GROUP, sender=ADA, **CALLED)
        question = await heard(api, 1)
        assert question.fields["text"].startswith("May I use launch?")
        assert question.json("reply_parameters")["message_id"] == said["message"]["message_id"]
        yes = question.json("reply_markup")["inline_keyboard"][0][0]
        assert yes["text"] == "Yes"
        shown = {**said["message"], "text": question.fields["text"]}
        await api.press(shown, yes["callback_data"], sender=BOB)
        assert "Only the person" in (await heard(api, 2)).fields["text"]
        assert rocket.launched == []
        await api.press(shown, yes["callback_data"], sender=ADA)
        assert (await heard(api, 3)).fields["text"] == "Approved: launch will run."
        assert "Done." in (await heard(api, 4)).fields["text"]
    assert rocket.launched == ["Mars"]


async def test_a_stranger_is_told_their_id(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        await api.say("let me in", sender=BOB)
        assert "77" in (await heard(api, 1)).fields["text"]


async def test_a_user_who_was_allowed_by_a_reload_is_answered(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)) as daemon:
        await api.say("let me in", sender=BOB)
        await heard(api, 1)
        await daemon.reload(settings(tmp_path, api, allow=[BOB["id"]]))
        await api.say("/whoami", sender=BOB)
        assert "You are Bob" in (await heard(api, 2)).fields["text"]


async def test_in_a_group_only_messages_that_address_the_bot_are_answered(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        await api.say("just talking", chat=GROUP, sender=BOB)
        await api.say("/whoami", chat={**GROUP, "id": -666}, sender=BOB)
        command = [{"type": "bot_command", "offset": 0, "length": 16}]
        asked = await api.say("/whoami@gate_bot", chat=GROUP, sender=BOB, entities=command)
        answer = await heard(api, 1)
        assert answer.fields["chat_id"] == str(GROUP["id"])
        assert answer.json("reply_parameters")["message_id"] == asked["message"]["message_id"]
        await api.acknowledged()
    assert len(api.calls_of("sendMessage")) == 1


CALLED = {"entities": [{"type": "mention", "offset": 0, "length": 9}]}


def long_file(data: Path) -> str:
    """Put a long file into the shared workspace, so that the answer takes a while. Returns its last word."""
    workspace = data / "workspace" / "main"
    workspace.mkdir(parents=True)
    (workspace / "long.txt").write_text(" ".join(f"word{number}" for number in range(450)))
    return "word449"


async def shown_whole(api: FakeBotApi, end: str) -> list[Call]:
    """Wait until an edit contains `end`. Returns all edits."""
    async with asyncio.timeout(TEST_TIMEOUT):
        times = 1
        while end not in (await api.called("editMessageText", times=times)).fields["text"]:
            times += 1
    return api.calls_of("editMessageText")


async def test_in_a_group_an_answer_is_streamed_by_editing_one_message(tmp_path: Path, api: FakeBotApi) -> None:
    async def seen(piece: str) -> None:
        await (heard(api, 1) if piece == "One" else shown_whole(api, piece))

    provider = PatientProvider(["One", " and two", " and that is all."], seen)
    async with gateway(settings(tmp_path, api)) as daemon:
        daemon.agents.replace("main", lambda main: replace(main, provider=provider))
        await api.say("@gate_bot count", chat=GROUP, sender=BOB, **CALLED)
        edits = await shown_whole(api, "that is all.")
    assert [call.fields["text"] for call in api.calls_of("sendMessage")] == ["One"]
    assert [edit.fields["message_id"] for edit in edits] == ["102"] * len(edits)
    assert [edit.fields["text"] for edit in edits] == ["One and two", "One and two and that is all."]
    assert not api.calls_of("sendMessageDraft")


async def test_an_answer_cut_by_a_kill_is_completed_by_editing_it(tmp_path: Path, api: FakeBotApi) -> None:
    end = long_file(tmp_path / "data")
    write_config(
        tmp_path,
        f'{DEFAULTS}\n[channels.telegram]\ntoken = "{TOKEN}"\napi_base = "{api.url}"\ngroup_allow = [{GROUP["id"]}]\n'
        '[agents.main]\nworkspace = "shared"\n',
    )
    with DaemonProcess(tmp_path, start=by_fork_with("channels.telegram")) as daemon:
        await api.say("@gate_bot read long.txt", chat=GROUP, sender=BOB, **CALLED)
        await api.called("editMessageText")
        daemon.process.kill()
    assert end not in api.calls[-1].fields.get("text", "")
    with DaemonProcess(tmp_path, start=by_fork_with("channels.telegram")) as daemon:
        edits = await shown_whole(api, end)
        assert await asyncio.to_thread(daemon.stop) == 0
    assert {edit.fields["message_id"] for edit in edits} == {"102"}
    assert len(api.calls_of("sendMessage")) == 1


async def test_the_menu_lists_commands_of_two_words_by_their_alias(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        menu = (await api.called("setMyCommands")).json("commands")
    names = [entry["command"] for entry in menu]
    assert {"new", "sessions", "switch", "delete", "help"} <= set(names)
    assert len(names) == len(set(names))


def scope_of(call: Call) -> tuple[str, object]:
    scope = json.loads(call.fields["scope"]) if "scope" in call.fields else {"type": "default"}
    return scope["type"], scope.get("chat_id")


async def test_only_owners_are_offered_the_commands_for_owners(tmp_path: Path, api: FakeBotApi) -> None:
    base = settings(tmp_path, api)
    owned = base.model_copy(update={"gateway": base.gateway.model_copy(update={"owners": (f"telegram:{ADA['id']}",)})})
    async with gateway(owned):
        for number, sender in enumerate((BOB, ADA), start=1):
            await api.say("/whoami", sender=sender)
            await heard(api, number)
        menus = {}
        for times in (1, 2, 3):
            call = await api.called("setMyCommands", times=times)
            menus[scope_of(call)] = {entry["command"] for entry in call.json("commands")}
    assert menus["default", None] >= {"new", "clear", "delete"}
    assert not menus["default", None] & {"pair", "restart", "workspace"}
    assert not menus["all_group_chats", None] & {"pair", "clear", "delete"}
    assert menus["chat", ADA["id"]] >= {"pair", "restart", "workspace"}
    # The person is no longer an owner after a restart, and so their menu goes.
    async with gateway(base):
        await api.say("/whoami", sender=ADA)
        assert scope_of(await api.called("deleteMyCommands")) == ("chat", ADA["id"])
        await api.say("/whoami", sender=ADA)
        await heard(api, 4)
    assert len(api.calls_of("deleteMyCommands")) == 1


async def test_menus_follow_a_changed_role_at_the_next_command(tmp_path: Path, api: FakeBotApi) -> None:
    base = settings(tmp_path, api, allow=[ADA["id"], BOB["id"]])

    def with_roles(guest: Sequence[str], child: Sequence[str]) -> Settings:
        tables = {"guest": {"commands": guest}, "child": {"commands": child, "people": [f"telegram:{BOB['id']}"]}}
        return base.model_copy(
            update={"roles": Settings.model_validate({"channels": {"telegram": {}}, "roles": tables}).roles}
        )

    def shown() -> dict[tuple[str, object], set[str]]:
        calls = [*api.calls_of("setMyCommands")]
        return {scope_of(call): {entry["command"] for entry in call.json("commands")} for call in calls}

    async with gateway(with_roles(["new"], ["new", "history"])) as daemon:
        await api.say("hello", sender=BOB)
        await until(partial(_is_true, lambda: "history" in shown().get(("chat", BOB["id"]), ())))
        assert "history" not in shown()["default", None]
        await daemon.reload(with_roles(["new", "status"], ["new", "status", "usage"]))
        await api.say("/whoami", sender=BOB)
        await until(partial(_is_true, lambda: "usage" in shown()["chat", BOB["id"]]))
        assert "status" in shown()["default", None]
        assert not shown()["chat", BOB["id"]] & {"history", "pair"}
        await daemon.reload(with_roles(["new", "status"], ["new", "status"]))
        await api.say("/whoami", sender=BOB)
        assert scope_of(await api.called("deleteMyCommands")) == ("chat", BOB["id"])


async def _is_true(holds: Callable[[], bool]) -> bool:
    return holds()


async def test_a_restart_loses_no_unacknowledged_message(tmp_path: Path, api: FakeBotApi) -> None:
    async with gateway(settings(tmp_path, api)):
        await api.say("/new One")
        await heard(api, 1)
        await api.acknowledged()
    await api.say("/new Two")
    await api.say("/sessions")
    async with gateway(settings(tmp_path, api)):
        assert "Two" in (await heard(api, 2)).fields["text"]
        listed = (await heard(api, 3)).fields["text"]
        await api.acknowledged()
    assert "One" in listed
    assert "Two" in listed
    assert len(api.calls_of("sendMessage")) == 3


async def test_a_rejected_token_retires_telegram_and_readiness_shows_it(tmp_path: Path, api: FakeBotApi) -> None:
    api.scripted["getMe"].append(refusal(401, "Unauthorized"))
    async with gateway(settings(tmp_path, api)) as daemon:
        (running,) = [task for task in asyncio.all_tasks() if task.get_name() == "channel:telegram:default"]
        await running
        health = daemon.status.health()
        assert not health.ready
        assert (health.channels[0].state, "BotFather" in health.channels[0].reason) == ("retired", True)


async def test_the_token_is_in_no_log_and_no_file(tmp_path: Path, api: FakeBotApi) -> None:
    """With every kind of error that makes libraries quote URLs, and at log level debug."""
    quoting = refusal(500, f"no /bot{TOKEN}/")
    api.scripted["getMe"].append(DROP)
    api.scripted["getUpdates"] += [quoting, (200, f"no json {TOKEN}")]
    api.scripted["sendMessage"] += [DROP, quoting]
    (tmp_path / "token").write_text(TOKEN)
    config = DEFAULTS.replace("[gateway]", '[gateway]\nlog_level = "debug"')
    write_config(
        tmp_path, f'{config}\n[channels.telegram]\ntoken = "file:token"\napi_base = "{api.url}"\nallow = [42]\n'
    )
    with DaemonProcess(tmp_path, start=by_fork_with("channels.telegram")) as daemon:
        await asyncio.to_thread(daemon.wait_for, "channel_up", channel="telegram")
        await api.say("hello")
        await asyncio.to_thread(daemon.wait_for, "message_handled")
        assert await asyncio.to_thread(daemon.stop) == 0
        assert TOKEN not in json.dumps(daemon.log) + daemon.errors()
    assert len(api.calls_of("sendMessage")) == 3
    files = [file for file in daemon.data.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]


async def test_a_photo_reaches_the_model_but_an_endless_file_does_not(tmp_path: Path, api: FakeBotApi) -> None:
    configured = settings(tmp_path, api).model_copy(update={"files": FileSettings(max_bytes=300_000)})
    provider = ScriptedProvider([TextDelta(text="A dot.")])
    api.files["P"] = png()
    api.files["E"] = None
    async with gateway(configured) as daemon:
        sees = ModelInfo(name="eyes", sees_images=True)
        daemon.agents.replace("main", lambda main: replace(main, provider=provider, info=sees))
        await api.say("", photo=[{"file_id": "P", "file_unique_id": "U", "width": 1, "height": 1}], caption="look")
        assert (await heard(api, 1)).fields["text"] == "A dot."
        await api.say("", document={"file_id": "E", "file_unique_id": "U", "file_name": "../x", "file_size": 10})
        await heard(api, 2)
    first, second = [prompt.messages[-1] for prompt in provider.prompts]
    assert isinstance(first, UserMessage)
    assert [picture.data for picture in first.pictures] == [png()]
    assert isinstance(second, UserMessage)
    assert second.text == "[file: _x, 10 bytes; it is not available: it is too large; the limit is 300 kB]"


async def test_failing_sends_are_reported_everywhere_and_so_is_their_end(tmp_path: Path, api: FakeBotApi) -> None:
    """The channel itself is up: it polls, and `getMe` works."""
    api.scripted["sendMessage"].extend([refusal(502, "Bad Gateway")] * 3)
    with capture_logs() as logs:
        async with gateway(settings(tmp_path, api)) as daemon, ControlClient(tmp_path / "data") as control:
            daemon.delivery.health.outage_after = 0.0
            await api.say("/whoami")
            await until(lambda: any(line["event"] == "delivery_interrupted" for line in logs))
            told, report = await control.get("/readyz"), await daemon.status.report()
            seen = await scrape(tmp_path / "data")
            await until(lambda: any(line["event"] == "delivery_resumed" for line in logs))
            afterwards = await control.get("/readyz")
    assert told["status"] == report.state == "not ready"
    assert "Sending on telegram has failed" in str(told["troubles"])
    assert "Sending on telegram has failed" in report.sentence
    assert [(channel.name, channel.state) for channel in report.channels] == [("telegram", "up")]
    assert seen.value("gatehouse_ready") == 0
    assert seen.value("gatehouse_delivery_outage_seconds", channel="telegram", account="default") > 0
    assert seen.value("gatehouse_send_failures_total", channel="telegram") > 0
    assert afterwards["status"] != "not ready"
    events = [line["event"] for line in logs if line["event"].startswith("delivery_")]
    assert events == ["delivery_interrupted", "delivery_resumed"]
