"""Nodes that die, hang or leave: their conversations go on at the others."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from time import time

import psycopg

from gateway.cli.common import EXIT_BUG
from gateway.cluster.node import SHARDS_PER_STEP
from gateway.shards import shard_of
from tests.cluster.harness import CONFIG, LEASE, TIMEOUT, TRACE, check_answers, cluster
from tests.cluster.scale import IS_LONG, report
from tests.daemon_process import gatehouse

SCOPE = "agent:main:telegram:direct:{}"


async def test_any_node_answers_and_only_one_polls(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b", "c") as nodes:
        await nodes.all_serve()
        for chat in range(1, 21):
            for number in range(3):
                await nodes.say(chat, f"m{number}")
        await nodes.until(lambda: sum(map(len, nodes.shown().values())) >= 60)
        assert check_answers(nodes.shown(), dict.fromkeys(range(1, 21), 3)) == {
            "lost": 0,
            "doubled": 0,
            "disordered": 0,
            "marked": 0,
        }
        owners = [
            sum(1 for each in daemon.log if each["event"] == "message_handled") for daemon in nodes.nodes.values()
        ]
        assert all(owners), owners
        assert nodes.api.most_polls == 1


async def test_a_killed_node_is_replaced_in_the_middle_of_a_turn(tmp_path: Path, database_url: str) -> None:
    """The tool of each turn has run. It does not run again, and the answer comes when the lease has ended."""
    waits: list[float] = []
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        await nodes.all_serve()
        for turn in range(10 if IS_LONG else 1):
            nodes.model.may_end.clear()
            nodes.model.waiting = 0
            text = f"m{turn} tool wait"
            for chat in range(1, 9):
                await nodes.say(chat, text)
            await nodes.model.has_waiting(8)
            killed = "ab"[turn % 2]
            asked = len(nodes.model.asked)
            await nodes.kill(killed)
            killed_at = time()
            nodes.model.may_end.set()
            for chat in range(1, 9):
                await nodes.answered(chat, text)
            shown = nodes.shown_at()
            waits.append(max(shown[chat][-1] for chat in range(1, 9)) - killed_at)
            assert len(nodes.model.asked) < asked + 8, "some turns were those of the other node"
            assert nodes.model.tool_calls == 8 * (turn + 1), "no model was asked for a tool again"
            await nodes.start(killed)
            await nodes.all_serve()
        counts = check_answers(nodes.shown(), dict.fromkeys(range(1, 9), len(waits)))
        assert counts == {"lost": 0, "doubled": 0, "disordered": 0, "marked": counts["marked"]}
        assert nodes.api.most_polls == 1
    # Each tool has left one file, which the next turn of its chat has replaced.
    traces = await asyncio.to_thread(lambda: [path.read_text() for path in tmp_path.rglob(TRACE)])
    assert len(set(traces)) == len(traces) >= 8, traces
    report("takeover in mid-turn", kills=len(waits), lease=LEASE, worst=max(waits), best=min(waits))
    if IS_LONG:
        assert max(waits) < LEASE + 2


async def test_a_node_that_leaves_gives_everything_back_at_once(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        for chat in range(1, 6):
            await nodes.say(chat, "m0")
            await nodes.answered(chat, "m0")
        assert await nodes.stop("a") == 0
        for chat in range(1, 6):
            await nodes.say(chat, "m1")
        for chat in range(1, 6):
            await nodes.answered(chat, "m1", 3)
        await nodes.start("a")
        await nodes.until(lambda: any(each["event"] == "shards_taken" for each in nodes.nodes["a"].log))
        for chat in range(1, 6):
            await nodes.say(chat, "m2")
            await nodes.answered(chat, "m2")
        assert nodes.api.most_polls == 1


async def test_a_paused_node_stores_nothing_when_it_goes_on(tmp_path: Path, database_url: str) -> None:
    """It is the node that polls, so that another one polls too when it goes on. Its turns are in their middle."""
    chats = range(1, 9)
    pauses = 10 if IS_LONG else 1
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        await nodes.all_serve()
        for pause in range(pauses):
            nodes.model.may_end.clear()
            for chat in chats:
                await nodes.say(chat, f"m{3 * pause} wait")
                await nodes.model.was_asked(f"m{3 * pause} wait", times=chat)
            paused = await nodes.poller()
            other = "ab".replace(paused, "")
            nodes.pause(paused)
            for chat in chats:
                await nodes.say(chat, f"m{3 * pause + 1}")
            await asyncio.to_thread(nodes.nodes[other].wait_for, "nodes_expired")
            nodes.model.may_end.set()
            for chat in chats:
                await nodes.answered(chat, f"m{3 * pause + 1}", LEASE + 20)
            nodes.resume(paused)
            ended = await asyncio.to_thread(nodes.nodes[paused].process.wait, 60)
            assert ended == EXIT_BUG, "it is started again"
            errors = nodes.nodes[paused].errors()
            assert "have taken over from this one" in errors or "this machine was paused" in errors
            assert not [event for event in nodes.nodes[paused].log if "exception" in event], "it is not a bug"
            await nodes.start(paused)
            for chat in chats:
                await nodes.say(chat, f"m{3 * pause + 2}")
                await nodes.answered(chat, f"m{3 * pause + 2}")
            await nodes.all_serve()
        counts = check_answers(nodes.shown(), dict.fromkeys(chats, 3 * pauses))
        assert counts == {"lost": 0, "doubled": 0, "disordered": 0, "marked": counts["marked"]}
        assert nodes.api.most_polls == 1
        report("paused beyond its lease", pauses=pauses, messages=len(chats) * 3 * pauses, **counts)


async def test_a_takeover_that_the_database_interrupts_runs_nothing_twice(tmp_path: Path, database_url: str) -> None:
    """A turn is running when the next one cannot be ended, because its row is locked."""
    config = CONFIG.replace("[storage]\n", "[storage]\nlock_timeout = 1\n")
    chat, other = 5, 7
    assert shard_of(SCOPE.format(chat)) // SHARDS_PER_STEP == shard_of(SCOPE.format(other)) // SHARDS_PER_STEP
    async with cluster(tmp_path, database_url, "a", config=config) as nodes:
        await nodes.say(chat, "m0 wait")
        await nodes.model.was_asked("m0 wait")
        await nodes.say(other, "m0 tool wait")
        await nodes.model.was_asked("m0 tool wait", times=2)
        await nodes.kill("a")

        def failures() -> int:
            return sum(each["event"] == "spool_write_failed" for each in nodes.nodes["b"].log)

        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE inbox SET attempts = 3 WHERE scope = %s", [SCOPE.format(other)])
            connection.commit()
            connection.execute("SELECT 1 FROM inbox WHERE scope = %s FOR UPDATE", [SCOPE.format(other)])
            await nodes.start("b")
            await nodes.until(lambda: failures() >= 2)
        await asyncio.to_thread(nodes.nodes["b"].wait_for, "shards_taken")
        nodes.model.may_end.set()
        await nodes.answered(chat, "m0")
        for each in (chat, other):
            await nodes.say(each, "m1")
            await nodes.answered(each, "m1")
        assert check_answers(nodes.shown(), {chat: 2})["doubled"] == 0
        assert len(nodes.shown()[chat]) == 2
        assert len(nodes.shown()[other]) == 2
        assert nodes.model.asked.count("m0 wait") == 2, "once at each node"


async def test_a_node_takes_nothing_from_the_others_before_it_can_serve(tmp_path: Path, database_url: str) -> None:
    """Its start waits for a file storage that takes connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as storage, ExitStack() as closing:
        async with cluster(tmp_path, database_url, "a") as nodes:
            nodes.more_of["b"] = (
                f'[files]\nshared = "s3"\ns3_endpoint = "http://127.0.0.1:{storage.getsockname()[1]}"\n'
                's3_bucket = "files"\ns3_access_key = "key"\ns3_secret_key = "secret"\n'
            )
            await nodes.start("b", is_ready=False)
            storage.settimeout(TIMEOUT)
            connection, _ = await asyncio.to_thread(storage.accept)
            closing.callback(connection.close)
            await nodes.look()
            status = await asyncio.to_thread(gatehouse, "cluster", "status", home=tmp_path / "a")
            one, two, *others = status.stdout.splitlines()
            assert one.startswith("a: up, 256 shards, ")
            assert two.startswith("b: starting, 0 shards, ")
            assert two.endswith(", no address yet")
            assert not [line for line in others if "have no owner" in line]
            assert status.returncode == 1
            for chat in range(1, 5):
                await nodes.say(chat, "m0")
                await nodes.answered(chat, "m0")
