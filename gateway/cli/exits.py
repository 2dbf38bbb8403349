"""Exit codes, and the one way in which a command says that it could not do what it was asked."""

from gateway.cli.streams import tell

__all__ = [
    "EXIT_BUG",
    "EXIT_CONFIG",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_TERMINATED",
    "EXIT_USAGE",
    "complain",
]

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_CONFIG = 78
"""EX_CONFIG of sysexits.h: what a restart cannot mend; the systemd unit does not restart it."""
EXIT_INTERRUPTED = 130
"""What a shell shows after Ctrl-C: 128 and the number of SIGINT."""
EXIT_TERMINATED = 143
"""The same for SIGTERM."""


def complain(trouble: object, code: int) -> int:
    tell(f"gatehouse: {trouble}")
    return code
