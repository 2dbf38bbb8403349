"""`gatehouse upgrade --check` on 100,000 sessions with 1,000,000 messages in files: time of each step, and memory."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.moving import SESSIONS, TURNS, write_sessions
from bench.table import Row

MAX_SECONDS = 120
MAX_MEGABYTES = 600
_PROGRAM = """
import resource, sys
from gateway.cli import main
code = main(["--config", sys.argv[1], "upgrade", "--check", "--json"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
sys.exit(code)
"""


def rows() -> Iterator[Row]:
    with TemporaryDirectory(prefix="bench-", dir=Path.home()) as name:
        folder = Path(name)
        config = folder / "gatehouse.toml"
        config.write_text(f'[gateway]\ndata_dir = "{folder / "data"}"\n')
        config.chmod(0o600)
        write_sessions(folder / "data")
        os.sync()
        began = perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(config)],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = perf_counter() - began
    if done.returncode:
        raise SystemExit(f"The rehearsal has failed:\n{done.stdout}{done.stderr}")
    steps = (f"{step['name']} {step['seconds']:.0f} s" for step in json.loads(done.stdout)["steps"])
    yield Row(
        what=f"rehearse an update with {SESSIONS:,} sessions, {SESSIONS * TURNS * 2:,} messages",
        measured=f"{seconds:.0f} s ({', '.join(steps)})",
        baseline="",
        target=f"under {MAX_SECONDS} s",
        is_met=seconds < MAX_SECONDS,
    )
    megabytes = int(done.stderr.split()[-1])
    yield Row(
        what="memory of the rehearsal",
        measured=f"{megabytes} MB",
        baseline="",
        target=f"under {MAX_MEGABYTES} MB",
        is_met=megabytes < MAX_MEGABYTES,
    )
