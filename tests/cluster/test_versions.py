"""Nodes of two versions on one database: what they may do together, and which of them have to refuse."""

import asyncio
from functools import partial
from pathlib import Path

import psycopg

from gateway import __version__
from gateway.database.migrate import HEAD
from tests.cluster.harness import TIMEOUT, Cluster, check_answers, cluster
from tests.cluster.newer_version import AFTER_NEXT, NEXT, newer_version, run
from tests.daemon_process import gatehouse

EXIT_CONFIG = 78
EXIT_FENCED = 70
CHATS = range(1, 9)
GOOD = {"lost": 0, "doubled": 0, "disordered": 0, "marked": 0}


class Talk:
    """Numbered messages in all chats."""

    def __init__(self, nodes: Cluster) -> None:
        self._nodes = nodes
        self.said = dict.fromkeys(CHATS, 0)

    async def say(self, more: str = "") -> None:
        for chat in CHATS:
            await self._nodes.say(chat, f"m{self.said[chat]}{more}")
            self.said[chat] += 1

    async def answered(self) -> None:
        await self._nodes.until(lambda: check_answers(self._nodes.shown(), self.said)["lost"] == 0)
        assert check_answers(self._nodes.shown(), self.said) == GOOD


def served(nodes: Cluster, name: str) -> int:
    return sum(each["event"] == "message_handled" for each in nodes.nodes[name].log)


async def test_nodes_are_updated_while_others_of_the_version_before_serve(tmp_path: Path, database_url: str) -> None:
    newer = newer_version(tmp_path, "9.0.1", NEXT)
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        talk = Talk(nodes)
        await talk.say()
        # The newer node migrates the database under the running ones, which go on.
        starting = asyncio.create_task(nodes.start("c", source=newer))
        while not starting.done():
            await talk.say()
            await talk.answered()
        await starting
        assert any(each["event"] == "database_migrated" for each in nodes.nodes["c"].log)
        # It takes over everything, also the bot, and then gives a share to a node of the version before.
        for name in "ab":
            assert nodes.nodes[name].process.poll() is None
            assert await nodes.stop(name) == 0
        await talk.say()
        await talk.answered()
        await nodes.start("a")
        await nodes.until(lambda: any(each["event"] == "shards_taken" for each in nodes.nodes["a"].log))
        with psycopg.connect(database_url, autocommit=True) as connection:
            for payload in ("", "arrival", "arrival x", "arrival 999", f"arrival {'9' * 6000}", "weather 7 {}"):
                connection.execute("SELECT pg_notify('gatehouse', %s)", (payload,))
        while not served(nodes, "a"):  # Messages that the newer node has accepted, and replies that it has stored.
            await talk.say()
            await talk.answered()
        status = gatehouse("cluster", "status", home=tmp_path / "a")
        assert status.returncode == 0
        assert f"a version behind: it knows schema {HEAD}, and the database has {NEXT}" in status.stdout
        assert "settings differ" not in status.stdout
        assert "different versions" in status.stdout
        assert f"schema {NEXT} of a newer version" in gatehouse("db", "current", home=tmp_path / "a").stdout
        # It continues turns of a newer node that has died.
        await talk.say(" wait")
        await nodes.model.was_asked(" wait", times=len(CHATS))
        await nodes.kill("c")
        nodes.model.may_end.set()
        await talk.answered()
        assert not [each for each in nodes.nodes["a"].log if each["level"] == "error" or "unreadable" in each["event"]]
        assert nodes.api.most_polls == 1


async def test_a_version_that_is_too_old_stays_out(tmp_path: Path, database_url: str) -> None:
    newer = newer_version(tmp_path, "9.0.1", NEXT)
    newest = newer_version(tmp_path, "9.0.2", NEXT, AFTER_NEXT)
    async with cluster(tmp_path, database_url, "a") as nodes:
        talk = Talk(nodes)

        async def db(source: Path, *words: str) -> tuple[int, str]:
            words = ("db", *words, "--url", database_url)
            done = await asyncio.to_thread(run, source, *words, home=tmp_path)
            assert "Traceback" not in done.stderr
            return done.returncode, done.stdout + done.stderr

        # Two steps at once need all nodes to be stopped or updated.
        too_old = f"too old for schema {AFTER_NEXT}: a (version {__version__}, schema {HEAD})"
        code, answer = await db(newest, "upgrade")
        assert (code, too_old in answer, f"a version with schema {NEXT} first" in answer) == (1, True, True), answer
        # One step is possible, but not back while nodes run.
        assert (await db(newer, "upgrade"))[0] == 0
        code, answer = await db(newer, "downgrade", HEAD)
        assert (code, "in use by a cluster: a" in answer) == (1, True), answer
        await talk.say()
        await talk.answered()
        # With an updated node, the next step is possible. The present version is two steps behind then.
        await nodes.stop("a")
        await nodes.start("a", source=newer)
        assert (await db(newest, "upgrade"))[0] == 0
        await nodes.start("b", is_ready=False)
        assert await asyncio.to_thread(nodes.nodes["b"].process.wait, TIMEOUT) == EXIT_CONFIG
        refusal = f"migrated by Gatehouse 9.0.2 (schema {AFTER_NEXT}), and version {__version__} (schema {HEAD})"
        assert refusal in nodes.nodes["b"].errors()
        assert "Start the newer version" in nodes.nodes["b"].errors()
        await talk.say()
        await talk.answered()


async def test_a_paused_node_does_not_go_on_after_a_migration(tmp_path: Path, database_url: str) -> None:
    breaking = newer_version(tmp_path, "9.0.3", NEXT, allows_previous=False)
    async with cluster(tmp_path, database_url, "a", lease=2.0) as nodes:
        upgrade = partial(run, breaking, "db", "upgrade", "--url", database_url, home=tmp_path)
        refused = await asyncio.to_thread(upgrade)
        assert refused.returncode == 1
        assert "are too old" in refused.stderr
        assert "Stop them first" in refused.stderr
        nodes.pause("a")
        async with asyncio.timeout(TIMEOUT):  # As long as its lease holds, it counts as running.
            while (await asyncio.to_thread(upgrade)).returncode:
                pass
        nodes.resume("a")
        assert await asyncio.to_thread(nodes.nodes["a"].process.wait, TIMEOUT) == EXIT_FENCED
        await nodes.start("a", is_ready=False)
        assert await asyncio.to_thread(nodes.nodes["a"].process.wait, TIMEOUT) == EXIT_CONFIG
        assert f"migrated by Gatehouse 9.0.3 (schema {NEXT})" in nodes.nodes["a"].errors()
