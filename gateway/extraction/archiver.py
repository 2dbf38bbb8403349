"""`MemoryArchiver`: archives sessions that have ended into the memory of their scope, one at a time, beside all turns.

A model is asked what is worth keeping of a session. Its statements and the mark up to where the session is archived are
one write of a file. Only then the session leaves the queue. So a crash at any point repeats at most the request, and
never a statement.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from functools import partial
from time import monotonic

import msgspec
import structlog
from msgspec import Struct

from gateway.access.role_table import Limit, Limits
from gateway.access.rules import Live
from gateway.agent.loop import StepCollector
from gateway.agent.protocol import Prompt
from gateway.agent.tokens import measure
from gateway.aio import finish_before_cancel
from gateway.bounded import BoundedDict
from gateway.errors import OUR_FAULT, HeldElsewhere, MustStop, ProviderFailed, Refused
from gateway.extraction.request import MAX_ANSWER_CHARS, Part, PartCollector, build_request, outline, read_answer
from gateway.memory.queue import CHANGE_FACTS, OUTLINED_FACTS, WAITING_FACTS, MemoryChanges, MemoryQueue, Waiting
from gateway.memory.statement import Archived, Statement
from gateway.memory.store import Memory, MemoryStore
from gateway.metrics import Metrics
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions.keys import derived_id, parse_key
from gateway.sessions.retention import IsBusy
from gateway.spool import Operation, SetFact, Spool, SpoolUnavailable
from gateway.turns.agents import AgentRegistry, ConfiguredAgent
from gateway.turns.context import TurnContext
from gateway.turns.usage import LimitReached, Meter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ARCHIVIST = "memory"
"""Who is charged. Ids of people contain a colon or begin with a tilde."""
MAX_FAILURES = 8
"""After so many, a session gets an outline and is given up."""
REPORTED_FAILURES = 3
"""So many failures in a row are reported by `gatehouse status` and `gatehouse doctor`."""

_TIMEOUT = 300.0
"""Seconds that a model may take for one request."""
_REQUEST_OVERHEAD = 2_000
"""Tokens of a request besides the conversation."""
_REQUEST_TOKENS = 24_000
"""Tokens that one request may have, even if the model could read more."""
_CHECK_INTERVAL, _BUSY_INTERVAL = 60.0, 5.0
_SETTLE = 0.5
"""Seconds until the work on a change begins: the chat that has caused it is answered first."""
_PAUSE = 0.25
"""Seconds between two sessions, so that many of them do not slow the turns down."""
_OUTLINED_INTERVAL = 3_600.0
"""Seconds between two looks at the sessions with outlines."""
_OVER_BUDGET_PAUSE = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 6 * 3_600.0
"""Seconds without another attempt after a failure."""
_MAX_MODELS = 100
_WRITABLE_ID = re.compile(r"[^\s()<>\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_DECODER = msgspec.json.Decoder(Waiting)
_WAITS = msgspec.json.encode(Waiting(queued=0)).decode()


class ArchivingReport(Struct, frozen=True, kw_only=True):
    """The state of the archiver. `failures` counts those in a row."""

    waiting: int
    changes: int
    """Changes of memory files that are committed, and not made yet."""
    failures: int
    reason: str = ""
    is_over_budget: bool = False
    has_change_trouble: bool = False
    """The disk refuses a change of the memory files that is committed."""


class _NotNow(Exception):
    """There is no usable model for a session at the moment. Others may have another one."""


class _ModelFailed(Exception):
    """The model did not answer. It may be its fault, or that of the session."""


class MemoryArchiver:
    """`is_busy` says whether a turn of the session with a key is running or waiting: it may still say something."""

    def __init__(
        self,
        *,
        live: Live,
        spool: Spool,
        sessions: SessionManager,
        agents: AgentRegistry,
        meter: Meter,
        context: TurnContext,
        queue: MemoryQueue,
        changes: MemoryChanges,
        metrics: Metrics,
        is_busy: IsBusy,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._spool = spool
        self._sessions = sessions
        self._agents = agents
        self._meter = meter
        self._context = context
        self._queue = queue
        self._changes = changes
        self._metrics = metrics
        self._is_busy = is_busy
        self._now = now
        self._paused = BoundedDict[str, tuple[int, float]](_MAX_MODELS)
        """By model, its failures in a row, and until when it is not asked."""
        self._over_budget_until = 0.0
        self._outlined_at = 0.0
        """When to look at the sessions with outlines."""
        self._failures = 0
        self._reason = ""
        self._has_change_trouble = False
        self._has_busy = False
        """Whether a session waits for the end of its turn."""

    async def report(self) -> ArchivingReport:
        """Return the state now. Raises the spool's errors."""
        return ArchivingReport(
            waiting=await self._queue.length(WAITING_FACTS),
            changes=await self._queue.length(CHANGE_FACTS),
            failures=self._failures,
            reason=self._reason,
            is_over_budget=monotonic() < self._over_budget_until,
            has_change_trouble=self._has_change_trouble,
        )

    @property
    def trouble(self) -> str:
        """A sentence for the operator if archiving keeps failing; otherwise empty."""
        if self._has_change_trouble:
            return "The memory files can't be written, so what people have changed or deleted waits. Check the disk."
        if self._failures < REPORTED_FAILURES:
            return ""
        return f"Archiving sessions into memory has failed {self._failures} times in a row. See the log for the reason."

    def settings_changed(self) -> None:
        """Try again at once: there may be another model, or another budget."""
        self._paused.clear()
        self._over_budget_until = self._outlined_at = 0.0
        self._queue.changed.set()

    async def run(self) -> None:
        """Archive sessions until cancelled."""
        while True:
            # Cleared before the queue is read: a session that leaves after the read sets it again.
            self._queue.changed.clear()
            self._has_busy = False
            try:
                self._has_change_trouble = not await self._changes.apply_all()
                await self.archive_waiting()
            except (SpoolUnavailable, MustStop) as error:
                log.info("memory_archiver_waits", reason=str(error))
            except Exception:  # A bug here must not end the gateway.
                log.exception("memory_archiver_crashed")
            with suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_INTERVAL if self._has_busy else _CHECK_INTERVAL):
                    await self._queue.changed.wait()
                await asyncio.sleep(_SETTLE)

    async def archive_waiting(self) -> None:
        """Archive each session that waits and can be archived now. Raises `SpoolUnavailable`."""
        prefixes = [WAITING_FACTS]
        if monotonic() >= self._outlined_at and self._agents.archives:
            self._outlined_at = monotonic() + _OUTLINED_INTERVAL
            prefixes.append(OUTLINED_FACTS)
        for prefix in prefixes:
            async with aclosing(self._queue.read(prefix)) as waiting:
                async for key, value in waiting:
                    is_on = self._live.settings.session.archive_to_memory
                    if not is_on or monotonic() < self._over_budget_until:
                        return
                    if await self._try(prefix, key, value):
                        await asyncio.sleep(_PAUSE)

    async def _try(self, prefix: str, key: str, value: str) -> bool:
        """Archive a session unless it has to wait. Returns whether there was any work. Raises `SpoolUnavailable`."""
        try:
            entry = _DECODER.decode(value)
            parse_key(key)
        except (msgspec.MsgspecError, ValueError):  # Somebody has changed the row by hand.
            log.warning("memory_queue_unreadable", session=key)
            await self._spool.commit(SetFact(name=f"{prefix}{key}", value=None))
            return False
        pause = (entry.retry_at - self._now()).total_seconds() if entry.retry_at is not None else 0.0
        # A longer pause is from a time when the clock was wrong.
        if 0 < pause <= _LONGEST_PAUSE:
            return False
        if self._is_busy(key):
            self._has_busy = True
            return False
        try:
            also = await self._archive(key, prefix)
            await self._queue.replace(key, value, None, *also, prefix=prefix)
        except (HeldElsewhere, _NotNow):
            return False
        except (SpoolUnavailable, MustStop):
            raise
        except _ModelFailed as error:
            await self._failed(prefix, key, value, entry, str(error), is_final=False)
        except LimitReached:
            log.info("memory_budget_used_up", until_next_attempt=_OVER_BUDGET_PAUSE)
            self._over_budget_until = monotonic() + _OVER_BUDGET_PAUSE
            return False
        except (Refused, ProviderFailed, OSError) as error:
            await self._failed(prefix, key, value, entry, str(error))
        except Exception:  # A bug with one session must end neither the daemon nor the work on the others.
            log.exception("memory_archiver_crashed", session=key)
            await self._failed(prefix, key, value, entry, OUR_FAULT)
        else:
            self._failures, self._reason = 0, ""
        return True

    async def _failed(
        self, prefix: str, key: str, value: str, entry: Waiting, reason: str, *, is_final: bool = True
    ) -> None:
        """Let a session wait, and longer with each failure. After the last one, it gets an outline instead.

        A failure that is not `is_final` is never the last one: an outage of a model may take long.
        """
        failures = min(entry.failures + 1, MAX_FAILURES - (not is_final))
        self._failures, self._reason = self._failures + 1, reason
        self._metrics.archived["failed",] += 1
        pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
        log.warning("session_not_archived_into_memory", session=key, reason=reason, failures=failures, pause=pause)
        new: Waiting | None = Waiting(
            queued=entry.queued, failures=failures, retry_at=self._now() + timedelta(seconds=pause)
        )
        if failures >= MAX_FAILURES:
            log.error("memory_archiving_given_up", session=key, failures=failures)
            new = None
            try:
                await self._archive(key, prefix, is_outline=True)
            except (Refused, OSError, HeldElsewhere, _NotNow) as error:
                log.warning("memory_outline_not_written", session=key, reason=str(error))
        with suppress(HeldElsewhere):
            await self._queue.replace(key, value, new, prefix=prefix)

    async def _archive(self, key: str, prefix: str, *, is_outline: bool = False) -> Sequence[Operation]:
        """Archive a session. Returns what to commit when it leaves the queue.

        Raises `_NotNow`, or an error that is worth another attempt.
        """
        while True:
            # Before each part: a reload or a person may have changed something since the last one.
            meta = await self._find(key)
            if meta is None:
                return ()
            if not self._live.settings.session.archive_to_memory:
                raise _NotNow
            agent = None if is_outline else self._agents.for_memory(meta.agent)
            if agent is not None:
                self._require_usable(agent)
            elif prefix == OUTLINED_FACTS:
                raise _NotNow
            name = meta.id if _WRITABLE_ID.fullmatch(meta.id) else derived_id(key)
            folder = await self._context.fetch_memory(meta.scope)
            memory = await asyncio.to_thread(MemoryStore(folder).read)
            part = await self._next_part(meta, memory, name)
            if not part.messages and part.is_last:
                return ()
            statements: list[Statement] = []
            if part.messages and agent is None:
                statements = [outline(meta, part)]
            elif part.messages and agent is not None:
                statements, part = await self._ask(agent, meta, part, memory)
            mark = Archived(session=meta.number, id=name, seq=part.upto, is_outline=agent is None)
            if not await self._write(meta, statements, mark):
                return ()
            outcome = "outlined" if agent is None else "archived"
            self._metrics.archived[outcome,] += 1
            log.info("session_archived_into_memory", session=key, statements=len(statements), outcome=outcome)
            outlined = SetFact(name=f"{OUTLINED_FACTS}{key}", value=None if agent is not None or is_outline else _WAITS)
            if agent is None or part.is_last:
                return () if prefix == OUTLINED_FACTS else (outlined,)
            await asyncio.sleep(_PAUSE)

    async def _find(self, key: str) -> SessionMeta | None:
        """Return a session of the list or the archive; None if it is gone."""
        self._sessions.require_here(parse_key(key)[0])
        if (meta := self._sessions.find(key)) is not None:
            return meta
        archived = await self._sessions.archive.find(key)
        return None if archived is None else archived.meta

    async def _next_part(self, meta: SessionMeta, memory: Memory, name: str) -> Part:
        """Return the next messages of a session that are not in the memory."""
        mark = memory.archived_upto(name, by_model=True)
        since = mark.seq if mark is not None else 0
        if meta.seq <= since or not meta.messages:
            return Part(messages=(), upto=0, is_last=True)
        collector = PartCollector(meta.first)
        async with aclosing(self._sessions.entries_since(meta.key, since)) as entries:
            async for entry in entries:
                collector.add(entry)
                if collector.is_full:
                    break
        return collector.part(is_last=not collector.is_full)

    def _require_usable(self, agent: ConfiguredAgent) -> None:
        now = monotonic()
        if now < self._over_budget_until or now < self._paused.get(agent.info.name, (0, 0.0))[1]:
            raise _NotNow

    async def _ask(
        self, agent: ConfiguredAgent, meta: SessionMeta, part: Part, memory: Memory
    ) -> tuple[list[Statement], Part]:
        """Ask the model for the statements of a part, or of its beginning. Returns both. The request is charged."""
        name, calibration = agent.info.name, self._meter.calibrations[agent.info.name]
        room = min(self._meter.budget(agent) - _REQUEST_OVERHEAD, _REQUEST_TOKENS)
        known = [each for each in memory.statements if not each.is_outline]
        fits = lambda text: calibration.estimate(measure(text)) <= room  # noqa: E731 - it is used in one line only.
        prompt, part = await asyncio.to_thread(partial(build_request, part, known, fits=fits))
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await self._answer(agent, prompt)
        except (ProviderFailed, TimeoutError) as error:
            failures = self._paused.get(name, (0, 0.0))[0] + 1
            pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
            self._paused[name] = (failures, monotonic() + pause)
            raise _ModelFailed(str(error) or "The model took too long.") from error
        self._paused.pop(name, None)
        return await asyncio.to_thread(read_answer, answer, part, meta.number), part

    async def _answer(self, agent: ConfiguredAgent, prompt: Prompt) -> str:
        provider = self._meter.open_provider(agent, ARCHIVIST, limits=self._limits)
        usage, step, length = provider.usage, StepCollector(), 0
        try:
            async with aclosing(provider.stream(prompt)) as chunks:
                async for chunk in chunks:
                    text = step.add(chunk)
                    length += len(text.text) if text is not None else 0
                    if length > MAX_ANSWER_CHARS:
                        raise Refused("The model's answer is too long.")
            return step.result().text
        finally:
            if spends := list(usage.uncommitted):  # The tokens were used, whatever comes of it.
                with suppress(SpoolUnavailable):
                    await finish_before_cancel(self._spool.commit(*spends))

    def _limits(self) -> Limits:
        settings = self._live.settings.memory
        return Limits(
            tokens_per_day=Limit(settings.tokens_per_day, "memory.tokens_per_day"),
            tokens_per_turn=Limit(0, ""),
            cost_per_day=Limit(settings.cost_per_day or 0, "memory.cost_per_day"),
        )

    async def _write(self, meta: SessionMeta, statements: Sequence[Statement], mark: Archived) -> bool:
        """Write statements and the mark. Returns False, without writing, if the session was deleted in the meantime."""
        day = f"{self._context.now():%Y-%m-%d}"
        async with self._changes.lock:
            now = await self._find(meta.key)
            if now is None or now.id != meta.id:
                return False
            store = MemoryStore(self._context.memory_folder(meta.scope))
            add = partial(store.add, statements, day=day, archived=mark)
            await finish_before_cancel(asyncio.to_thread(add))
            await self._context.memory_may_have_changed(meta.scope)
        return True
