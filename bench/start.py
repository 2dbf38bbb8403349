"""Measures the start and the idle memory of a daemon, compared with a minimal aiohttp server."""

import subprocess
import sys
from collections.abc import Iterator
from statistics import median as middle
from time import perf_counter

from bench.daemon import free_port, started, until_answering
from bench.process import memory_mb
from bench.table import Row, median

TIMES = 7
READY_LIMIT_MS = 900
MEMORY_LIMIT_MB = 60

BARE_SERVER = """
import sys
from aiohttp import web
async def readyz(request): return web.json_response({})
app = web.Application()
app.router.add_get("/readyz", readyz)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
IMPORTS = "import gateway.cli.run, channels.web, channels.terminal"


def rows() -> Iterator[Row]:
    bare_ms, bare_mb = _middle([_bare() for _ in range(TIMES)])
    ours_ms, ours_mb = _middle([_ours() for _ in range(TIMES)])
    imports_ms = median(_imports_ms, TIMES)
    yield Row(
        what="gatehouse run to /readyz",
        measured=f"{ours_ms:.0f} ms (imports alone: {imports_ms:.0f} ms)",
        baseline=f"bare aiohttp server: {bare_ms:.0f} ms",
        target=f"< {READY_LIMIT_MS} ms",
        is_met=ours_ms < READY_LIMIT_MS,
    )
    yield Row(
        what="idle memory (RSS)",
        measured=f"{ours_mb:.1f} MB",
        baseline=f"bare aiohttp server: {bare_mb:.1f} MB",
        target=f"< {MEMORY_LIMIT_MB} MB",
        is_met=ours_mb < MEMORY_LIMIT_MB,
    )


def _middle(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return middle(took for took, _ in pairs), middle(memory for _, memory in pairs)


def _ours() -> tuple[float, float]:
    with started() as daemon:
        return daemon.ready_ms, memory_mb(daemon.pid)


def _bare() -> tuple[float, float]:
    port = free_port()
    began = perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BARE_SERVER, str(port)])
    try:
        until_answering(f"http://127.0.0.1:{port}/readyz")
        return (perf_counter() - began) * 1000, memory_mb(process.pid)
    finally:
        process.terminate()
        process.wait()


def _imports_ms() -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return (perf_counter() - began) * 1000
