"""What a channel can do beyond sending: asked once per channel, since asking a protocol is slow."""

from dataclasses import dataclass
from functools import lru_cache

from gateway.contract import (
    Channel,
    Drafts,
    DropsRepeats,
    Edits,
    FetchesFiles,
    LooksBack,
    OffersButtons,
    Reacts,
    SendsFiles,
    ShowsTyping,
)

__all__ = ["Abilities", "abilities_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    drafts: Drafts | None
    edits: Edits | None
    back: LooksBack | None
    typing: ShowsTyping | None
    reacts: Reacts | None
    fetches: FetchesFiles | None
    sends_files: SendsFiles | None
    max_buttons: int
    repeats_dropped_for: float


@lru_cache(maxsize=64)
def abilities_of(channel: Channel) -> Abilities:
    return Abilities(
        drafts=channel if isinstance(channel, Drafts) else None,
        edits=channel if isinstance(channel, Edits) else None,
        back=channel if isinstance(channel, LooksBack) else None,
        typing=channel if isinstance(channel, ShowsTyping) else None,
        reacts=channel if isinstance(channel, Reacts) else None,
        fetches=channel if isinstance(channel, FetchesFiles) else None,
        sends_files=channel if isinstance(channel, SendsFiles) else None,
        max_buttons=channel.max_buttons if isinstance(channel, OffersButtons) else 0,
        repeats_dropped_for=channel.repeats_dropped_for if isinstance(channel, DropsRepeats) else 0.0,
    )
