"""`make bench`: runs all benchmarks, or those named as arguments, and prints one table."""

import sys

from bench import commands, context, first_token, gateway, models, sessions, spool, start, telegram
from bench.table import show

PARTS = {
    "commands": commands,
    "start": start,
    "first_token": first_token,
    "gateway": gateway,
    "models": models,
    "telegram": telegram,
    "spool": spool,
    "sessions": sessions,
    "context": context,
}

show(row for name, part in PARTS.items() if name in (sys.argv[1:] or PARTS) for row in part.rows())
