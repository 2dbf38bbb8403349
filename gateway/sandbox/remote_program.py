"""Long-lived programs in the sandbox service: the service's side, and the gateway's.

The connection lives as long as the program. The gateway sends the program with its pipes, then what to do with it:
`terminate` or `kill`. The service answers `started` or `refused`, then `ended`. Hanging up kills the program.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.aio import finish_before_cancel
from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable
from gateway.sandbox.layout import SandboxedProgram
from gateway.sandbox.program_process import ProgramExit, ProgramProcess, Stdio, start_process
from gateway.sandbox.service_socket import NO_NETWORK, close_all, encode_line, send_request

_VERSION = 1
"""Of the messages about programs. The service refuses newer ones."""
_START_TIMEOUT = 60.0
_END_TIMEOUT = 15.0

_OTHER_VERSION = (
    "The sandbox service is of another version than the gateway, and cannot run this program. The operator can restart "
    "it with `systemctl restart gatehouse-sandbox`, after `gatehouse service install --system`."
)
_NO_ANSWER = "The sandbox service does not answer. The operator can check `systemctl status gatehouse-sandbox`."


@asynccontextmanager
async def start_by_service(program: SandboxedProgram, stdio: Stdio, service: Path) -> AsyncIterator["RemoteProgram"]:
    """Have the service on the socket `service` start the sandbox, as `start_process` does it here."""
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            reader, writer = await send_request(service, {"version": _VERSION, "program": _encode(program)}, stdio)
    except TimeoutError as late:  # The service does not read the request.
        raise SandboxUnavailable(_NO_ANSWER) from late
    try:
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                answer = json.loads(await reader.readline() or b"{}")
        except (OSError, ValueError) as error:  # Also a timeout.
            raise SandboxUnavailable(_NO_ANSWER) from error
        if "refused" in answer:
            raise SandboxUnavailable(answer["refused"])
        if "started" not in answer:  # An older service hangs up.
            raise SandboxUnavailable(_OTHER_VERSION)
        running = RemoteProgram(answer["started"]["pid"], reader, writer)
        try:
            yield running
        finally:
            running.kill()
            await finish_before_cancel(running.wait(), grace=_END_TIMEOUT)
    finally:
        writer.close()


class RemoteProgram:
    """The gateway's side of a program in the service."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer
        # A task group would wrap the errors of the block that uses the program. `start_by_service` waits for the task.
        self._ending = asyncio.get_running_loop().create_task(self._read_end(), name="sandbox:remote")

    async def wait(self) -> ProgramExit:
        await asyncio.wait({self._ending})
        if self._ending.cancelled():
            return ProgramExit(1, "the service that runs programs does not answer")
        return self._ending.result()

    async def terminate(self) -> None:
        self._order("terminate")

    def kill(self) -> None:
        if not self._ending.done():
            self._order("kill")
            asyncio.get_running_loop().call_later(_END_TIMEOUT, self._ending.cancel)

    def _order(self, order: str) -> None:
        if not self._ending.done():
            self._writer.write(encode_line({"do": order}))

    async def _read_end(self) -> ProgramExit:
        with suppress(OSError, ValueError, KeyError):
            return ProgramExit(**json.loads(await self._reader.readline())["ended"])
        return ProgramExit(1, "the service that runs programs has ended")


async def serve_program(
    request: dict[str, Any],  # Any: JSON of the gateway.
    descriptors: list[int],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    has_network: bool,
) -> None:
    """Run one program until it ends or the client hangs up. Takes the descriptors."""
    try:
        program = _decode(request, has_network=has_network)
        stdin, stdout, stderr = descriptors
        async with start_process(program, Stdio(stdin, stdout, stderr)) as running:
            close_all(descriptors)  # The program alone has them now, so that the streams end with it.
            writer.write(encode_line({"started": {"pid": running.pid}}))
            writer.write(encode_line({"ended": asdict(await _follow_orders(running, reader))}))
    except SandboxUnavailable as refusal:
        writer.write(encode_line({"refused": str(refusal)}))
    finally:
        close_all(descriptors)
    await writer.drain()


async def _follow_orders(running: ProgramProcess, reader: asyncio.StreamReader) -> ProgramExit:
    async def obey() -> None:
        with suppress(OSError, ValueError):
            while (line := await reader.readline()) and json.loads(line) == {"do": "terminate"}:
                await running.terminate()
        running.kill()

    async with asyncio.TaskGroup() as group:
        orders = group.create_task(obey(), name="sandbox:orders")
        ended = await running.wait()
        orders.cancel()
    return ended


def _encode(program: SandboxedProgram) -> dict[str, object]:
    return {
        "argv": program.argv,
        "env": {**program.env},
        "path": program.path,
        "cwd": str(program.cwd),
        "writable": [str(path) for path in program.writable],
        "readable": [str(path) for path in program.readable],
        "hidden": [str(path) for path in program.hidden],
        "home": str(program.home) if program.home else None,
        "attachments": str(program.attachments) if program.attachments else None,
        "network": program.network,
        "limits": asdict(program.limits),
    }


def _decode(request: dict[str, Any], *, has_network: bool) -> SandboxedProgram:  # Any: JSON of the gateway.
    """Read a program. Raises `SandboxUnavailable` if we cannot run it, and `ValueError` if there is none."""
    if request.get("version") != _VERSION:
        raise SandboxUnavailable(_OTHER_VERSION)
    try:
        given = request["program"]
        program = SandboxedProgram(
            argv=tuple(map(str, given["argv"])),
            env={str(name): str(value) for name, value in given["env"].items()},
            path=tuple(map(str, given["path"])),
            cwd=Path(given["cwd"]),
            writable=tuple(map(Path, given["writable"])),
            readable=tuple(map(Path, given["readable"])),
            hidden=tuple(map(Path, given["hidden"])),
            home=Path(given["home"]) if given["home"] else None,
            attachments=Path(given["attachments"]) if given["attachments"] else None,
            network=bool(given["network"]),
            limits=SandboxLimits(**given["limits"]),
        )
    except (TypeError, KeyError, AttributeError) as mistake:
        raise ValueError("the request has no program") from mistake
    if program.network and not has_network:
        raise SandboxUnavailable(NO_NETWORK)
    return program
