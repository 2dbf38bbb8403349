"""Token usage: fits requests into a model's context, counts and charges their tokens, and enforces the limits."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from time import monotonic

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from config import Settings
from gateway.access.role_table import AskerRoles, Limits
from gateway.access.rules import Live
from gateway.agent.context_window import fit
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta, TokenUsage
from gateway.agent.senders import without_sender
from gateway.agent.tokens import Calibration, Calibrations, measure, measure_frame, measure_message
from gateway.bounded import BoundedDict
from gateway.contract import Inbound
from gateway.conversation import Message, ToolCall, ToolMessage
from gateway.errors import ContextTooLong, ProviderFailed, Refused
from gateway.metrics import Metrics
from gateway.sessions import entries
from gateway.spool import AddUsage, Operation, SetFact, Spool, UsageTotal, utc_day
from gateway.spool.spool import retry_while_unavailable
from gateway.tracing import NoSpan, OpenSpan, SpanKind, open_span
from gateway.turns.agents import ConfiguredAgent

log = structlog.get_logger()

MAX_USAGE_AGE = 2.0
"""Seconds for which a node of a cluster may not know what a person has used at other nodes."""
_MAX_PEOPLE = 10_000
"""People whose usage of today is kept in memory."""
_MICROS = 1_000_000


def person_of(settings: Settings, inbound: Inbound) -> str:
    """Return the id of the person who is charged. Ids that the owner has linked are one person.

    A program is charged by its token, and a schedule of the settings by its name, on every channel.
    """
    if inbound.sender.token:
        return f"token:{inbound.sender.token}"
    if inbound.sender.schedule:
        return f"schedule:{inbound.sender.schedule}"
    sender = f"{inbound.address.channel}:{inbound.sender.id or inbound.address.peer}"
    for name, ids in settings.session.identity_links.items():
        if sender in ids:
            return f"~{name}"
    return sender


class DailyUsage:
    """Tokens that each person has used today. The spool stores them; this is a cache of it.

    In a cluster, other nodes add to the usage as well. So what is cached is read again after a moment.
    """

    def __init__(
        self,
        spool: Spool,
        now: Callable[[], datetime],
        metrics: Metrics | None = None,
        *,
        max_age: float = MAX_USAGE_AGE,
    ) -> None:
        self._spool = spool
        self._metrics = metrics or Metrics()
        self._now = now
        self._cache = BoundedDict[tuple[str, str], UsageTotal](_MAX_PEOPLE, on_drop=self._evicted)
        self._complete_day = ""
        """The day for which the cache has everyone with any usage. Empty once someone has been evicted."""
        self._max_age = max_age
        self._read_at = BoundedDict[tuple[str, str], float](_MAX_PEOPLE)
        """In a cluster, when the usage of each person was read."""

    async def today(self, person: str) -> UsageTotal:
        key = (utc_day(self._now()), person)
        if self._spool.shards is not None:
            is_old = key not in self._cache or monotonic() - self._read_at.get(key, 0.0) >= self._max_age
            if is_old:
                await retry_while_unavailable(partial(self._read_again, *key))
        elif key not in self._cache:
            # Even a read fails while the database is away, or if it shares its batch with a write that found no room.
            await retry_while_unavailable(partial(self._load, *key))
        self._cache.move_to_end(key)
        return self._cache[key]

    def _evicted(self, *_: object) -> None:
        self._complete_day = ""

    async def _load(self, day: str, person: str) -> None:
        # The first load of a day reads everyone: most people who come later have used nothing yet.
        if self._complete_day != day:
            found = await self._spool.top_usage(day, limit=_MAX_PEOPLE)
            self._complete_day = day if len(found) < _MAX_PEOPLE else ""
            for name, spent in found:
                self._cache.setdefault((day, name), spent)
        if not self._complete_day and (day, person) not in self._cache:
            self._cache.setdefault((day, person), await self._spool.usage(day, person))
        self._cache.setdefault((day, person), UsageTotal())

    async def _read_again(self, day: str, person: str) -> None:
        key, at = (day, person), monotonic()
        stored = await self._spool.usage(day, person)
        # What this node has charged, and has not committed yet, is in the cache only.
        cached = self._cache.get(key, UsageTotal())
        self._cache[key] = max(stored, cached, key=lambda total: (total.tokens, total.cost_micros))
        self._read_at[key] = at

    def add(self, spend: AddUsage) -> None:
        """Count usage that will be committed. A person who is not cached is read from the spool later."""
        self._metrics.usage_added(spend)
        key = (spend.day, spend.person)
        if key in self._cache or self._complete_day == spend.day:
            self._cache[key] = self._cache.get(key, UsageTotal()) + UsageTotal(
                input_tokens=spend.input_tokens,
                cached_tokens=spend.cached_tokens,
                output_tokens=spend.output_tokens,
                cost_micros=spend.cost_micros,
            )

    async def totals(self, limit: int) -> tuple[UsageTotal, list[tuple[str, UsageTotal]]]:
        """Return the total of today, and the people who have used most."""
        day = utc_day(self._now())
        return await self._spool.usage(day), await self._spool.top_usage(day, limit=limit)


class LimitReached(Refused):
    """The turn or the person has used up the tokens that the settings allow."""


class RunBudget(Struct, frozen=True, kw_only=True):
    """What the run of a schedule may cost, besides the limits of its maker. 0 means no limit.

    The spent values are those of this day, when the turn begins.
    """

    tokens_per_run: int
    tokens_per_day: int
    cost_per_day: float
    spent_tokens: int = 0
    spent_micros: int = 0

    def check(self, tokens: int, cost_micros: int) -> None:
        """Raise `LimitReached` if the turn has used up the budget with these tokens and this cost."""
        if self.tokens_per_run and tokens >= self.tokens_per_run:
            raise LimitReached(f"This run has used {tokens:,} of {self.tokens_per_run:,} tokens, so I stopped it.")
        today = self.spent_tokens + tokens
        if self.tokens_per_day and today >= self.tokens_per_day:
            raise LimitReached(f"The schedule has used {today:,} of its {self.tokens_per_day:,} tokens a day.")
        spent = (self.spent_micros + cost_micros) / _MICROS
        if self.cost_per_day and spent >= self.cost_per_day:
            raise LimitReached(f"The schedule has cost {spent:.2f} of {self.cost_per_day:.2f} a day.")


class TurnUsage:
    """Tokens that one turn has used. They are committed together with the turn's entries."""

    def __init__(
        self,
        person: str,
        *,
        daily: DailyUsage,
        limits: Callable[[], Limits],
        about: Callable[[str], ModelInfo],
        now: Callable[[], datetime],
        budget: RunBudget | None = None,
        agent: str = "",
    ) -> None:
        self.person = person
        self._agent = agent
        self._budget = budget
        self._daily = daily
        self.limits = limits
        """Returns the budget of now. Raises `Refused` if the role of a person no longer allows the turn to go on."""
        self._about = about
        self._now = now
        self._total = 0
        self._cost_micros = 0
        self.uncommitted: list[AddUsage] = []
        """The charges that are not in the spool yet."""
        self._unrecorded: list[entries.Usage] = []
        self.model = ""
        """The model that was charged last. It may be a fallback."""
        self.context_tokens = 0
        """Tokens of the last request and its answer: how full the context is."""

    def find_refusal(self) -> str:
        """Return why the role of a person no longer allows the turn to go on, or an empty string."""
        try:
            self.limits()
        except Refused as refusal:
            return str(refusal)
        return ""

    async def check_limits(self) -> None:
        """Raise `LimitReached` if the turn or the person has no tokens or no money left for another request.

        The limits are those of now: the role of the person may have changed during the turn.
        """
        limits = self.limits()
        if self._budget is not None:
            self._budget.check(self._total, self._cost_micros)
        limit, key = limits.tokens_per_turn
        if limit and self._total >= limit:
            raise LimitReached(
                f"I stopped: this answer has used {self._total:,} of {limit:,} tokens. "
                f"Try asking for less at once. The bot's operator can raise {key}."
            )
        if not limits.tokens_per_day.value and not limits.cost_per_day.value:
            return
        today = await self._daily.today(self.person)
        limit, key = limits.tokens_per_day
        if limit and today.tokens >= limit:
            raise LimitReached(
                f"You've reached today's limit ({today.tokens:,} of {limit:,} tokens). It resets at 00:00 UTC. "
                f"The bot's operator can raise {key}."
            )
        limit, key = limits.cost_per_day
        if limit and today.cost_micros >= limit * _MICROS:
            raise LimitReached(
                f"You've reached today's limit (a cost of {today.cost_micros / _MICROS:.2f} of {limit:.2f}). It resets "
                f"at 00:00 UTC. The bot's operator can raise {key}."
            )

    def charge(self, usage: TokenUsage, *, model: str) -> None:
        """Add a request to `model`, or to the fallback that `usage` names."""
        model = usage.model or model
        cost = round((self._about(model).cost(usage) or 0) * _MICROS)
        spend = AddUsage(
            day=utc_day(self._now()),
            person=self.person,
            model=model,
            agent=self._agent,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            cost_micros=cost,
        )
        recorded = entries.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_micros=cost,
        )
        self._add(spend, recorded)
        self.model = model
        self._total += usage.input_tokens + usage.output_tokens

    def charge_call(self, model: str, cost: float) -> None:
        """Add a call of a service that has no tokens. Implements `gateway.agent.tools.Budget`."""
        micros = round(cost * _MICROS)
        day = utc_day(self._now())
        spend = AddUsage(day=day, person=self.person, model=model, agent=self._agent, cost_micros=micros)
        self._add(spend, entries.Usage(cost_micros=micros))

    def _add(self, spend: AddUsage, recorded: entries.Usage) -> None:
        self.uncommitted.append(spend)
        self._unrecorded.append(recorded)
        # Counted before the commit: the person's next request may come first.
        self._daily.add(spend)
        self._cost_micros += recorded.cost_micros

    def entry(self) -> entries.Usage | None:
        """Return the uncommitted charges as a transcript entry has them."""
        if len(self._unrecorded) <= 1:
            return self._unrecorded[0] if self._unrecorded else None
        return entries.Usage(
            input_tokens=sum(each.input_tokens for each in self._unrecorded),
            output_tokens=sum(each.output_tokens for each in self._unrecorded),
            cached_tokens=sum(each.cached_tokens for each in self._unrecorded),
            cache_write_tokens=sum(each.cache_write_tokens for each in self._unrecorded),
            cost_micros=sum(each.cost_micros for each in self._unrecorded),
        )

    def mark_committed(self, spends: Sequence[AddUsage]) -> None:
        """Forget the first `spends` of `uncommitted`. More may have been charged during the commit."""
        del self.uncommitted[: len(spends)]
        del self._unrecorded[: len(spends)]


Summarize = Callable[[], Awaitable[Sequence[Message]]]
"""Summarises as much of the session as it can, and returns the messages that now come before the turn."""

_MARGIN = 0.95
"""Share of the available context that a request may use, since the estimate may be too low."""
_AFTER_OVERFLOW = 0.7
"""Share of a rejected request's size that later turns may use."""
_RETRY_SHARE = 0.5
"""Share of a rejected request's messages that the retry may use."""
_MIN_BUDGET_SHARE = 0.2
_MAX_OUTPUT_SHARE = 0.25
"""Share of its context that a model keeps for its answer, at most."""
_MEASURED_INLINE = 50_000
"""Characters that are measured on the event loop, in a millisecond at worst. More are measured in a thread."""


def token_budget(info: ModelInfo, calibration: Calibration) -> int:
    """Return how many estimated tokens a request may have."""
    room = info.context_tokens - min(info.max_output_tokens, round(info.context_tokens * _MAX_OUTPUT_SHARE))
    budget = round(room * _MARGIN)
    if calibration.ceiling is None:
        return budget
    # One wrong rejection must not leave a model without any context.
    return min(budget, max(round(calibration.ceiling * _AFTER_OVERFLOW), round(budget * _MIN_BUDGET_SHARE)))


class _Request(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    measured: float
    tokens: int
    fixed: int
    """Tokens of the system prompt and the tools, which cannot be shortened."""


class _Response(Struct):
    """The part of a response that has arrived so far."""

    asked_at: float
    span: OpenSpan | NoSpan
    first_token_after: float | None = None
    usage: TokenUsage | None = None
    written: list[str] = field(default_factory=list)


class MeteredProvider:
    """The provider that one turn uses. Every request fits the context, respects the limits, and is charged.

    If the provider rejects a request as too long, the session is summarised and the request sent once more.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        info: ModelInfo,
        calibrations: Calibrations,
        usage: TurnUsage,
        excluded_models: Callable[[], frozenset[str]] = frozenset,
        names_senders: bool = False,
        summarize: Summarize | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._provider = provider
        self._info = info
        self._calibrations = calibrations
        self.usage = usage
        self._excluded_models = excluded_models
        self._names_senders = names_senders
        self._summarize = summarize
        self._metrics = metrics or Metrics()
        self.history_size = 0
        """How many messages of a prompt are older than the turn, and may be left out to make it fit."""
        self._summarized: Sequence[Message] | None = None
        """Replaces those messages once the session was summarised."""
        self._max_tokens: int | None = None
        """Tokens that the messages may have, once a request was too long."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        await self.usage.check_limits()
        prompt = replace(prompt, excluded=self._excluded_models())  # The roles may have changed during the turn.
        for may_retry in (True, False):
            request = await self._fit(prompt)
            about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": self._info.name}
            span = open_span(f"chat {self._info.name}", about, kind=SpanKind.CLIENT)
            response = _Response(monotonic(), span)
            error: BaseException | None = None
            try:
                async with aclosing(self._provider.stream(request.prompt)) as chunks:
                    async for chunk in chunks:
                        if response.first_token_after is None:
                            response.first_token_after = monotonic() - response.asked_at
                        if isinstance(chunk, TokenUsage):
                            response.usage = chunk  # Passed on at the end, once it is charged.
                            continue
                        if isinstance(chunk, TextDelta):
                            response.written.append(chunk.text)
                        elif isinstance(chunk, ToolCall):
                            response.written.append(f"{chunk.name} {chunk.input}")
                        yield chunk
            except ContextTooLong as rejection:
                error = rejection
                if not may_retry:
                    raise
            except BaseException as failure:  # Cancelled, closed or failed: in every case it is accounted for.
                error = failure
                raise
            finally:
                self._account(request, response, error)
            if error is None:
                if response.usage is not None:
                    yield response.usage
                return
            # The estimate was too low. Remember that for later turns, summarise the session, and retry with less.
            log.warning("context_too_long", model=self._info.name, estimate=request.tokens)
            self._calibrations[self._info.name].too_long(request.tokens)
            self._max_tokens = round((request.tokens - request.fixed) * _RETRY_SHARE)
            if self._summarize is not None:
                self._summarized = await self._summarize()

    async def _fit(self, prompt: Prompt) -> _Request:
        """Shorten the prompt's messages until they fit the model's context."""
        messages, history_size = list(prompt.messages), self.history_size
        if self._summarized is not None:
            messages, history_size = [*self._summarized, *messages[history_size:]], len(self._summarized)
        chars = 0
        for at, message in enumerate(messages):
            if isinstance(message, ToolMessage):
                chars += sum(len(outcome.output) for outcome in message.outcomes)
                continue
            chars += len(message.text)
            if not self._names_senders:
                messages[at] = without_sender(message)
        if chars > _MEASURED_INLINE:
            sizes = await asyncio.to_thread(lambda: list(map(measure_message, messages)))
        else:
            sizes = list(map(measure_message, messages))
        calibration = self._calibrations[self._info.name]
        frame = measure_frame(prompt.system, prompt.tools)
        fixed, budget = calibration.estimate(frame), token_budget(self._info, calibration)
        measured = frame + sum(sizes)
        room = min(budget - fixed, self._max_tokens or budget)
        # Most requests fit, and are sent as they are.
        if calibration.estimate(measured) > fixed + room:
            # `fit` asks for each size several times. The ids are safe as keys: `messages` keeps the objects alive.
            known = dict(zip(map(id, messages), sizes, strict=True))

            def size(message: Message) -> int:
                return calibration.estimate(known.get(id(message)) or measure_message(message))

            shown = fit(messages[:history_size], messages[history_size:], size=size, budget=room)
            measured = frame + sum(known.get(id(message)) or measure_message(message) for message in shown)
        else:
            shown = messages
        tokens = calibration.estimate(measured)
        return _Request(prompt=replace(prompt, messages=shown), measured=measured, tokens=tokens, fixed=fixed)

    def _account(self, request: _Request, response: _Response, error: BaseException | None) -> None:
        """Count a request that has ended, learn from its usage, and charge it.

        A request that was stopped is charged: the model has read it. One that failed before its first token is not.
        """
        name, usage = self._info.name, response.usage
        is_stopped = isinstance(error, asyncio.CancelledError | GeneratorExit)
        outcome = "answered" if error is None else "stopped" if is_stopped else "failed"
        seconds = monotonic() - response.asked_at
        model = (usage and usage.model) or name
        reason = str(error) if isinstance(error, ProviderFailed) else type(error).__name__
        self._metrics.model_called(
            model, outcome, seconds=seconds, first_word=response.first_token_after, reason=reason
        )
        _end_span(response, outcome, model, error)
        if isinstance(error, ProviderFailed) and response.first_token_after is None:
            return
        if usage is not None and usage.input_tokens:
            self._calibrations[usage.model or name].learn(request.measured, usage.input_tokens)
        elif self._info.is_free:
            self.usage.context_tokens = request.tokens
            return
        else:  # The provider has not counted, so the estimate is charged.
            output = self._calibrations[name].estimate(measure("".join(response.written)))
            usage = response.usage = TokenUsage(input_tokens=request.tokens, output_tokens=output)
        self.usage.charge(usage, model=name)
        self.usage.context_tokens = usage.input_tokens + usage.output_tokens


def _end_span(response: _Response, outcome: str, model: str, error: BaseException | None) -> None:
    about: dict[str, str | bool | int | float] = {"gatehouse.outcome": outcome, "gen_ai.response.model": model}
    if response.first_token_after is not None:
        about["gatehouse.first_token_seconds"] = round(response.first_token_after, 6)
    if response.usage is not None:
        about["gen_ai.usage.input_tokens"] = response.usage.input_tokens
        about["gen_ai.usage.output_tokens"] = response.usage.output_tokens
    if outcome == "failed":
        response.span.fail(type(error).__name__)
    response.span.end(about)


_CALIBRATION_FACT = "token_weights"
"""The fact in the spool that keeps the learned factors, under the name that earlier versions used."""


class Meter:
    """Shared by all turns: today's usage, and the learned factors of the token estimates."""

    def __init__(
        self, live: Live, spool: Spool, *, now: Callable[[], datetime], metrics: Metrics | None = None
    ) -> None:
        self._live = live
        self._now = now
        self._spool = spool
        self._metrics = metrics or Metrics()
        self.daily = DailyUsage(spool, now, self._metrics)
        self.calibrations = Calibrations()

    async def load(self) -> None:
        """Load the factors that were learned before the last restart."""
        facts = await self._spool.facts(_CALIBRATION_FACT)
        self.calibrations = Calibrations(facts.get(_CALIBRATION_FACT))

    def open_provider(
        self,
        agent: ConfiguredAgent,
        person: str,
        *,
        names_senders: bool = False,
        summarize: Summarize | None = None,
        limits: Callable[[], Limits] | None = None,
        budget: RunBudget | None = None,
    ) -> MeteredProvider:
        """Return the agent's provider for one turn, charged to `person`. `limits` are those of the person's role.

        They are asked for before each request, and may raise `Refused`. The run of a schedule has a `budget` as well.
        """
        limits = limits or (lambda: AskerRoles(()).limits(self._live.settings.limits))
        return MeteredProvider(
            agent.provider,
            info=agent.info,
            calibrations=self.calibrations,
            usage=TurnUsage(
                person,
                daily=self.daily,
                limits=limits,
                about=agent.about,
                now=self._now,
                budget=budget,
                agent=agent.name,
            ),
            excluded_models=agent.excluded_models,
            names_senders=names_senders,
            summarize=summarize,
            metrics=self._metrics,
        )

    def budget(self, agent: ConfiguredAgent) -> int:
        """Return how many tokens a request to the agent's model may have."""
        return token_budget(agent.info, self.calibrations[agent.info.name])

    def size(self, agent: ConfiguredAgent, messages: Iterable[Message]) -> int:
        """Return the estimated tokens of a request with only these messages."""
        measured = measure_frame(agent.system, agent.toolbox.specs()) + sum(map(measure_message, messages))
        return self.calibrations[agent.info.name].estimate(measured)

    def learned(self) -> list[Operation]:
        """Return the operations that store the factors that were learned since the last call."""
        changes = self.calibrations.unsaved_changes()
        return [] if changes is None else [SetFact(name=_CALIBRATION_FACT, value=changes)]
