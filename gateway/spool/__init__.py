"""The spool: what was accepted and not yet done, kept so that no crash can lose it. See `docs/behaviour.md`."""

from gateway.spool.errors import Conflict, Duplicate, Refusal, SpoolBroken, SpoolFull, WrongState
from gateway.spool.operations import (
    Accept,
    Begin,
    Bury,
    Delivered,
    DropDraft,
    Forgive,
    KeepDraft,
    Note,
    Operation,
    Postpone,
    Remember,
    Replace,
    Revive,
    Send,
    Sending,
    Settle,
    Take,
)
from gateway.spool.rows import Found, InboxRow, Listing, OutboxRow, Stats
from gateway.spool.spool import Spool
from gateway.spool.states import InboxState, OutboxState

__all__ = [
    "Accept",
    "Begin",
    "Bury",
    "Conflict",
    "Delivered",
    "DropDraft",
    "Duplicate",
    "Forgive",
    "Found",
    "InboxRow",
    "InboxState",
    "KeepDraft",
    "Listing",
    "Note",
    "Operation",
    "OutboxRow",
    "OutboxState",
    "Postpone",
    "Refusal",
    "Remember",
    "Replace",
    "Revive",
    "Send",
    "Sending",
    "Settle",
    "Spool",
    "SpoolBroken",
    "SpoolFull",
    "Stats",
    "Take",
    "WrongState",
]
