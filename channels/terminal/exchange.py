"""One message of ours and what becomes of it, whatever the order and the repetition of the frames about it."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from channels.websocket.wire import Ack, Draft, Failure, Message, Say, ServerFrame
from gateway.contract import OutboundKind, Verdict
from gateway.text import clean

__all__ = ["Exchange", "Outcome", "subject"]

REFUSED = "The gateway refused this message."
_YES_OR_NO = {"yes", "y", "no", "n"}
REASON_DEADLINE = 5.0
"""How long the reason of a refusal may take: it comes as a message of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`text` is the answer, or the sentence that says why there is none."""

    is_answer: bool
    text: str
    can_retry: bool = False


def subject(frame: ServerFrame) -> str | None:
    """Return the id of the message that `frame` is about."""
    match frame:
        case Message() | Draft():
            return frame.reply_to
        case Ack() | Failure():
            return frame.id
        case _:
            return None


class Exchange:
    """Settled by its answer and the acknowledgement, by a refusal, or by a failure."""

    def __init__(self, text: str) -> None:
        self.id = uuid4().hex
        self.text = clean(text)
        self._verdict: Verdict | None = None
        self._answer: Message | None = None
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def say(self) -> Say:
        return Say(id=self.id, text=self.text)

    def hear(self, frame: ServerFrame) -> None:
        match frame:
            case Ack():
                self._verdict = frame.verdict
            case Message():
                self._answer = frame
            case Failure():
                self._settle(Outcome(is_answer=False, text=frame.text, can_retry=frame.can_retry))
            case _:
                return
        self._conclude()

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._outcome)

    def forget_failure(self) -> None:
        """Be ready for another try."""
        self._outcome = asyncio.get_running_loop().create_future()

    def _conclude(self) -> None:
        if self._verdict is Verdict.REFUSED and self._answer is None:
            refused = Outcome(is_answer=False, text=REFUSED)
            asyncio.get_running_loop().call_later(REASON_DEADLINE, self._settle, refused)
        elif self._verdict is Verdict.REFUSED and self._answer is not None:
            self._settle(Outcome(is_answer=False, text=self._answer.text))
        elif self._verdict is not None and self._answer is not None:
            self._settle(Outcome(is_answer=self._is_answered_by(self._answer), text=self._answer.text))

    def _is_answered_by(self, message: Message) -> bool:
        """Tell an answer from a word that there will be none: notices answer commands, and a yes or no."""
        if message.is_failure or message.is_question:
            return False
        is_command = self.text.lstrip().startswith(("/", "!")) and not self.text.lstrip().startswith("//")
        is_yes_or_no = self.text.strip().rstrip(".!").lower() in _YES_OR_NO
        return message.kind == OutboundKind.REPLY or is_command or is_yes_or_no

    def _settle(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
