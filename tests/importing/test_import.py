"""Moving in: what is written for the data of another gateway, and that a person continues where they were."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from config import Settings
from gateway.admin.archive import Archive, open_archive
from gateway.agent.protocol import TextDelta
from gateway.conversation import AssistantMessage, ToolMessage, UserMessage
from gateway.importing.gateways import open_gateway
from gateway.importing.plan import Plan, make_plan
from gateway.importing.values import ForeignGateway
from gateway.importing.writer import ImportReport, write_plan
from gateway.memory.store import MemoryStore, memory_folder
from tests.agent.scripted import ScriptedProvider
from tests.channels.telegram.bot_api import FakeBotApi, bot_api
from tests.channels.telegram.harness import gateway, heard, settings
from tests.daemon_process import DEFAULTS, gatehouse, running, write_config
from tests.importing.fixtures import home_with
from tests.importing.test_gateways import RECORDED
from tests.sessions.engines import ENGINES, storage_url

ADA = "agent:main:telegram:direct:42"


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as fake:
        yield fake


def silent(_what: str, _number: int) -> None:
    pass


async def imported(
    archive: Archive, configured: Settings, found: ForeignGateway, *, memory_scope: str = ""
) -> tuple[Plan, ImportReport]:
    plan = await make_plan(found, archive, configured, user="root", memory_scope=memory_scope, progress=silent)
    return plan, await write_plan(found, plan, archive, silent)


async def active_sessions(archive: Archive) -> dict[str, tuple[int, str]]:
    """Return the number and the title of the active session of each scope."""
    return {each.meta.scope: (each.meta.number, each.meta.title) async for each in archive.sessions() if each.is_active}


@pytest.fixture(params=ENGINES)
def configured(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = storage_url(request.param, tmp_path / "data", partial(request.getfixturevalue, "database_url"))
    data = {"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}, "storage": {"url": url}}
    return Settings.model_validate(data)


async def test_a_second_import_adds_nothing_with_each_engine(configured: Settings, tmp_path: Path) -> None:
    found = open_gateway(home_with("hermes-agent-0.19.0", tmp_path / "home"))
    async with open_archive(configured) as archive:
        plan, report = await imported(archive, configured, found, memory_scope=ADA)
        assert (report.sessions, report.statements, report.failed) == (6, 1, {})
        assert (await active_sessions(archive))[ADA][0] == 2
    async with open_archive(configured) as archive:  # After a restart, the same session is active.
        before = [listed async for listed in archive.sessions()]
        again, report = await imported(archive, configured, found, memory_scope=ADA)
        assert (report.sessions, report.statements) == (0, 0)
        assert all(each.is_known for each in again.sessions)
        assert [listed async for listed in archive.sessions()] == before
        assert len(before) == len(plan.sessions) == 6
        assert (await active_sessions(archive))[ADA][0] == 2
        assert not (await archive.verify()).problems


class Crash(BaseException):
    """The process ends."""


class DyingArchive:
    """An archive of which the process dies after some sessions."""

    def __init__(self, archive: Archive, lives: int) -> None:
        self._archive = archive
        self._lives = lives

    def __getattr__(self, name: str) -> object:
        return getattr(self._archive, name)

    async def import_session(self, blocks: AsyncIterator[bytes], *, activates: bool = False) -> object:
        if self._lives == 0:
            raise Crash
        self._lives -= 1
        return await self._archive.import_session(blocks, activates=activates)


@pytest.mark.parametrize("lives", [0, 1, 3, 5])
async def test_an_interrupted_import_is_completed_by_the_next_one(tmp_path: Path, lives: int) -> None:
    configured = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    found = open_gateway(home_with("openclaw-2026.9.6", tmp_path / "home"))
    async with open_archive(configured) as archive:
        plan = await make_plan(found, archive, configured, user="root", progress=silent)
        with pytest.raises(BaseExceptionGroup):
            await write_plan(found, plan, DyingArchive(archive, lives), silent)  # type: ignore[arg-type]  # It forwards.
    async with open_archive(configured) as archive:
        _, report = await imported(archive, configured, found)
        assert 6 - lives <= report.sessions <= 6  # Those that were under way have left nothing.
        assert (await active_sessions(archive))[ADA][1] == "I like green tea. Please remember that."
        assert len([each async for each in archive.sessions()]) == 6


async def test_data_that_is_damaged_after_the_plan_was_made_is_reported(tmp_path: Path) -> None:
    configured = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    home = home_with("hermes-agent-0.19.0", tmp_path / "home")
    found = open_gateway(home)
    async with open_archive(configured) as archive:
        plan = await make_plan(found, archive, configured, user="root", progress=silent)
        (home / ".hermes/state.db").write_bytes(b"SQLite format 3\0" + b"\x7f" * 5_000)
        report = await write_plan(found, plan, archive, silent)
    assert report.sessions == 0
    assert len(report.failed) == 6
    assert all("state.db is damaged" in why for why in report.failed.values())


async def test_a_newer_conversation_here_stays_the_active_one(tmp_path: Path, api: FakeBotApi) -> None:
    found = open_gateway(home_with("hermes-agent-0.19.0", tmp_path / "home"))
    configured = settings(tmp_path, api)
    async with gateway(configured):
        await api.say("hello")
        await heard(api, 1)
    async with open_archive(configured) as archive:
        plan, _ = await imported(archive, configured, found)
        assert [each.number for each in plan.sessions if each.destination.scope == ADA] == [2, 3]
        assert (await active_sessions(archive))[ADA] == (1, "hello")


@pytest.mark.parametrize("name", RECORDED)
async def test_a_person_who_writes_on_telegram_continues_the_same_conversation(
    name: str, tmp_path: Path, api: FakeBotApi
) -> None:
    """The daemon runs during the import, and has not heard of this person before."""
    found = open_gateway(home_with(name, tmp_path / "home"))
    configured = settings(tmp_path, api)
    provider = ScriptedProvider([TextDelta(text="You drank green tea.")])
    async with gateway(configured) as daemon:
        daemon.agents.replace("main", lambda main: replace(main, provider=provider))
        async with open_archive(configured) as archive:
            _, report = await imported(archive, configured, found, memory_scope=ADA)
        assert not report.failed
        assert not report.memory_failed
        await api.say("What did I drink?")
        assert "You drank green tea." in (await heard(api, 1)).fields["text"]
        prompt = provider.prompts[0]
    first, call, result, *_, question = prompt.messages
    assert isinstance(first, UserMessage)
    assert "I like green tea" in first.text
    assert isinstance(call, AssistantMessage)
    assert call.tool_calls
    assert isinstance(result, ToolMessage)
    assert result.outcomes[0].id == call.tool_calls[0].id
    assert isinstance(question, UserMessage)
    assert "What did I drink?" in question.text
    assert "Ada likes green tea." in prompt.system


async def test_memory_of_several_people_waits_for_a_choice(tmp_path: Path) -> None:
    configured = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    found = open_gateway(home_with("nanobot-0.3.5", tmp_path / "home"))
    async with open_archive(configured) as archive:
        plan = await make_plan(found, archive, configured, user="root", progress=silent)
    assert [each.file for each in plan.memory] == ["history.jsonl (telegram:42)"]
    assert [each.why for each in plan.left_out if each.what == "memory/MEMORY.md"] == [
        "it was for all of its 2 people, and here each scope has a memory of its own; choose one with --memory-scope"
    ]


async def test_forgotten_statements_do_not_come_back(tmp_path: Path) -> None:
    configured = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    found = open_gateway(home_with("openclaw-2026.9.6", tmp_path / "home"))
    store = MemoryStore(memory_folder(tmp_path / "data", ADA))
    async with open_archive(configured) as archive:
        await imported(archive, configured, found, memory_scope=ADA)
        first, second = (await asyncio.to_thread(store.read)).statements
        assert first.text == "Preferences: Ada likes green tea."
        assert first.origin.startswith("noted 2026-")
        assert first.file == "imported-from-openclaw.md"
        store.forget(first.number)
        _, report = await imported(archive, configured, found, memory_scope=ADA)
        assert report.statements == 0
        assert (await asyncio.to_thread(store.read)).statements == (second,)


@pytest.fixture
def moved_home(tmp_path: Path) -> Path:
    """Return a home folder with the data of hermes-agent, and our configuration."""
    home = tmp_path / "home"
    home_with("hermes-agent-0.19.0", home)
    write_config(home)
    return home


def test_the_plan_is_shown_and_a_dry_run_writes_nothing(moved_home: Path) -> None:
    shown = gatehouse("import", home=moved_home)
    assert "Look at the plan with `gatehouse import --from hermes --dry-run`." in shown.stdout
    planned = gatehouse("import", "--from", "hermes", "--dry-run", home=moved_home)
    assert planned.returncode == 0, planned.stderr
    assert "Chats: 3 direct chats, 2 groups." in planned.stdout
    assert f"{ADA} (Ada): 2 sessions, 12 messages, 4 tool calls; session 2 becomes the active one." in planned.stdout
    assert "USER.md: it was for all of its 2 people" in planned.stdout
    assert 'token = "env:TELEGRAM_TOKEN"' in planned.stdout
    assert "made-up" not in planned.stdout
    assert planned.stdout.endswith("Would import 6 sessions. Nothing was written.\n")
    assert "agent:" not in gatehouse("sessions", "list", home=moved_home).stdout


def test_json_names_every_session_and_the_configuration_is_only_written_to_a_new_file(moved_home: Path) -> None:
    target = moved_home / "proposed.toml"
    words = ("import", "--from", "hermes", "--json", "--write-config", str(target), "--secrets")
    with running(moved_home, DEFAULTS):
        done = gatehouse(*words, home=moved_home)
    (result,) = json.loads(done.stdout)
    assert result["ok"], done.stderr
    assert {each["outcome"] for each in result["sessions"]} == {"imported"}
    assert [each["key"] for each in result["sessions"] if each["active"]].count(f"{ADA}#2") == 1
    assert "made-up" not in done.stdout
    assert target.stat().st_mode & 0o777 == 0o600
    proposed = target.read_text()
    assert 'token = "123456:made-up-token"' in proposed
    assert "group_allow = [-1001234567890]" in proposed
    target.write_text(f"{proposed}\n[http]\nport = 0\n")
    checked = gatehouse("--config", str(target), "config", "check", home=moved_home)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    again = gatehouse(*words, home=moved_home)
    assert again.returncode == 1
    assert "exists. Choose another name." in json.loads(again.stdout)[0]["config"]
    assert target.read_text().startswith(proposed)


def test_secrets_are_never_printed(moved_home: Path) -> None:
    refused = gatehouse("import", "--from", "hermes", "--secrets", home=moved_home)
    assert refused.returncode == 2
    assert "--secrets needs --write-config" in refused.stderr
    words = ("import", "--from", "hermes", "--secrets", "--write-config", str(moved_home / "proposed.toml"))
    planned = gatehouse(*words, "--dry-run", home=moved_home)
    assert 'token = "env:TELEGRAM_TOKEN"' in planned.stdout
    assert "made-up" not in planned.stdout
    assert not (moved_home / "proposed.toml").exists()


def test_damaged_data_is_named_and_nothing_is_written_unless_the_rest_is_wanted(moved_home: Path) -> None:
    (moved_home / ".hermes/config.yaml").write_text("model: [")
    stopped = gatehouse("import", "--from", "hermes", home=moved_home)
    assert stopped.returncode == 1
    assert "config.yaml: it is damaged: it is not YAML." in stopped.stdout
    assert stopped.stdout.endswith("Nothing was imported: 1 item can't be read. --skip-damaged imports the rest.\n")
    assert "agent:" not in gatehouse("sessions", "list", home=moved_home).stdout
    rest = gatehouse("import", "--from", "hermes", "--skip-damaged", home=moved_home)
    assert rest.stdout.endswith("Imported 6 sessions and 0 statements.\n")


def test_a_database_that_is_none_is_refused(moved_home: Path) -> None:
    (moved_home / ".hermes/state.db").write_bytes(b"SQLite format 3\0" + b"\x7f" * 5_000)
    refused = gatehouse("import", "--from", "hermes", home=moved_home)
    assert refused.returncode == 1
    assert "Nothing was imported from" in refused.stderr
    assert "state.db is damaged or no database of a known version" in refused.stderr
    assert "Traceback" not in refused.stderr
