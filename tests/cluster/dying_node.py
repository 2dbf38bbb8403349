"""A `gatehouse run` that kills itself at a point of its work.

SIGUSR1 arms it: the file `die-at` in its folder has the number of the kill point, counted from then on. It is deleted
when that has been read. The name of the point is in the file `death-report` after the death.
"""

from tests.crash import kill_points

kill_points.install()  # Before any import of Gatehouse's modules, which may keep a reference to `os.fsync`.

import signal  # noqa: E402 - as above
from pathlib import Path  # noqa: E402 - as above

from gateway.cli import main as gatehouse  # noqa: E402 - as above
from tests.forks.process import GATEHOUSE, Program  # noqa: E402 - as above

DIE_AT = "die-at"
DEATH_REPORT = "death-report"

PROGRAM = Program(
    entry="tests.cluster.dying_node:main",
    modules=("tests.cluster.dying_node", *GATEHOUSE.modules, "channels.telegram", "psycopg", "gateway.cluster.node"),
    is_measured=False,
)


def main() -> int:
    home = Path.cwd()
    order = home / DIE_AT

    def arm(*_: object) -> None:
        kill_points.arm(int(order.read_text()), home / DEATH_REPORT)
        order.unlink()

    signal.signal(signal.SIGUSR1, arm)
    return gatehouse()
