"""Conversations that need a label run only at nodes that have it, and go on there when such a node comes back."""

import asyncio
from functools import partial
from pathlib import Path

from tests.cluster.harness import LEASE, Cluster, check_answers, cluster

OWNERS = [901, 902, 903]
"""Chats of owners, who may use every repository."""


def settings(folder: Path) -> str:
    """Return a repository and an agent that need the label `builds`."""
    repo = folder / "site"
    repo.mkdir()
    return f"""
[[repos]]
id = "site"
path = "{repo}"
label = "builds"
[agents.builder]
provider = "fake"
model = "fake-model"
label = "builds"
[[bindings]]
channel = "telegram"
peer = "904"
agent = "builder"
"""


def handled(nodes: Cluster, name: str) -> set[str]:
    """Return the chats in which a node has run turns."""
    return {each["chat"] for each in nodes.nodes[name].log if each["event"] == "message_handled"}


def given_back(nodes: Cluster, name: str) -> int:
    return sum(each["event"] == "shards_given_back" for each in nodes.nodes[name].log)


def was_refused(nodes: Cluster, chat: int) -> bool:
    return any("label builds" in text for text in nodes.shown()[chat])


async def test_labelled_conversations_run_at_the_node_with_the_label(tmp_path: Path, database_url: str) -> None:
    async with cluster(
        tmp_path, database_url, "a", "b", more=settings(tmp_path), labels={"b": ["builds"]}, label_timeout=2
    ) as nodes:
        for chat in OWNERS:
            await nodes.say(chat, "/new @site")
            await nodes.say(chat, "m0")
        await nodes.say(904, "m0")
        for chat in (*OWNERS, 904):
            await nodes.answered(chat, "m0")
            await nodes.say(chat, "m1")
            await nodes.answered(chat, "m1")
        for chat in OWNERS:
            assert any("in site" in text for text in nodes.shown()[chat]), nodes.shown()[chat]
        labelled = {str(chat) for chat in (*OWNERS, 904)}
        assert handled(nodes, "b") == labelled
        # The others still have their share at both nodes.
        others = range(1, 21)
        for chat in others:
            await nodes.say(chat, "m0")
        for chat in others:
            await nodes.answered(chat, "m0")
        assert handled(nodes, "a")
        assert not handled(nodes, "a") & labelled

        # 1. Without the node, each message gets one sentence that says why. A new session needs no label.
        assert await nodes.stop("b") == 0
        for chat in OWNERS:
            await nodes.say(chat, "m2")
        for chat in OWNERS:
            await nodes.until(partial(was_refused, nodes, chat))
        await nodes.say(901, "/new")
        await nodes.say(901, "m3")
        await nodes.answered(901, "m3")
        # 2. When it comes back, it gets its conversations back, and goes on with them.
        before = given_back(nodes, "a")
        await nodes.start("b")
        await nodes.until(lambda: given_back(nodes, "a") > before)
        for chat in OWNERS[1:]:
            await nodes.say(chat, "m3")
            await nodes.answered(chat, "m3")
        for chat in OWNERS:
            assert sum("label builds" in text for text in nodes.shown()[chat]) == 1
        assert handled(nodes, "a") & labelled == {"901"}


async def test_shards_stay_where_they_are_once_each_is_at_its_place(tmp_path: Path, database_url: str) -> None:
    labels = {"b": ["builds"], "c": ["builds", "gpu"]}
    async with cluster(tmp_path, database_url, "a", "b", "c", more=settings(tmp_path), labels=labels) as nodes:
        for chat in OWNERS:
            await nodes.say(chat, "/new @site")
            await nodes.say(chat, "m0")
        for chat in OWNERS:
            await nodes.answered(chat, "m0")
        await nodes.all_serve()
        await nodes.look()
        before = [given_back(nodes, name) for name in nodes.nodes]
        for chat in (*OWNERS, 1, 2, 3):
            await nodes.say(chat, "m1")
            await nodes.answered(chat, "m1")
        await nodes.look()
        assert [given_back(nodes, name) for name in nodes.nodes] == before
        assert not handled(nodes, "a") & set(map(str, OWNERS))


async def test_a_turn_waits_for_the_node_with_its_label(tmp_path: Path, database_url: str) -> None:
    """Other nodes have taken its shard in the meantime. They neither run the turn nor refuse it."""
    async with cluster(tmp_path, database_url, "a", "b", more=settings(tmp_path), labels={"b": ["builds"]}) as nodes:
        await nodes.say(904, "m0 wait")
        await nodes.model.was_asked("m0 wait")
        await nodes.kill("b")
        await asyncio.to_thread(nodes.nodes["a"].wait_for, "nodes_expired")
        await nodes.say(904, "m1")
        await nodes.say(5, "m0")
        await nodes.answered(5, "m0", LEASE + 20)
        nodes.model.may_end.set()
        await nodes.start("b")
        await nodes.answered(904, "m1")
        counts = check_answers(nodes.shown(), {904: 2})
        assert counts == {"lost": 0, "doubled": 0, "disordered": 0, "marked": counts["marked"]}
        assert "904" not in handled(nodes, "a")
