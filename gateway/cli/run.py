"""`gatehouse run`: the daemon in the foreground."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.usage import parser

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = parser("run", "Start the gateway and keep it running.", config).parse_args(arguments)
    os.umask(0o077)  # Whatever we or a library write is ours alone from birth.
    # The kernel keeps these for us while the rest is imported; `serve` lets them in once it can follow them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    from gateway.cli.serving import serve  # noqa: PLC0415 - half a second, in which a signal would be our end.

    return serve(options.config)
