"""A process that commits as fast as it can and says on stdout what was acknowledged; others kill it or spoil its disk.

Run as `python -m tests.spool.storm DATA_DIR FIRST COUNT`: numbers from FIRST on, each an event, a message and a reply.
"""

import asyncio
import os
import sys
from pathlib import Path

import structlog

from gateway.spool import AppendEntries, Spool, SpoolBroken, SpoolUnavailable
from tests.spool.samples import accept, send, take

TASKS = 20


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


async def commit(spool: Spool, numbers: range) -> None:
    for number in numbers:
        try:
            await spool.commit(
                take(f"e{number}"),
                accept(f"t{number}"),
                AppendEntries(session=f"s{number % 7}", first_seq=number, lines=(b"%d\n" % number,)),
                send(f"k{number}"),
            )
        except SpoolUnavailable:
            say("full")
        except SpoolBroken:
            say("broken")
        else:
            say(f"stored {number}")


async def main(data_dir: Path, first: int, count: int) -> int:
    async with await Spool.open(data_dir) as spool:
        say("open")
        async with asyncio.TaskGroup() as group:
            for lane in range(TASKS):
                numbers = range(first + lane, first + count, TASKS)
                group.create_task(commit(spool, numbers), name=f"lane:{lane}")
        return int(spool.broken.is_set())


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.exit(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
