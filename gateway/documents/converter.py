"""A program that converts a document to text: `python -m gateway.documents.converter`, bytes in, text out.

A document can be made so that any parser takes hours for it. A process can be limited and killed; a thread cannot. The
first line of the output is JSON about the text that follows, or about what is wrong with the document.
"""

import json
import resource
import sys

_OPEN_FILES = 64


def main() -> None:
    """Take the first page, the bytes of text, the limits of seconds and memory, and the charset if it is HTML."""
    first, max_bytes, seconds, memory = map(int, sys.argv[1:5])
    html_charset = sys.argv[5] if len(sys.argv) > 5 else None  # noqa: PLR2004 - the last one is optional.
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        _, hard = resource.getrlimit(limit)  # The operator may have given the daemon a lower one.
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, allowed))
    content = sys.stdin.buffer.read()
    header, text = convert(content, first=first, max_bytes=max_bytes, html_charset=html_charset)
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + text.encode(errors="replace"))


def convert(
    content: bytes, *, first: int, max_bytes: int, html_charset: str | None
) -> tuple[dict[str, str | int | bool], str]:
    from gateway.documents.pages import NoSuchPage, select  # noqa: PLC0415 - after the limits are set.
    from gateway.documents.readers import NeedsLibrary, Unreadable, open_pages  # noqa: PLC0415 - see above.

    try:
        opened = open_pages(content, html_charset=html_charset, first=first)
        chosen = select(opened.pages, first=first, skips=opened.skips, max_bytes=max_bytes)
    except Unreadable as reason:
        return {"problem": str(reason)}, ""
    except NeedsLibrary:
        return {"needs_library": True}, ""
    except NoSuchPage as missing:
        count = missing.args[0]
        return {"problem": f"It has only {count} page{'' if count == 1 else 's'}."}, ""
    except MemoryError:
        return {"problem": "It is too large: reading it takes more memory than is allowed."}, ""
    except Exception:  # noqa: BLE001 - the libraries raise anything for damaged files.
        return {"problem": "It is damaged, or something else than it seems to be."}, ""
    if not chosen.has_text:
        rest = f" Pages from {chosen.next_page} on were not looked at." if chosen.next_page else ""
        return {"problem": f"{opened.without_text}{rest}"}, ""
    return {"next_page": chosen.next_page}, chosen.text


if __name__ == "__main__":
    main()
