"""Exit codes, and the one way in which a command says that it could not do what it was asked."""

import sys

__all__ = ["EXIT_CONFIG", "EXIT_FAILED", "EXIT_USAGE", "complain"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 78
"""EX_CONFIG of sysexits.h: what a restart cannot mend; the systemd unit does not restart it."""


def complain(trouble: object, code: int) -> int:
    print(f"gatehouse: {trouble}", file=sys.stderr)
    return code
