"""What the chat platforms in the files of other gateways mean here. The core names no platform anywhere else.

Other gateways name the channels of their conversations, and each platform has its own idea of groups and threads. This
module says which chats of ours these are, as `wire.py` of the channel makes them.
"""

from gateway.contract import PeerKind
from gateway.importing.values import Place

PLATFORMS = ("telegram", "discord")
"""Channels that other gateways have too, under the same name. Their settings can be proposed."""
_GENERAL_TOPIC = "1"
"""The thread of a message in a Telegram group with topics that is in none of them."""


def chat_place(
    channel: str,
    peer: str,
    *,
    kind: PeerKind | None = None,
    thread: str = "",
    account: str = "",
    person: str = "",
    sender: str = "",
) -> Place | None:
    """Return the place of a chat; None if nothing names it. `person` is whom a direct chat is with, if known."""
    if channel == "telegram":
        thread = "" if thread == _GENERAL_TOPIC else thread
        kind = kind or (PeerKind.GROUP if peer.startswith("-") else PeerKind.DIRECT)
    elif channel == "discord":
        if kind is PeerKind.DIRECT:  # It is known by its person here, and by a channel of its own elsewhere.
            peer = person or peer
        else:
            kind = PeerKind.CHANNEL
    if not channel or not peer:
        return None
    member = sender if kind is not PeerKind.DIRECT else ""
    return Place(
        channel=channel, peer=peer, kind=kind, account=account or "default", thread=thread or None, sender=member
    )
