"""A process under measurement: its CPU time, memory, context switches and event-loop iterations."""

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Self

LOOP_COUNTER = Path(__file__).with_name("loop_counter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has used since its start."""

    cpu_ms: float
    switches: int
    """Context switches of all its threads, voluntary and not."""
    iterations: int
    """Times that its event loop has asked for events."""

    def __sub__(self, earlier: Self) -> "Usage":
        return Usage(
            cpu_ms=self.cpu_ms - earlier.cpu_ms,
            switches=self.switches - earlier.switches,
            iterations=self.iterations - earlier.iterations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    counter: Path

    def usage(self) -> Usage:
        return Usage(
            cpu_ms=cpu_ms(self.pid),
            switches=sum(_switches(each / "status") for each in self._threads()),
            iterations=int(struct.unpack("q", self.counter.read_bytes())[0]),
        )

    def cpu_by_thread(self) -> dict[int, float]:
        """Return the CPU milliseconds of each thread, by its id. The main thread has the id of the process."""
        return {int(each.name): _cpu_ms(each / "stat") for each in self._threads()}

    def memory_mb(self) -> float:
        return memory_mb(self.pid)

    def _threads(self) -> list[Path]:
        return list(Path(f"/proc/{self.pid}/task").iterdir())


@contextmanager
def run(command: list[str], *, home: Path) -> Iterator[Process]:
    """Run a Python program with its output discarded. Ends it with SIGTERM after the block."""
    with NamedTemporaryFile(dir=home) as counter:
        counter.write(bytes(8))
        counter.flush()
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "HOME": str(home),
                "PYTHONPATH": str(LOOP_COUNTER),
                "BENCH_LOOP_COUNTER": counter.name,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Process(pid=process.pid, counter=Path(counter.name))
        finally:
            process.terminate()
            process.wait()


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kilobytes) / 1024


def cpu_ms(pid: int) -> float:
    """Return the CPU milliseconds of a process."""
    return _cpu_ms(Path(f"/proc/{pid}/stat"))


def _cpu_ms(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _switches(status: Path) -> int:
    return sum(int(line.split()[1]) for line in status.read_text().splitlines() if "ctxt_switches" in line)
