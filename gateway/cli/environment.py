"""The environment of a process that runs the gateway, without the variables that may contain secrets.

Tools and libraries start programs. A program inherits the environment of the process.
"""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

_KEPT = (
    *("HOME", "LOGNAME", "USER", "SHELL", "PATH", "PWD", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "XDG_*"),
    *("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHON*", "COV_*", "COVERAGE_*"),
    # Sockets, numbers and folders that systemd tells a service.
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_*", "INVOCATION_ID", "JOURNAL_STREAM"),
)


def trim_environment(more: Iterable[str]) -> dict[str, str]:
    """Remove all variables but those that programs commonly need, and `more`. Return the environment as it was."""
    environ = dict(os.environ)
    patterns = (*_KEPT, *more)
    for name in environ:
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            del os.environ[name]
    return environ
