"""The channel as the core sees it: `run` brings letters in, `send` lets them out."""

import asyncio
import math
from pathlib import Path

import structlog

from gatehouse_pigeon.errors import translated
from gatehouse_pigeon.loft import Loft
from gatehouse_pigeon.wire import NoLetter, read, written
from gateway.contract import ChannelContext, Deliver, Outbound, Receipt, TextLimit
from gateway.errors import CannotStart, Transient

__all__ = ["PigeonChannel"]

log = structlog.get_logger()

PAUSE = 0.2
"""Seconds between two looks into the loft."""


class PigeonChannel:
    """One loft. A letter that is sent again has the same file name, so a repeat shows nowhere, however late it is."""

    text_limit = TextLimit(size=2_000)
    repeats_dropped_for = math.inf

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self._pulse = context.pulse
        self._loft = Loft(_folder(context))

    async def run(self, deliver: Deliver) -> None:
        """Look for letters until cancelled. What the core cannot take now stays, and is looked at again."""
        with translated():
            await asyncio.to_thread(self._loft.prepare)
        while True:
            with translated():
                letters = await asyncio.to_thread(self._loft.letters)
            self._pulse.up()
            for letter in letters:
                try:
                    await self._bring(letter, deliver)
                except Transient:
                    break  # Its order is kept: those behind it wait too.
            await asyncio.sleep(PAUSE)

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Let a letter out; it is there when this returns."""
        with translated():
            await asyncio.to_thread(self._loft.let_out, key, written(message))
        return Receipt(message_id=key)

    async def _bring(self, letter: Path, deliver: Deliver) -> None:
        """Hand a letter to the core, and only then let the loft forget it."""
        try:
            with translated():
                raw = await asyncio.to_thread(self._loft.open, letter)
            inbound = read(raw, letter.stem, channel=self.name, account=self.account)
        except NoLetter as fault:
            log.warning("letter_refused", channel=self.name, letter=letter.name, reason=str(fault))
            await asyncio.to_thread(self._loft.refuse, letter)
            return
        await deliver(inbound)
        with translated():
            await asyncio.to_thread(self._loft.forget, letter)


def _folder(context: ChannelContext) -> Path:
    loft = context.settings.options.get("loft")
    if not isinstance(loft, str) or not loft:
        raise CannotStart(f"channels.{context.name}.options.loft is missing: it names the folder with the letters.")
    return Path(loft)
