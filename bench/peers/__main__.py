"""`python -m bench.peers [NAME ...]`: installs and measures each gateway, and prints a Markdown table."""

import argparse
import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers import gatehouse, hermes, nanobot, openclaw
from bench.peers.measurement import CHATS, IN_FLIGHT, Load, Result, measured
from bench.peers.peer import Peer

PEERS = {module.PEER.name: module.PEER for module in (gatehouse, nanobot, hermes, openclaw)}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "gatehouse-bench"

ROWS: dict[str, Callable[[Result], str]] = {
    "start to first answer": lambda result: f"{result.start:.1f} s",
    "memory after that answer": lambda result: f"{result.memory_mb:.0f} MB",
    "one chat, round trip p50": lambda result: _partial(result.one, f"{result.one.trip_ms:.0f} ms"),
    "one chat, CPU per message": lambda result: f"{result.one.cpu_ms:.1f} ms",
    f"{CHATS} chats, messages/s": lambda result: _partial(
        result.many, f"{result.many.answered / result.many.seconds:.1f}"
    ),
    f"{CHATS} chats, CPU per message": lambda result: f"{result.many.cpu_ms:.1f} ms",
    f"`kill -9`, {IN_FLIGHT} in flight: answered after the restart": lambda result: f"{result.crash.answered}",
    "the same: not answered": lambda result: f"{IN_FLIGHT - result.crash.answered}",
    "the same: answered twice": lambda result: f"{result.crash.twice}",
    "the same: had reached the model": lambda result: f"{result.crash.reached_model}",
    "request to the model for a first message": lambda result: f"{result.request_bytes:,} bytes",
    "model requests per message": lambda result: f"{result.requests:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all if none is given")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the installations (%(default)s)")
    args = parser.parse_args()
    peers = [PEERS[name] for name in args.names or PEERS]
    installed = [_installed(peer, args.cache.absolute()) for peer in peers]
    results = [_measured(peer, folder) for peer, folder in zip(peers, installed, strict=True)]
    print("|", *(f"| {peer.name} {peer.version}" for peer in peers), "|")
    print("|---" * (len(peers) + 1) + "|")
    for what, cell in ROWS.items():
        print(f"| {what} |", " | ".join(cell(result) if result else "-" for result in results), "|")


def _installed(peer: Peer, cache: Path) -> Path:
    """Install a gateway unless it is in the cache. An interrupted installation is not kept."""
    folder = cache / f"{peer.name}-{peer.version}"
    done = folder / ".installed"
    if not done.exists():
        print(f"Installing {peer.name} {peer.version} ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        peer.install(folder)
        folder.mkdir(exist_ok=True)
        done.touch()
    return folder


def _measured(peer: Peer, installed: Path) -> Result | None:
    """Return the figures of a gateway, or nothing if it does not answer."""
    print(f"Measuring {peer.name} ...", flush=True)
    with TemporaryDirectory(prefix="gatehouse-bench-") as folder:
        try:
            return asyncio.run(measured(peer, installed, Path(folder)))
        except TimeoutError as late:
            print(f"{peer.name}: {late}")
            return None


def _partial(load: Load, figure: str) -> str:
    """Say how many answers a figure is from where a gateway did not answer all in time."""
    if load.answered == load.wanted:
        return figure
    return f"{figure} ({load.answered} of {load.wanted} within {load.seconds:.0f} s)"


if __name__ == "__main__":
    main()
