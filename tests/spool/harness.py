"""Set-up shared by the tests of the spool."""

import asyncio
import threading

from gateway.database.connection import Connection
from gateway.spool import Spool


class WriterGate:
    """Holds the writer's thread between two transactions."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, connection: Connection) -> None:
        del connection
        self.reached.set()
        assert self.opened.wait(30)


async def change(spool: Spool, statement: str) -> None:
    """Spoil a row, as another version might have stored it."""
    await spool._writer.run(lambda connection: connection.execute(statement))  # noqa: SLF001 - no operation does this


async def held(spool: Spool, group: asyncio.TaskGroup) -> WriterGate:
    """Keep the writer busy until the gate is opened, so that commits queue up."""
    gate = WriterGate()
    group.create_task(spool._writer.run(gate), name="gate")  # noqa: SLF001 - the only way to make the queueing certain
    await asyncio.to_thread(gate.reached.wait, 30)
    return gate
