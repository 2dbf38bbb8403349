"""Tries to go back: lets an older program start with data that this version has migrated.

    python -m tests.versions.going_back VERSION PROGRAM

VERSION names the fixture to begin with, and PROGRAM is a `gatehouse` of that version or another older one. It must
work, or refuse with exit code 78 and change nothing.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.upgrade.harness import contents, released

STARTED = 20.0
"""Seconds after which a program that still runs counts as started."""
_REFUSED = 78


def main() -> int:
    version, program = sys.argv[1:3]
    ours = Path(sys.executable).parent / "gatehouse"
    with TemporaryDirectory(prefix="gatehouse-back-") as name:
        home = Path(name)
        config = released(version, home)
        environment = {**os.environ, "HOME": name}
        words = ["--config", str(config)]
        subprocess.run(
            [ours, *words, "chat", "--once", "hello"], check=True, env=environment, stdout=subprocess.DEVNULL
        )
        before = contents(home / "data")
        try:
            done = subprocess.run(
                [program, *words, "run"], capture_output=True, text=True, check=False, env=environment, timeout=STARTED
            )
        except subprocess.TimeoutExpired:
            print(f"{program} started with the data of this version.")  # noqa: T201 - a command.
            return 0
        is_unchanged = contents(home / "data") == before
        print(f"{program} ended with {done.returncode}: {done.stderr.strip()}")  # noqa: T201 - a command.
        print("Nothing was changed." if is_unchanged else "It has changed the data.")  # noqa: T201 - a command.
        return 0 if done.returncode == _REFUSED and is_unchanged else 1


if __name__ == "__main__":
    sys.exit(main())
