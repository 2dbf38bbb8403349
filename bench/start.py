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
READY_RATIO = 2.0
"""A ratio, because machines differ more than versions do."""
MEMORY_LIMIT_MB = 50

BARE_SERVER = """
import sys
from aiohttp import web
async def readyz(request): return web.json_response({})
app = web.Application()
app.router.add_get("/readyz", readyz)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
IMPORTS = """
import gc
gc.disable()  # As `gatehouse run` does.
from gateway.lean_imports import import_libraries
import_libraries()
import gateway.cli.serve, channels.web, channels.terminal
"""


def rows() -> Iterator[Row]:
    # In alternation, so that other load on the machine affects both equally.
    pairs = [(_bare(), _ours()) for _ in range(TIMES)]
    (bare_ms, bare_mb), (ours_ms, ours_mb) = (_middle(list(each)) for each in zip(*pairs, strict=True))
    ratio = middle(ours[0] / bare[0] for bare, ours in pairs)
    imports_ms = median(_imports_ms, TIMES)
    yield Row(
        what="gatehouse run to /readyz",
        measured=f"{ours_ms:.0f} ms, {ratio:.2f}x (imports alone: {imports_ms:.0f} ms)",
        baseline=f"bare aiohttp server: {bare_ms:.0f} ms",
        target=f"<= {READY_RATIO}x",
        is_met=ratio <= READY_RATIO,
    )
    yield Row(
        what="idle memory (RSS)",
        measured=f"{ours_mb:.1f} MB",
        baseline=f"bare aiohttp server: {bare_mb:.1f} MB",
        target=f"<= {MEMORY_LIMIT_MB} MB",
        is_met=ours_mb <= MEMORY_LIMIT_MB,
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
