"""Dies at each kill point of a change of memory files, in a process of its own. The argument is a data directory."""

from tests.crash import kill_points

kill_points.install()  # Before any import of Gatehouse's modules, as in the fork server.

import os  # noqa: E402 - as above
import signal  # noqa: E402 - as above
import sys  # noqa: E402 - as above
from itertools import count  # noqa: E402 - as above
from pathlib import Path  # noqa: E402 - as above

from gateway.memory import MemoryStore, Statement  # noqa: E402 - as above
from gateway.memory.store import delete_leftovers  # noqa: E402 - as above


def add(store: MemoryStore, data_dir: Path, at: int) -> bool:
    """Add a statement in a process that dies at the point `at`. Returns whether it died."""
    pid = os.fork()
    if pid == 0:
        kill_points.arm(at, data_dir / "death-report")
        store.add([Statement(text=f"number {at}")], day="2026-11-19")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def main(data_dir: Path) -> None:
    """Print how many times it died, how often that left a file, and how many were left after `delete_leftovers`."""
    store, cut, left = MemoryStore(data_dir / "memory/scope"), 0, 0
    store.add([Statement(text="first")], day="2026-11-19")
    for at in count(1):
        if not add(store, data_dir, at):
            break
        cut += bool(list(data_dir.rglob(".*")))
        delete_leftovers(data_dir)
        left += len(list(data_dir.rglob(".*")))
        assert store.read().statements[0].text == "first"
    sys.stdout.write(f"{at - 1} {cut} {left}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
