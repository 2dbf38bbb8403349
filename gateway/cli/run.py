"""`gatehouse run`: the daemon in the foreground."""

import gc
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.common import command_parser
from gateway.lean_imports import import_libraries


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Start the gateway and keep it running in the foreground."
    options = command_parser("run", description, config).parse_args(arguments)
    os.umask(0o077)  # All files that we or a library create are private.
    # The import takes half a second, and a signal during it would kill the process. The kernel holds blocked signals
    # back until `serve` has installed its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    gc.disable()  # `serve` enables it. Almost nothing that an import creates is garbage.
    import_libraries()
    from gateway.cli.serve import serve  # noqa: PLC0415 - see above.

    return serve(options.config)
