"""How edits of messages take effect in what the model sees. Pure."""

from collections.abc import Mapping

import msgspec

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry

__all__ = ["edited"]

_EDITED = "[I have changed an earlier message of mine. It now reads:]\n"


def edited(entries: list[Entry]) -> list[Entry]:
    """Let edits take effect. One that came before its message was written down changes it.

    Any other is shown for itself, as something said before the next message, so that it splits no step of a turn.
    """
    if not any(type(entry) is e.Edit for entry in entries):
        return entries
    said = {entry.event_id: at for at, entry in enumerate(entries) if isinstance(entry, e.User) and entry.event_id}
    early = {
        entry.event_id: entry.content
        for at, entry in enumerate(entries)
        if isinstance(entry, e.Edit) and _is_early(entry, at, said)
    }
    shown: list[Entry] = []
    held: list[Entry] = []
    for at, entry in enumerate(entries):
        match entry:
            case e.Edit():
                held += [] if _is_early(entry, at, said) else [_note(entry)]
            case e.User():
                shown += [*held, msgspec.structs.replace(entry, content=early.get(entry.event_id or "", entry.content))]
                held = []
            case _:
                shown.append(entry)
    return [*shown, *held]


def _is_early(edit: e.Edit, at: int, said: Mapping[str, int]) -> bool:
    return said.get(edit.event_id, -1) > at


def _note(edit: e.Edit) -> e.User:
    return e.User(content=f"{_EDITED}{edit.content}", sender_name=edit.sender_name, turn=edit.turn)
