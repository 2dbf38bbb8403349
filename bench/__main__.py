"""`make bench`: runs all benchmarks, or those named as arguments, and prints one table.

`profile` writes files, so it runs only if it is named.
"""

import sys

from bench import (
    api,
    api_list,
    archiving,
    cluster,
    coding_agents,
    commands,
    context,
    documents,
    first_token,
    gateway,
    growth,
    importing,
    models,
    moving,
    page,
    profile,
    recall,
    schedules,
    search,
    sessions,
    spool,
    start,
    storage,
    telegram,
    upgrade,
)
from bench.table import show

PARTS = {
    "commands": commands,
    "start": start,
    "first_token": first_token,
    "gateway": gateway,
    "models": models,
    "telegram": telegram,
    "growth": growth,
    "spool": spool,
    "sessions": sessions,
    "search": search,
    "recall": recall,
    "archiving": archiving,
    "schedules": schedules,
    "moving": moving,
    "importing": importing,
    "upgrade": upgrade,
    "storage": storage,
    "cluster": cluster,
    "api": api,
    "api_list": api_list,
    "context": context,
    "documents": documents,
    "coding": coding_agents,
    "page": page,
}

named = sys.argv[1:] or list(PARTS)
if unknown := set(named) - {*PARTS, "profile"}:
    sys.exit(f"unknown: {', '.join(sorted(unknown))}. There are {', '.join([*PARTS, 'profile'])}.")
if parts := [part for name, part in PARTS.items() if name in named]:
    show(row for part in parts for row in part.rows())
if "profile" in named:
    profile.show()
