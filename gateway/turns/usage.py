"""What people use of the models: what each has used today, and what a turn owes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial, reduce
from time import monotonic
from types import TracebackType
from typing import Self

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from config import LimitSettings, Settings
from gateway.access.live import Live
from gateway.agent.fit import fit
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta, TokenUsage
from gateway.agent.tokens import Calibration, Calibrations, measure, measure_frame, measure_message
from gateway.bounded import BoundedDict
from gateway.contract import Inbound
from gateway.conversation import Message, ToolCall, ToolMessage, UserMessage
from gateway.errors import ContextTooLong, ProviderFailed, Refused
from gateway.metrics import Metrics
from gateway.sessions import entries
from gateway.spool import AddUsage, Operation, SetFact, Spool, UsageTotal
from gateway.spool.spool import retry_while_full
from gateway.turns.agents import Agent

log = structlog.get_logger()

_REMEMBERED = 10_000
_MICROS = 1_000_000


def utc_day(now: datetime) -> str:
    return now.astimezone(UTC).date().isoformat()


def person_of(settings: Settings, inbound: Inbound) -> str:
    """Name who pays: the same person on several platforms is one, where the owner has linked the ids."""
    known_as = f"{inbound.address.channel}:{inbound.sender.id or inbound.address.peer}"
    linked = (name for name, ids in settings.session.identity_links.items() if known_as in ids)
    name = next(linked, None)
    return known_as if name is None else f"~{name}"


class DailyUsage:
    """What each person has used today. The spool has it; whoever was looked at lately is known without asking it."""

    def __init__(self, spool: Spool, now: Callable[[], datetime], metrics: Metrics | None = None) -> None:
        self._spool = spool
        self._metrics = metrics or Metrics()
        self._now = now
        self._known = BoundedDict[tuple[str, str], UsageTotal](_REMEMBERED, on_drop=self._forgot)
        self._whole = ""
        """The day of which everybody is known who has used anything, as long as nobody was forgotten."""

    async def today(self, person: str) -> UsageTotal:
        key = (utc_day(self._now()), person)
        if key not in self._known:
            # On a full disk even reading fails, together with what others could not write.
            await retry_while_full(partial(self._look_up, *key))
        self._known.move_to_end(key)
        return self._known[key]

    def _forgot(self, *_: object) -> None:
        self._whole = ""

    async def _look_up(self, day: str, person: str) -> None:
        """Ask the spool, the first time on a day about everybody: most who come later have used nothing yet."""
        if self._whole != day:
            found = await self._spool.top_usage(day, limit=_REMEMBERED)
            self._whole = day if len(found) < _REMEMBERED else ""
            for name, spent in found:
                self._known.setdefault((day, name), spent)
        if not self._whole and (day, person) not in self._known:
            self._known.setdefault((day, person), await self._spool.usage(day, person))
        self._known.setdefault((day, person), UsageTotal())

    def add(self, spend: AddUsage) -> None:
        """Take in what will be committed; of one who is not known here, the spool will tell."""
        self._metrics.usage_added(spend)
        key = (spend.day, spend.person)
        if key in self._known or self._whole == spend.day:
            self._known[key] = self._known.get(key, UsageTotal()) + _spent(spend)

    async def everybody(self, limit: int) -> tuple[UsageTotal, list[tuple[str, UsageTotal]]]:
        """Return what all have used today together, and who has used most."""
        day = utc_day(self._now())
        return await self._spool.usage(day), await self._spool.top_usage(day, limit=limit)


class TurnUsage:
    """What one turn owes. It is written down with the turn's entries: what `due` says, in the same commit."""

    def __init__(
        self,
        person: str,
        *,
        spending: DailyUsage,
        limits: LimitSettings,
        about: Callable[[str], ModelInfo],
        now: Callable[[], datetime],
    ) -> None:
        self._person = person
        self._spending = spending
        self._limits = limits
        self._about = about
        self._now = now
        self._due: list[tuple[AddUsage, entries.Usage]] = []
        self._tokens = 0
        self.model = ""
        """Which model was charged last: a fallback, perhaps."""

    async def check(self) -> None:
        """Refuse another step to one who has used up what there is."""
        limit = self._limits.tokens_per_turn
        if limit and self._tokens >= limit:
            raise Refused(
                f"I stopped: this answer has used {self._tokens:,} tokens, and one may use {limit:,}. "
                "Ask for less at once; the owner can raise limits.tokens_per_turn."
            )
        limit = self._limits.tokens_per_user_per_day
        used = (await self._spending.today(self._person)).tokens if limit else 0
        if limit and used >= limit:
            raise Refused(
                f"You have used {used:,} tokens today, and {limit:,} are allowed. There are new ones after 00:00 UTC; "
                "the owner can raise limits.tokens_per_user_per_day."
            )

    def charge(self, usage: TokenUsage, *, model: str) -> None:
        """Add a step of `model`, or of the fallback that the usage names."""
        model = usage.model or model
        cost = round((self._about(model).cost(usage) or 0) * _MICROS)
        spend = AddUsage(
            day=utc_day(self._now()),
            person=self._person,
            model=model,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            cost_micros=cost,
        )
        self._due.append((spend, _noted(usage, cost)))
        self._spending.add(spend)
        self.model = model
        self._tokens += usage.input_tokens + usage.output_tokens

    @property
    def due(self) -> list[AddUsage]:
        """What has not been written down yet."""
        return [spend for spend, _ in self._due]

    @property
    def noted(self) -> entries.Usage | None:
        """The same, as the transcript keeps it."""
        return reduce(_added, (usage for _, usage in self._due)) if self._due else None

    def settled(self, paid: Sequence[AddUsage]) -> None:
        """Take out what was written down."""
        del self._due[: len(paid)]


def _noted(usage: TokenUsage, cost_micros: int) -> entries.Usage:
    return entries.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_micros=cost_micros,
    )


def _added(one: entries.Usage, other: entries.Usage) -> entries.Usage:
    return entries.Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
        cost_micros=one.cost_micros + other.cost_micros,
    )


def _spent(spend: AddUsage) -> UsageTotal:
    return UsageTotal(
        input_tokens=spend.input_tokens,
        cached_tokens=spend.cached_tokens,
        output_tokens=spend.output_tokens,
        cost_micros=spend.cost_micros,
    )


Shorten = Callable[[], Awaitable[Sequence[Message]]]
"""Summarises the session as far as possible, and returns the messages that now stand before the turn."""

_MARGIN = 0.95
"""How much of the room is used, since the estimate may be too low."""
_AFTER_OVERFLOW = 0.7
"""How much of a refused request's size later turns may use."""
_RETRY_SHARE = 0.5
"""How much of a refused request's messages the retry may use."""
_MIN_BUDGET_SHARE = 0.2
_MAX_OUTPUT_SHARE = 0.25
"""How much of its context a model keeps for its answer, at most."""
_MEASURED_INLINE = 50_000
"""Characters that are measured on the event loop, in about a millisecond at worst; more go to a thread."""


class _Request(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    measured: float
    tokens: int
    fixed: int
    """Tokens of the system prompt and the tools, which cannot be shortened."""


def token_budget(info: ModelInfo, calibration: Calibration) -> int:
    """Return how many estimated tokens a request may have."""
    room = info.context_tokens - min(info.max_output_tokens, round(info.context_tokens * _MAX_OUTPUT_SHARE))
    budget = round(room * _MARGIN)
    if calibration.ceiling is None:
        return budget
    # One wrong refusal must not leave a model without any context.
    return min(budget, max(round(calibration.ceiling * _AFTER_OVERFLOW), round(budget * _MIN_BUDGET_SHARE)))


class _Heard(Struct):
    """What has come back of one request so far. Inside it something may come; after it, all is accounted for.

    Also a step that was stopped has been read by the model, so it is paid for; one that failed before its first word
    is not.
    """

    on_end: Callable[["_Heard"], None]
    asked_at: float = field(default_factory=monotonic)
    first_word: float | None = None
    """Seconds until something came."""
    usage: TokenUsage | None = None
    written: list[str] = field(default_factory=list)
    outcome: str = "answered"
    is_owed: bool = True
    """Whether it has to be paid for."""

    def take(self, chunk: Chunk) -> None:
        if self.first_word is None:
            self.first_word = monotonic() - self.asked_at
        if isinstance(chunk, TokenUsage):
            self.usage = chunk
        elif isinstance(chunk, TextDelta):
            self.written.append(chunk.text)
        elif isinstance(chunk, ToolCall):
            self.written.append(f"{chunk.name} {chunk.input}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.outcome = "stopped"
        elif error is not None:
            self.outcome = "failed"
            self.is_owed = self.first_word is not None or not isinstance(error, ProviderFailed)
        self.on_end(self)


class MeteredProvider:
    """Make one for each turn. When a request is too long all the same, `shorten` is asked; then it is tried again."""

    def __init__(
        self,
        provider: Provider,
        *,
        info: ModelInfo,
        calibrations: Calibrations,
        bill: TurnUsage,
        names_senders: bool = False,
        shorten: Shorten | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._provider = provider
        self._info = info
        self._calibrations = calibrations
        self._bill = bill
        self._names_senders = names_senders
        self.before = 0
        """How many messages of a prompt are from before the turn, and may be left out."""
        self._instead: Sequence[Message] | None = None
        self._room: int | None = None
        """Tokens that messages may have, once a request was too long."""
        self._shorten = shorten
        self._metrics = metrics or Metrics()
        self.tokens = 0
        """What the last request and its answer came to: how full the context is."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        await self._bill.check()
        for may_shorten in (True, False):
            request = await self._request(prompt)
            try:
                with _Heard(partial(self._close, request)) as heard:
                    async with aclosing(self._provider.stream(request.prompt)) as chunks:
                        async for chunk in chunks:
                            heard.take(chunk)
                            if not isinstance(chunk, TokenUsage):
                                yield chunk
            except ContextTooLong:
                if not may_shorten:
                    raise
                log.warning("context_too_long", model=self._info.name, estimate=request.tokens)
                self._calibrations[self._info.name].too_long(request.tokens)
                self._room = round((request.tokens - request.fixed) * _RETRY_SHARE)
                if self._shorten is not None:
                    self._instead = await self._shorten()
            else:
                if heard.usage is not None:
                    yield heard.usage
                return

    async def _request(self, prompt: Prompt) -> _Request:
        """Make `prompt` fit. If the session was summed up in this turn, the summary replaces the messages before it."""
        messages, before = list(prompt.messages), self.before
        if self._instead is not None:
            messages, before = [*self._instead, *messages[self.before :]], len(self._instead)
        if not self._names_senders:
            messages = list(map(_without_sender, messages))
        if sum(map(_length, messages)) > _MEASURED_INLINE:
            sizes = await asyncio.to_thread(lambda: list(map(measure_message, messages)))
        else:
            sizes = list(map(measure_message, messages))
        calibration = self._calibrations[self._info.name]
        frame = measure_frame(prompt.system, prompt.tools)
        fixed, budget = calibration.estimate(frame), token_budget(self._info, calibration)
        measured = frame + sum(sizes)
        room = min(budget - fixed, self._room or budget)
        if calibration.estimate(measured) > fixed + room:
            # Fitting asks for the size of each message several times. The identities are safe: `messages` holds them.
            known = dict(zip(map(id, messages), sizes, strict=True))

            def size(message: Message) -> int:
                return calibration.estimate(known.get(id(message)) or measure_message(message))

            shown = fit(messages[:before], messages[before:], size=size, budget=room)
            measured = frame + sum(known.get(id(message)) or measure_message(message) for message in shown)
        else:
            shown = messages
        tokens = calibration.estimate(measured)
        return _Request(prompt=replace(prompt, messages=shown), measured=measured, tokens=tokens, fixed=fixed)

    def _close(self, request: _Request, heard: _Heard) -> None:
        """Count the request, learn from its usage, and charge it: by the provider's count, or else by the estimate."""
        name, usage = self._info.name, heard.usage
        seconds = monotonic() - heard.asked_at
        self._metrics.model_called(
            (usage and usage.model) or name, heard.outcome, seconds=seconds, first_word=heard.first_word
        )
        if not heard.is_owed:
            return
        if usage is not None and usage.input_tokens:
            self._calibrations[usage.model or name].learn(request.measured, usage.input_tokens)
        elif self._info.is_free:
            self.tokens = request.tokens
            return
        else:
            output = self._calibrations[name].estimate(measure("".join(heard.written)))
            usage = heard.usage = TokenUsage(input_tokens=request.tokens, output_tokens=output)
        self._bill.charge(usage, model=name)
        self.tokens = usage.input_tokens + usage.output_tokens


def _without_sender(message: Message) -> Message:
    """Return the message as a model gets it where only one person talks."""
    if isinstance(message, UserMessage) and (message.sender or message.sender_id):
        return UserMessage(text=message.text, is_ours=message.is_ours, pictures=message.pictures)
    return message


def _length(message: Message) -> int:
    if isinstance(message, ToolMessage):
        return sum(len(outcome.output) for outcome in message.outcomes)
    return len(message.text)


_CALIBRATION_FACT = "token_weights"
"""The fact in the spool that keeps the learned factors, under the name that earlier versions used."""


class Meter:
    def __init__(
        self, live: Live, spool: Spool, *, now: Callable[[], datetime], metrics: Metrics | None = None
    ) -> None:
        self._live = live
        self._now = now
        self._spool = spool
        self._metrics = metrics or Metrics()
        self.spending = DailyUsage(spool, now, self._metrics)
        self.calibrations = Calibrations()

    async def read(self) -> None:
        """Go on with what was learned before the last restart."""
        facts = await self._spool.facts(_CALIBRATION_FACT)
        self.calibrations = Calibrations(facts.get(_CALIBRATION_FACT))

    def bill(self, person: str, agent: Agent) -> TurnUsage:
        limits = self._live.settings.limits
        return TurnUsage(person, spending=self.spending, limits=limits, about=agent.about, now=self._now)

    def metered(
        self,
        agent: Agent,
        bill: TurnUsage,
        *,
        names_senders: bool = False,
        shorten: Shorten | None = None,
    ) -> MeteredProvider:
        return MeteredProvider(
            agent.provider,
            info=agent.info,
            calibrations=self.calibrations,
            bill=bill,
            names_senders=names_senders,
            shorten=shorten,
            metrics=self._metrics,
        )

    def budget(self, agent: Agent) -> int:
        """Return how many tokens a request to the agent's model may have."""
        return token_budget(agent.info, self.calibrations[agent.info.name])

    def size(self, agent: Agent, messages: Iterable[Message]) -> int:
        """Return about how many tokens the agent's next request has before anything is added."""
        measured = measure_frame(agent.system, agent.toolbox.specs()) + sum(map(measure_message, messages))
        return self.calibrations[agent.info.name].estimate(measured)

    def news(self) -> list[Operation]:
        """Return what there is to be kept of what was learned since the last time."""
        news = self.calibrations.news()
        return [] if news is None else [SetFact(name=_CALIBRATION_FACT, value=news)]
