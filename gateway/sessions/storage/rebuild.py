"""Writes a transcript again from entries in memory, after its file has disappeared. Pure."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from gateway.sessions.entries import Assistant, Checkpoint, Entry, Header, Summary, System, Title, ToolResult, User
from gateway.sessions.history import is_visible
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import header_for
from gateway.text.plain import count

# The seq of the last entry that is added in front of an incomplete transcript.
_ADDED = 3


def rebuilt_entries(key: str, entries: Sequence[Entry], state: SessionState, now: datetime) -> tuple[list[Entry], int]:
    """Return the entries of a transcript that is built from `entries`, and how many messages of it are lost.

    `entries` are the whole session, or its end. In front of an end come a header, a checkpoint with the facts that
    the lost entries have set, and a sentence about the loss. Their seqs are free, since the old entries are lost.
    """
    if not entries or isinstance(entries[0], Header) or entries[0].seq <= _ADDED:
        return list(entries), 0
    kept = sum(map(is_visible, entries))
    lost = max(0, state.messages - kept)
    billed = (Assistant, Summary, Title, ToolResult)
    usages = [entry.usage for entry in entries if isinstance(entry, billed) and entry.usage is not None]
    before = replace(
        state,
        seq=1,
        messages=max(0, state.messages - kept - lost),
        turns=0,
        first=next((entry.seq for entry in entries if isinstance(entry, User | Assistant)), 0),
        checkpoint=0,
        checkpoint_at=0,
        # The sums include the entries that follow, so these are taken out here.
        input_tokens=max(0, state.input_tokens - sum(usage.input_tokens for usage in usages)),
        cached_tokens=max(0, state.cached_tokens - sum(usage.cached_tokens for usage in usages)),
        output_tokens=max(0, state.output_tokens - sum(usage.output_tokens for usage in usages)),
        cost_micros=max(0, state.cost_micros - sum(usage.cost_micros for usage in usages)),
        size=0,
    )
    sentence = f"This transcript was removed from the disk. {count(lost, 'earlier message')} could not be restored."
    header = header_for(key, created=state.created_at, epoch=state.epoch, highest_number=state.highest_number)
    added: list[Entry] = [
        replace(header, id=state.id or header.id, repo=state.repo, created_by=state.created_by),
        Checkpoint(seq=2, ts=now, key=key, state=before),
        System(seq=_ADDED, ts=now, content=sentence),
    ]
    return [*added, *entries], lost
