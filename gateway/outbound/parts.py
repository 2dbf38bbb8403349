"""Composing: what is to be said, cut into parts that the platform of its chat can take."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from gateway.contract import Button, Channel, Enclosure, Outbound
from gateway.contract.abilities import abilities_of
from gateway.files.identify import in_bytes
from gateway.spool import Send
from gateway.text import split

__all__ = ["POSSIBLY_REPEATED", "Composer", "possibly_repeated"]

POSSIBLY_REPEATED = "(possibly repeated)\n"
"""Stands before a message whose first send had no known outcome; each part leaves room for it."""


class Composer:
    """Composes for one chat of `channel`; None is one that is not enabled, and takes everything as it is."""

    def __init__(self, channel: Channel | None, *, at: datetime, is_clear: bool) -> None:
        """Where the chat `is_clear` of earlier messages, the first part is stored as one that is being sent."""
        self._channel = channel
        self._at = at
        self._is_clear = is_clear

    def compose(self, message: Outbound, *, key: str, turn: str | None, files: Sequence[Enclosure]) -> list[Send]:
        """Cut `message` to the platform's measure; the buttons hang on the last part. Each of `files` is one more."""
        if self._channel is None:
            words = [Send(key=key, turn=turn, message=message, at=self._at)]
        else:
            message, files = _divided(self._channel, message, files) if files else (message, ())
            words = self._words(self._channel, message, key, turn)
        return [*words, *self._enclosed(message, key, turn, files)] if files else words

    def _words(self, channel: Channel, message: Outbound, key: str, turn: str | None) -> list[Send]:
        limit, can = channel.text_limit, abilities_of(channel)
        texts = split(message.text, limit.size - limit.measure(POSSIBLY_REPEATED), limit.measure)
        buttons = message.buttons[: can.max_buttons]
        is_first = self._is_clear and not can.repeats_dropped_for
        last = len(texts) - 1
        return [
            Send(
                key=f"{key}.{number}" if number else key,
                turn=turn,
                message=_part(message, text, buttons if number == last else ()),
                at=self._at,
                is_sent_at_once=is_first and number == 0,
            )
            for number, text in enumerate(texts)
        ]

    def _enclosed(self, message: Outbound, key: str, turn: str | None, files: Sequence[Enclosure]) -> list[Send]:
        bare = replace(message, text="", buttons=(), restored=0)
        return [
            Send(key=f"{key}.file{number}", turn=turn, message=replace(bare, file=file), at=self._at)
            for number, file in enumerate(files, start=1)
        ]


def possibly_repeated(message: Outbound) -> Outbound:
    return replace(message, text=POSSIBLY_REPEATED + message.text)


def _divided(channel: Channel, message: Outbound, files: Sequence[Enclosure]) -> tuple[Outbound, list[Enclosure]]:
    """Tell in words of the files that the channel cannot send; return the rest."""
    sendable = [file for file in files if _can_send(channel, file)]
    told = [_unsendable(file) for file in files if file not in sendable]
    return replace(message, text="\n\n".join(filter(None, [message.text, *told]))), sendable


def _can_send(channel: Channel, file: Enclosure) -> bool:
    sends = abilities_of(channel).sends_files
    return sends is not None and file.size <= sends.max_file_bytes


def _unsendable(file: Enclosure) -> str:
    return f"(There is a file for you, {file.name}, {in_bytes(file.size)}, but this chat cannot take it.)"


def _part(message: Outbound, text: str, buttons: tuple[Button, ...]) -> Outbound:
    is_whole = text == message.text and buttons == message.buttons
    return message if is_whole else replace(message, text=text, buttons=buttons)
