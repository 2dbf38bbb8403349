"""What concerns all conversations: a change at one node of a cluster holds at all of them, and each one shows it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from gateway.admin.archive import RemoteArchive
from gateway.admin.client import ControlClient
from gateway.cli.common import EXIT_CONFIG
from gateway.contract import Address, PeerKind, Sender
from gateway.conversation import Json
from gateway.spool import Recurrence, ReminderContent, ScheduleContent
from gateway.spool.rows import encode, to_micros
from tests.channels.telegram.bot_api import refusal
from tests.cluster.harness import CONFIG, HTTP_TOKEN, TIMEOUT, Cluster, cluster
from tests.daemon_process import gatehouse, write_config

MAX_ACTIVE = 6


@asynccontextmanager
async def client(nodes: Cluster, name: str, token: str = HTTP_TOKEN) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(nodes.nodes[name].url, headers=headers) as session:
        yield session


@asynccontextmanager
async def control(nodes: Cluster, name: str) -> AsyncIterator[ControlClient]:
    async with ControlClient(nodes.nodes[name].data) as found:
        yield found


async def call(
    session: aiohttp.ClientSession, method: str, path: str, body: Json = None
) -> tuple[int, Any]:  # Any: the JSON of the response.
    async with session.request(method, path, json=body) as response:
        return response.status, await response.json()


async def eventually(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await is_true():  # noqa: ASYNC110 - of another process.
            await asyncio.sleep(0.02)


async def logged(nodes: Cluster, event: str, **fields: str) -> str:
    """Wait for a log line of any node, and return the name of that node."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [
            name
            for name, daemon in nodes.nodes.items()
            if any(each["event"] == event and fields.items() <= each.items() for each in daemon.log)
        ]
        return bool(found)

    await nodes.until(is_there)
    return found[0]


async def test_every_node_lists_and_counts_all_sessions(tmp_path: Path, database_url: str) -> None:
    config = CONFIG.replace("max_active_sessions = 1000", f"max_active_sessions = {MAX_ACTIVE}")
    async with (
        cluster(tmp_path, database_url, "a", "b", config=config) as nodes,
        client(nodes, "a") as a,
        client(nodes, "b") as b,
    ):
        for chat in range(1, 5):
            await nodes.say(chat, "m0")
            await nodes.answered(chat, "m0")
        started: list[str] = []
        for number in range(MAX_ACTIVE):
            here, there = (a, b) if number % 2 else (b, a)
            status, session = await call(here, "POST", "/api/sessions", {"title": f"Number {number} of 6"})
            assert status == 201, session
            started.insert(0, session["id"])
            # It is in the list of the other node at once.
            status, listed = await call(there, "GET", "/api/sessions?channel=api")
            assert [each["id"] for each in listed["sessions"]] == started
        for here in (a, b):
            status, problem = await call(here, "POST", "/api/sessions", {})
            assert status == 429, problem
            assert f"{MAX_ACTIVE} sessions are active" in str(problem)
            assert (await call(here, "GET", "/api/sessions?channel=api&limit=2&offset=1"))[1]["total"] == MAX_ACTIVE
            status, page = await call(here, "GET", "/api/sessions?channel=api&limit=2&offset=1")
            assert [each["id"] for each in page["sessions"]] == started[1:3]
            assert (await call(here, "GET", "/api/sessions"))[1]["total"] == MAX_ACTIVE + 4
            assert (await call(here, "GET", "/api/sessions?status=completed"))[1]["total"] == 0
            status, page = await call(here, "GET", "/api/sessions?q=NUMBER+5")
            assert [each["id"] for each in page["sessions"]] == started[:1]
            status, found = await call(here, "GET", "/api/search?q=answer")
            assert len(found["hits"]) == 4, found
            assert (await call(here, "GET", "/api/status"))[1]["activeSessions"] == MAX_ACTIVE
        for name in "ab":
            async with control(nodes, name) as operator:
                archive = RemoteArchive(operator)
                listed = [each async for each in archive.sessions()]
                assert len(listed) == MAX_ACTIVE + 4
                assert all(each.is_active for each in listed)
                of_chat = [each async for each in archive.sessions("agent:main:telegram:direct:2")]
                assert [each.meta.messages for each in of_chat] == [2]
                assert [each async for each in archive.sessions(are_archived=True)] == []
            shown = await asyncio.to_thread(gatehouse, "status", home=nodes.nodes[name].home)
            assert shown.returncode == 0, shown


async def test_a_command_names_the_nodes_that_use_its_database(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        alone = tmp_path / "alone"
        alone.mkdir()
        write_config(alone, f'[gateway]\ndata_dir = "{alone}/data"\n[storage]\nurl = "{database_url}"\n')
        for command in (["sessions", "list"], ["migrate", "--to", f"sqlite:///{alone}/copy.db"], ["run"]):
            refused = await asyncio.to_thread(gatehouse, *command, home=alone)
            assert refused.returncode == EXIT_CONFIG, refused
            assert "in use by a cluster. Its nodes are: a, b." in refused.stderr
        # What a killed coding agent of a deleted session has left here is deleted by the next start.
        home = nodes.nodes["a"].data / "agents" / "deleted-0123" / "home"
        home.mkdir(parents=True)
        assert await nodes.stop("a") == 0
        await nodes.start("a")
        assert not home.parent.exists()


async def test_a_change_of_access_holds_at_all_nodes(tmp_path: Path, database_url: str) -> None:
    config = CONFIG.replace('dm_policy = "open"', 'dm_policy = "pairing"')
    async with cluster(tmp_path, database_url, "a", "b", config=config) as nodes:
        # A token of one node works at the other one, until it is revoked.
        async with control(nodes, "a") as operator:
            created = await operator.post("/tokens/create", {"name": "ci", "scopes": ["read", "prompt"]})
        async with client(nodes, "b", str(created["secret"])) as program:

            async def has_access() -> bool:
                return (await call(program, "GET", "/api/sessions"))[0] == 200

            async def has_none() -> bool:
                return not await has_access()

            await eventually(has_access)
            async with control(nodes, "a") as operator:
                token = created["created"]
                assert isinstance(token, dict)
                await operator.post("/tokens/revoke", {"id": token["id"]})
            await asyncio.to_thread(nodes.nodes["b"].wait_for, "token_ended", token=token["id"])
            assert await has_none()
        # A person gets access at one node, and loses it at the one that does not answer them.
        await nodes.say(7, "hello")
        await nodes.until(lambda: bool(nodes.shown()[7]))
        code = nodes.shown()[7][0].partition("code: ")[2][:9]
        for name in "ab":

            async def knows_code(name: str = name) -> bool:
                async with control(nodes, name) as operator:
                    return code in str((await operator.get("/pair"))["waiting"])

            await eventually(knows_code)
        async with control(nodes, "b") as operator:
            await operator.post("/pair/approve", {"code": code})

        async def is_guest() -> bool:
            async with control(nodes, "a") as operator:
                return "telegram:7" in str((await operator.get("/pair"))["guests"])

        await eventually(is_guest)
        await nodes.say(7, "m0")
        await nodes.answered(7, "m0")
        owner = await logged(nodes, "message_handled", chat="7")
        await nodes.say(7, "m1 wait")
        await nodes.model.was_asked("m1 wait")
        async with control(nodes, "b" if owner == "a" else "a") as operator:
            await operator.post("/pair/revoke", {"id": "telegram:7"})
        await logged(nodes, "work_stopped")


async def test_a_failed_reply_is_sent_again_by_any_node(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        nodes.api.scripted["sendMessage"].extend([refusal(403, "Forbidden: bot was blocked by the user")] * 100)
        for chat in (1, 2):
            await nodes.say(chat, "m0")

        async def failed(name: str) -> list[Json]:
            async with control(nodes, name) as operator:
                rows = (await operator.get("/spool"))["undelivered"]
            assert isinstance(rows, list)
            return [row["key"] for row in rows if isinstance(row, dict) and row["state"] == "dead"]

        async def have_failed() -> bool:
            return len(await failed("a")) == 2

        await eventually(have_failed)
        keys = await failed("b")
        nodes.api.scripted["sendMessage"].clear()
        refused = len(nodes.api.calls_of("sendMessage"))
        async with control(nodes, "a") as operator:
            assert (await operator.post("/spool/retry", {"key": keys[0]}))["revived"] == keys[:1]
            assert (await operator.post("/spool/retry", {"key": keys[1]}))["revived"] == keys[1:]
        await nodes.until(lambda: len(nodes.api.calls_of("sendMessage")) == refused + 2)
        assert await failed("a") == []
        for chat in (1, 2):
            await nodes.say(chat, "m1")
            await nodes.answered(chat, "m1")
        assert ["answer m0" in call.fields["text"] for call in nodes.api.calls_of("sendMessage")[refused:]].count(
            True
        ) == 2


async def test_reminders_of_a_dead_node_are_sent_by_another(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        for chat in range(1, 7):
            await nodes.say(chat, "m0")
            await nodes.answered(chat, "m0")

        due_at = datetime.now(UTC) + timedelta(seconds=4)
        rows = [
            (
                f"r{chat}",
                f"agent:main:telegram:direct:{chat}",
                to_micros(due_at),
                encode(
                    ReminderContent(
                        address=Address(channel="telegram", kind=PeerKind.DIRECT, peer=str(chat)),
                        maker=Sender(id=str(chat)),
                        text="drink tea",
                    )
                ),
            )
            for chat in range(1, 7)
        ]
        with psycopg.connect(database_url) as connection:
            connection.cursor().executemany(
                "INSERT INTO reminders (id, scope, number, due_at, about) VALUES (%s, %s, 1, %s, %s)", rows
            )
        await nodes.kill("a")
        await nodes.until(lambda: sum("drink tea" in str(texts) for texts in nodes.shown().values()) == 6)
        assert all("Late" not in str(texts) for texts in nodes.shown().values())
        assert sum(str(texts).count("drink tea") for texts in nodes.shown().values()) == 6


async def test_schedules_of_a_dead_node_run_once_at_another(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        for chat in range(1, 7):
            await nodes.say(chat, "m0")
            await nodes.answered(chat, "m0")

        due_at = datetime.now(UTC) + timedelta(seconds=4)
        rows = [
            (
                f"s{chat}",
                f"agent:main:telegram:direct:{chat}",
                to_micros(due_at),
                to_micros(due_at),
                encode(
                    ScheduleContent(
                        address=Address(channel="telegram", kind=PeerKind.DIRECT, peer=str(chat)),
                        maker=Sender(id=str(chat), is_owner=True),
                        prompt="drink tea",
                        when=Recurrence(at=due_at),
                        created_at=due_at,
                    )
                ),
            )
            for chat in range(1, 7)
        ]
        with psycopg.connect(database_url) as connection:
            connection.cursor().executemany(
                "INSERT INTO schedules (id, scope, number, state, due_at, planned_at, about) "
                "VALUES (%s, %s, 1, 'active', %s, %s, %s)",
                rows,
            )
        await nodes.kill("a")

        def answers() -> int:
            return sum(str(texts).count("drink tea") for texts in nodes.shown().values())

        await nodes.until(lambda: answers() == 6)
        with psycopg.connect(database_url) as connection:

            def ended() -> list[tuple[str, int]]:
                found = connection.execute("SELECT state, count(*) FROM schedule_runs GROUP BY state").fetchall()
                connection.rollback()
                return found

            await nodes.until(lambda: ended() == [("done", 6)])
        assert answers() == 6
