"""The ground that every other group stands on: what holds now, the stores, the tally and the time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gateway.access.live import Live
from gateway.files.store import FileStore
from gateway.metrics import Tally
from gateway.sessions import SessionManager
from gateway.spool import Spool

__all__ = ["Ground"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    live: Live
    spool: Spool
    sessions: SessionManager
    store: FileStore
    tally: Tally
    now: Callable[[], datetime]
