"""The one command that the terminal answers itself."""

__all__ = ["QUIT", "is_quit"]

QUIT = "quit"


def is_quit(text: str) -> bool:
    return text.strip().lower() in {f"/{QUIT}", f"!{QUIT}"}
