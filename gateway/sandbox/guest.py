"""The gateway's side: having a script run by the sandbox's service."""

import asyncio
from contextlib import suppress
from pathlib import Path

from gateway.aio import whole
from gateway.sandbox.processes import Ended
from gateway.sandbox.script import Script
from gateway.sandbox.walls import NoSandbox
from gateway.sandbox.wire import MAX_LINE, answer_of, line_of

__all__ = ["hosted"]

_PATIENCE = 10.0


async def hosted(script: Script, service: Path) -> Ended:
    """Have `script` run by whoever listens on the socket `service`; cancelled, it is ended there first."""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(service, limit=MAX_LINE)
    except OSError as trouble:
        raise NoSandbox(_silent(service, trouble)) from trouble
    try:
        writer.write(line_of(script))
        await writer.drain()
        return answer_of(await reader.readline())
    except (OSError, ValueError):  # Who asks must not run it once more elsewhere: a part of it was done.
        return Ended(output="", exit_code=1, stopped_for="the service that runs commands has ended")
    finally:
        await whole(_hang_up(reader, writer), patience=_PATIENCE)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell that nothing is waited for any more, and wait until all has ended there."""
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(_PATIENCE):
            while await reader.read(MAX_LINE):
                pass
    writer.close()


def _silent(service: Path, trouble: OSError) -> str:
    reason = trouble.strerror or "no answer in time"
    return (
        f"The shell is not available: the service that runs commands cannot be reached on {service} ({reason}). "
        "The operator can look at `systemctl status gatehouse-sandbox`."
    )
