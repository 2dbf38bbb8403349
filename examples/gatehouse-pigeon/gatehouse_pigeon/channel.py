"""The channel as the core sees it: `run` delivers incoming letters, `send` writes outgoing ones."""

import asyncio
import math
from pathlib import Path

import structlog

from gatehouse_pigeon.errors import translated
from gatehouse_pigeon.loft import Loft
from gatehouse_pigeon.wire import InvalidLetter, encode_letter, read_letter
from gateway.contract import ChannelContext, Deliver, Outbound, Receipt, TextLimit
from gateway.errors import CannotStart, Transient

log = structlog.get_logger()

POLL_INTERVAL = 0.2


class PigeonChannel:
    """One loft. A retry writes the same file name, so it never shows a message twice, however late it is."""

    text_limit = TextLimit(size=2_000)
    repeats_dropped_for = math.inf

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self._pulse = context.pulse
        loft = context.settings.options.get("loft")
        if not isinstance(loft, str) or not loft:
            raise CannotStart(f"channels.{context.name}.options.loft is missing. Set it to the folder of the letters.")
        self._loft = Loft(Path(loft))

    async def run(self, deliver: Deliver) -> None:
        """Poll for letters until cancelled. A letter that the core cannot take now stays in the folder."""
        with translated():
            await asyncio.to_thread(self._loft.create_folders)
        while True:
            with translated():
                letters = await asyncio.to_thread(self._loft.letters)
            self._pulse.up()
            for letter in letters:
                try:
                    await self._deliver(letter, deliver)
                except Transient:
                    break  # Try again after a pause. Later letters wait too, to keep the order.
            await asyncio.sleep(POLL_INTERVAL)

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Write a letter. The file is complete when this returns."""
        with translated():
            await asyncio.to_thread(self._loft.write, key, encode_letter(message))
        return Receipt(message_id=key)

    async def _deliver(self, letter: Path, deliver: Deliver) -> None:
        try:
            with translated():
                raw = await asyncio.to_thread(self._loft.read, letter)
            inbound = read_letter(raw, letter.stem, channel=self.name, account=self.account)
        except InvalidLetter as error:
            log.warning("letter_refused", channel=self.name, letter=letter.name, reason=str(error))
            await asyncio.to_thread(self._loft.refuse, letter)
            return
        # Delete the letter only after the core has accepted it. After a crash between the two, the letter is
        # delivered again, and the core recognises its event id.
        await deliver(inbound)
        with translated():
            await asyncio.to_thread(self._loft.delete, letter)
