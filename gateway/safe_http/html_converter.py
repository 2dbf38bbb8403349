"""A program that converts HTML to Markdown: `python -m gateway.safe_http.html_converter`, bytes in, text out.

A page can be made so that any parser takes hours for it. A process can be limited and killed; a thread cannot.
"""

import resource
import sys

_CPU_SECONDS = 15
_MEMORY_BYTES = 1024**3
_MAX_CHARS = 100_000


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    from justhtml import JustHTML  # noqa: PLC0415 - after the limits are set

    document = JustHTML(sys.stdin.buffer.read(), encoding=sys.argv[1] or None)
    title = " ".join(element.to_text() for element in document.query("title")[:1])
    text = document.to_markdown()
    whole = f"# {title}\n\n{text}" if title else text
    sys.stdout.buffer.write(whole[:_MAX_CHARS].encode(errors="replace"))


if __name__ == "__main__":
    main()
