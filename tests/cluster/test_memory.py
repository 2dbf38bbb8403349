"""Archiving into memory in a cluster: the owner of a conversation does it, and its next owner goes on."""

from pathlib import Path

import psycopg

from gateway.memory import Statement, memory_folder
from gateway.memory.queue import WAITING_FACTS
from gateway.memory.statement import parse
from tests.cluster.harness import Cluster, cluster

CHATS = range(1, 7)


def waiting(nodes: Cluster) -> int:
    with psycopg.connect(nodes.url, autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM facts WHERE name LIKE %s", (f"{WAITING_FACTS}%",)).fetchone()
    return int(found[0]) if found else 0


def remembered(nodes: Cluster, chat: int) -> list[str]:
    """Return the statements about a chat as the database has them, without those of a model that sees them."""
    folder = memory_folder(Path("/"), f"agent:main:telegram:direct:{chat}").name
    with psycopg.connect(nodes.url, autocommit=True) as connection:
        query = "SELECT value FROM facts WHERE name LIKE %s ORDER BY name"
        files = connection.execute(query, (f"memory/{folder}/%",)).fetchall()
    return [part.text for (text,) in files for part in parse(text) if isinstance(part, Statement)]


async def test_the_next_owner_of_a_conversation_archives_what_a_dead_node_has_left(
    tmp_path: Path, database_url: str
) -> None:
    """The sessions leave while no model answers the archiver, and the node that had begun to read them dies."""
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        await nodes.all_serve()
        nodes.model.may_archive.clear()
        for chat in CHATS:
            await nodes.say(chat, f"m0 of {chat}")
            await nodes.answered(chat, f"m0 of {chat}")
            await nodes.say(chat, "/new")
        await nodes.until(lambda: waiting(nodes) == len(CHATS))
        await nodes.until(lambda: nodes.model.archived == 2)  # Each node reads one session at a time.
        await nodes.kill("a")
        nodes.model.may_archive.set()
        await nodes.until(lambda: waiting(nodes) == 0)
        assert {chat: remembered(nodes, chat) for chat in CHATS} == {chat: [f"m0 of {chat}"] for chat in CHATS}
        # The node comes back, and what its conversations say next goes into the same memory.
        await nodes.start("a")
        await nodes.all_serve()
        for chat in CHATS:
            await nodes.say(chat, f"m1 of {chat}")
            await nodes.answered(chat, f"m1 of {chat}")
            await nodes.say(chat, "/new")
        await nodes.until(lambda: all(len(remembered(nodes, chat)) > 1 for chat in CHATS))
        await nodes.say(1, "/memory forget 1")
        await nodes.until(lambda: any("Forgotten" in text for text in nodes.shown()[1]))
        assert remembered(nodes, 1) == ["m1 of 1"]
        assert {chat: remembered(nodes, chat) for chat in CHATS[1:]} == {
            chat: [f"m0 of {chat}", f"m1 of {chat}"] for chat in CHATS[1:]
        }
