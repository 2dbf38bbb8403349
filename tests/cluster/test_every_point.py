"""Kills a node at points of its work: around each answer of the database. The other node finishes it."""

import signal
from pathlib import Path

from tests.cluster.dying_node import DEATH_REPORT, DIE_AT, PROGRAM
from tests.cluster.harness import check_answers, cluster
from tests.cluster.scale import IS_LONG, report
from tests.forks.process import Forked
from tests.polling import until

POINTS = range(1, 80, 2) if IS_LONG else (17,)
LEASE = 2.0
CHATS = range(1, 5)


def start(command: list[str], cwd: Path, env: dict[str, str], streams: tuple[int, int, int]) -> Forked:
    return Forked(command, cwd=cwd, env=env, streams=streams, program=PROGRAM)


async def test_the_other_node_finishes_what_was_begun_at_any_point(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, lease=LEASE) as nodes:
        nodes.starts["a"] = start
        order, death = tmp_path / "a" / DIE_AT, tmp_path / "a" / DEATH_REPORT
        reached: list[str] = []
        await nodes.start("b")
        for number, point in enumerate(POINTS):
            await nodes.start("a")
            await nodes.all_serve()
            order.write_text(str(point))
            nodes.nodes["a"].signal(signal.SIGUSR1)
            await until(lambda: not order.exists())
            for chat in CHATS:
                await nodes.say(chat, f"m{number} tool")
            for chat in CHATS:
                await nodes.answered(chat, f"m{number} tool")
            await until(lambda: nodes.nodes["a"].process.poll() is not None)  # It polls, so it gets there.
            reached.append(death.read_text())
        counts = check_answers(nodes.shown(), dict.fromkeys(CHATS, len(POINTS)))
        report("killed at a point", points=len(reached), kinds=len(set(reached)), **counts)
        assert counts == {"lost": 0, "doubled": 0, "disordered": 0, "marked": counts["marked"]}
        assert nodes.api.most_polls == 1
