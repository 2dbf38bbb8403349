"""The frames of `channels.websocket.wire` as the client sees them: it reads what the gateway writes, and back."""

import msgspec

from channels.websocket.wire import Frame, ServerFrame

__all__ = ["PATH", "pack", "unpack"]

PATH = "/terminal/ws"

_server_frames: msgspec.json.Decoder[ServerFrame] = msgspec.json.Decoder(ServerFrame)
_encoder = msgspec.json.Encoder()


def unpack(data: str | bytes) -> ServerFrame | None:
    """Read one frame of the gateway; None for what this version does not know, which is skipped."""
    try:
        return _server_frames.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def pack(frame: Frame) -> str:
    return _encoder.encode(frame).decode()
