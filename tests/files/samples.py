"""Files as platforms offer them, and as small as they can be."""

import struct
import zlib

from gateway.contract import Attachment, AttachmentKind


def png(width: int = 1, height: int = 1) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    frame = struct.pack(">HBHHB", 8, 8, height, width, 1)
    return b"\xff\xd8\xff\xe0\x00\x04ab" + b"\xff\xc0" + frame + b"\xff\xd9" + bytes(8)


def offered(
    ref: str = "F",
    *,
    name: str = "notes.txt",
    media_type: str = "text/plain",
    kind: AttachmentKind = AttachmentKind.FILE,
    size: int = 0,
) -> Attachment:
    return Attachment(kind=kind, name=name, media_type=media_type, size=size, ref=ref)


PHOTO = offered("photo", name="cat.jpg", media_type="image/jpeg", kind=AttachmentKind.IMAGE)
