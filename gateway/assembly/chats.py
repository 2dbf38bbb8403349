"""The side that people see: their channels, what goes out to them, and the files on either way."""

from dataclasses import dataclass
from functools import partial

from gateway.access.live import Moves
from gateway.adapters.registry import Channels
from gateway.adapters.services import SessionBrowser, SpoolNotebook
from gateway.assembly.ground import Ground
from gateway.files.room import FileRoom
from gateway.files.uploads import FileRoutes
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import Signs
from gateway.turns.approvals import Approvals

__all__ = ["Chats", "open_chats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    moves: Moves
    approvals: Approvals
    channels: Channels
    signs: Signs
    files: FileRoom
    uploads: FileRoutes
    delivery: Delivery


def open_chats(ground: Ground) -> Chats:
    """Put together what no channel is needed for; the channels themselves are opened once everything else stands."""
    live, spool = ground.live, ground.spool
    moves = Moves(live, spool)
    approvals = Approvals(live, ground.sessions)
    browser = SessionBrowser(live, ground.sessions, approvals)
    channels = Channels(browser, moves.record, partial(SpoolNotebook, spool))
    files = FileRoom(live, ground.store, channels.by_identity)
    return Chats(
        moves=moves,
        approvals=approvals,
        channels=channels,
        signs=Signs(channels.by_identity),
        files=files,
        uploads=FileRoutes(ground.store, lambda: live.settings.files.max_bytes, ground.now),
        delivery=Delivery(channels.by_identity, spool, now=ground.now, file_path=files.path, tally=ground.tally),
    )
