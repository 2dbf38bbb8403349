"""Compaction: the older part of a long conversation is summed up by the model, beside the conversation itself.

The summary is an entry like any other, so the transcript keeps all that was said, and whatever fails leaves it as it
was. What comes in meanwhile is not touched: a summary says up to where it goes.
"""

import asyncio
from collections import OrderedDict
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import monotonic

import structlog
from msgspec import Struct

from gateway.agent.condensing import MAX_SUMMARY_CHARS, condensing_prompt
from gateway.agent.loop import Step
from gateway.agent.protocol import Prompt, StepDone
from gateway.agent.senders import escaped
from gateway.agent.tokens import Calibration, measure, measure_message
from gateway.errors import OUR_FAULT, ProviderFailed, Refused
from gateway.meter import Meter
from gateway.metered import Metered
from gateway.roster import Agent
from gateway.sessions import Older, Session, SessionManager, entries, is_still, older_part
from gateway.spool import Spool, SpoolFull
from gateway.usage import Bill

__all__ = ["CONVERSATION", "ON_REQUEST", "OVERFLOW", "Compacted", "Compactions", "Keep", "Order"]

log = structlog.get_logger()

DEADLINE = 300.0
NEAR = 0.75
"""How much of the budget a conversation may take before it is summed up."""
_LEFT_FOR_REQUEST = 2_000
"""Tokens of a request for a summary that are not the conversation."""
_REST, _LONGEST_REST = 60.0, 3_600.0
_RESTING = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How much at the end of a conversation is left as it is: a share of the budget, and a number of messages."""

    share: float
    messages: int


CONVERSATION = Keep(share=0.25, messages=16)
ON_REQUEST = Keep(share=0.25, messages=4)
OVERFLOW = Keep(share=0.15, messages=6)


class Order(Struct, frozen=True, kw_only=True):
    """Which session is to be summed up, by which agent's model, and who pays."""

    session: str
    agent: Agent
    person: str
    keep: Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What has become of it: `messages` are now a summary, `kept` stay as they are. Or why nothing has changed."""

    messages: int = 0
    kept: int = 0
    failure: str = ""


class Compactions:
    """One at a time for each session; those who ask meanwhile get the same result."""

    def __init__(self, *, sessions: SessionManager, meter: Meter, spool: Spool) -> None:
        self._sessions = sessions
        self._meter = meter
        self._spool = spool
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[Compacted]] = {}
        self._resting: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Sessions whose last attempts have failed: how many, and until when there is none."""

    def open(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def stop(self) -> None:
        """Give up what runs, and begin nothing more; nothing has changed by it."""
        self._group = None
        for task in self._running.values():
            task.cancel()

    async def compact(self, order: Order) -> Compacted:
        """Sum up a session, and say what has become of it. Cancelling whoever waits for it ends it."""
        task = self._running.get(order.session) or self._start(order)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def consider(self, order: Order, *, tokens: int) -> None:
        """Begin to sum up a session whose last turn came to `tokens`, if it is time; does not wait for it."""
        if order.session in self._running or self._group is None or not self._sessions.settings.compaction:
            return
        if not order.agent.info.sums_up or self._is_resting(order.session):
            return
        if tokens >= NEAR * self._meter.budget(order.agent) or await self._is_window_full(order.session):
            self._start(order)

    async def _is_window_full(self, key: str) -> bool:
        """Tell whether with the next turn something would leave the window that no summary tells of."""
        settings = self._sessions.settings
        if settings.context_messages is not None:
            return False  # Somebody wants it to be forgotten.
        active = await self._sessions.look_up(key)
        if active.messages < settings.max_messages - 1:
            return False
        return len(await self._sessions.history(key)) >= settings.max_messages - 1

    def _start(self, order: Order) -> asyncio.Task[Compacted]:
        if self._group is None:
            raise Refused("The gateway is not running.")
        task = self._group.create_task(self._run(order), name=f"compaction:{order.session}")
        self._running[order.session] = task
        task.add_done_callback(lambda _done: self._running.pop(order.session, None))
        return task

    async def _run(self, order: Order) -> Compacted:
        """Sum up, or say why not. It raises nothing, since it runs beside everything else."""
        try:
            async with asyncio.timeout(DEADLINE):
                done = await self._condense(order)
        except (ProviderFailed, Refused) as failure:
            done = Compacted(failure=str(failure))
        except (TimeoutError, SpoolFull) as failure:
            done = Compacted(failure="It took too long." if isinstance(failure, TimeoutError) else str(failure))
        except Exception:  # A bug here must not end the gateway.
            log.exception("compaction_crashed", session=order.session)
            done = Compacted(failure=OUR_FAULT)
        self._note(order.session, done)
        return done

    def _note(self, key: str, done: Compacted) -> None:
        if not done.failure:
            self._resting.pop(key, None)
            if done.messages:
                log.info("session_compacted", session=key, messages=done.messages, kept=done.kept)
            return
        failures = self._resting.pop(key, (0, 0.0))[0] + 1
        rest = min(_REST * 2 ** min(failures - 1, 10), _LONGEST_REST)
        self._resting[key] = (failures, monotonic() + rest)
        while len(self._resting) > _RESTING:
            self._resting.popitem(last=False)
        log.warning("compaction_failed", session=key, reason=done.failure, failures=failures, rest=rest)

    def _is_resting(self, key: str) -> bool:
        return key in self._resting and monotonic() < self._resting[key][1]

    async def _condense(self, order: Order) -> Compacted:
        if not order.agent.info.sums_up:
            raise Refused("The offline responder cannot sum up a conversation; that takes a language model.")
        session = await self._sessions.load(order.session)
        budget = self._meter.budget(order.agent)
        calibration = self._meter.calibrations[order.agent.info.name]
        planned = await asyncio.to_thread(_plan, order, session, budget, calibration)
        if planned is None:
            return Compacted()
        older, prompt = planned
        bill = self._meter.bill(order.person, order.agent)
        try:
            done = await _summed_up(self._meter.metered(order.agent, bill), prompt)
            await self._write(order, older, done, bill)
        finally:
            await self._settle(bill)
        return Compacted(messages=len(older.messages), kept=older.kept)

    async def _write(self, order: Order, older: Older, done: StepDone, bill: Bill) -> None:
        text = done.text.strip()
        if not text:
            raise ProviderFailed("The model gave no summary.")
        summary = entries.Summary(
            content=escaped(text[:MAX_SUMMARY_CHARS]),
            from_seq=older.from_seq,
            covers=older.covers,
            model=order.agent.model or "",
            usage=bill.noted,
        )
        now = await self._sessions.load(order.session)
        if not is_still(older, now.entries):
            raise Refused("What was to be summed up has been taken back meanwhile.")
        due = bill.due
        await self._sessions.append(order.session, [summary], also=due)
        bill.settled(due)

    async def _settle(self, bill: Bill) -> None:
        """Write down what was used for nothing."""
        if due := bill.due:
            with suppress(SpoolFull):  # It was little, and the disk is full.
                await self._spool.commit(*due)


async def _summed_up(metered: Metered, prompt: Prompt) -> StepDone:
    step = Step()
    async with aclosing(metered.stream(prompt)) as chunks:
        async for chunk in chunks:
            step.take(chunk)
    return step.done()


def _plan(order: Order, session: Session, budget: int, calibration: Calibration) -> tuple[Older, Prompt] | None:
    """Choose what is to be summed up, and put the request together. It may be much, so this runs in a thread."""
    older = older_part(
        session.entries,
        first=session.meta.first,
        keep_tokens=round(budget * order.keep.share),
        keep_messages=order.keep.messages,
        size=lambda message: calibration.estimate(measure_message(message)),
    )
    if older is None:
        return None
    prompt = condensing_prompt(
        older.earlier,
        older.messages,
        model=order.agent.chosen_model,
        fits=lambda text: calibration.estimate(measure(text)) <= budget - _LEFT_FOR_REQUEST,
    )
    return older, prompt
