"""A meter on a model whose tokeniser is its own secret."""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import LimitSettings, Settings
from gateway.access.role_table import AskerRoles
from gateway.access.rules import Live
from gateway.agent.models import ModelInfo, Prices
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.tokens import Calibrations
from gateway.conversation import AssistantMessage, Message, ToolMessage, ToolOutcome, UserMessage
from gateway.database.connection import Connection
from gateway.errors import ContextTooLong, ProviderFailed, Refused
from gateway.metrics import Metrics
from gateway.spool import AddUsage, SetFact, Spool, SpoolUnavailable, utc_day
from gateway.turns.usage import DailyUsage, Meter, MeteredProvider, TurnUsage
from tests.agent.scripted import ScriptedProvider

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
INFO = ModelInfo(
    name="house/model",
    context_tokens=4_000,
    max_output_tokens=1_000,
    prices=Prices(input=1, output=10, cached_input=0.1, cache_write=1),
)


def true_tokens(text: str) -> float:
    """Count as no tokeniser does that we know of."""
    return 3 + sum(1.7 if character.isalpha() else 0.2 for character in text) / 4


class Counting:
    """Counts what it is given, refuses what is too long, and says yes to the rest."""

    def __init__(self, limit: float = 1e9) -> None:
        self.limit = limit
        self.counted: list[int] = []

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        texts = [message.text for message in prompt.messages if not hasattr(message, "outcomes")]
        tokens = round(true_tokens(prompt.system) + sum(map(true_tokens, texts)))
        self.counted.append(tokens)
        if tokens > self.limit:
            raise ContextTooLong("That was too long.")
        yield TextDelta(text="yes")
        yield TokenUsage(input_tokens=tokens, output_tokens=1)


@asynccontextmanager
async def turn_usage(folder: Path, **limits: int) -> AsyncIterator[tuple[TurnUsage, DailyUsage]]:
    async with await Spool.open(folder) as spool:
        daily = DailyUsage(spool, lambda: NOW)
        found = AskerRoles(()).limits(LimitSettings.model_validate(limits))
        yield (
            TurnUsage("ann", daily=daily, limits=lambda: found, about=lambda _model: INFO, now=lambda: NOW),
            daily,
        )


async def told(metered: MeteredProvider, messages: Sequence[Message]) -> list[Chunk]:
    async with aclosing(metered.stream(Prompt(system="Be brief.", messages=messages))) as chunks:
        return [chunk async for chunk in chunks]


def metered(
    provider: Counting | ScriptedProvider, usage: TurnUsage, info: ModelInfo = INFO, **more: object
) -> MeteredProvider:
    parts: dict[str, object] = {"calibrations": Calibrations(), **more}
    return MeteredProvider(provider, info=info, usage=usage, **parts)  # type: ignore[arg-type]  # They are what they are.


def words(rng: random.Random) -> str:
    return " ".join("".join(rng.choices("abcdefgh", k=rng.randint(2, 9))) for _ in range(rng.randint(3, 60)))


async def test_after_three_turns_the_budget_is_kept_within_15_percent(tmp_path: Path) -> None:
    """More is said than fits, so each request shows what the meter takes for the budget."""
    rng = random.Random(0)  # noqa: S311 - nothing secret
    provider, calibrations = Counting(), Calibrations()
    said: list[Message] = []
    async with turn_usage(tmp_path) as (usage, _):
        for _ in range(40):
            said.append(UserMessage(text=words(rng)))
            model = metered(provider, usage, calibrations=calibrations)
            model.history_size = len(said) - 1
            await told(model, said)
            said.append(AssistantMessage(text=words(rng)))
    budget = round(0.95 * 3_000)
    assert provider.counted[-1] > 0.8 * budget
    assert max(provider.counted) < 1.15 * budget


@pytest.mark.parametrize("names_senders", [False, True])
async def test_senders_are_named_only_if_several_people_write(tmp_path: Path, names_senders: bool) -> None:  # noqa: FBT001
    said = UserMessage(text="hello", sender="Ann", sender_id="7")
    script = ScriptedProvider([TextDelta(text="hi")])
    async with turn_usage(tmp_path) as (usage, _):
        await told(metered(script, usage, names_senders=names_senders), [said])
    assert script.prompts[0].messages == [said if names_senders else UserMessage(text="hello")]


async def test_a_long_conversation_is_measured_in_a_thread_with_the_same_result(tmp_path: Path) -> None:
    info = ModelInfo(name="house/model", context_tokens=1_000_000)
    said: list[Message] = [UserMessage(text="long " * 20_000), ToolMessage(outcomes=(ToolOutcome(id="1", output="x"),))]
    async with turn_usage(tmp_path) as (usage, _):
        model = metered(ScriptedProvider([TextDelta(text="hi")]), usage, info)
        await told(model, said)
    assert model.usage.context_tokens == pytest.approx(24_000, rel=0.01)


async def test_factors_survive_a_restart_and_the_weights_of_earlier_versions_are_ignored(tmp_path: Path) -> None:
    weights = [12, 4, 3.75, 0.5, 2, 3.25, 0.75, 2.75, 5, 11, 6_000]
    async with await Spool.open(tmp_path) as spool:
        meter = Meter(Live(Settings()), spool, now=lambda: NOW)
        await spool.commit(SetFact(name="token_weights", value=json.dumps({"house/model": weights})))
        await meter.load()
        assert meter.calibrations["house/model"].estimate(1_000) == 1_000
        for _ in range(20):
            meter.calibrations["house/model"].learn(10_000, 14_000)
        await spool.commit(*meter.learned())
        after = Meter(Live(Settings()), spool, now=lambda: NOW)
        await after.load()
        assert after.calibrations["house/model"].estimate(1_000) == pytest.approx(1_400, rel=0.01)


async def test_a_request_that_is_too_long_is_shortened_and_retried_once(tmp_path: Path) -> None:
    provider = Counting(limit=700)
    said = [UserMessage(text="a message that is not too short " * 5) for _ in range(20)]
    async with turn_usage(tmp_path) as (usage, _):
        model = metered(provider, usage)
        model.history_size = 19
        assert await told(model, said) == [
            TextDelta(text="yes"),
            TokenUsage(input_tokens=provider.counted[1], output_tokens=1),
        ]
        first, second = provider.counted
    assert second < 700 < first


async def test_a_summary_replaces_earlier_messages_for_the_rest_of_the_turn(tmp_path: Path) -> None:
    async def summarize() -> Sequence[Message]:
        return [UserMessage(text="in short", is_ours=True)]

    script = ScriptedProvider([ContextTooLong("no")], [TextDelta(text="yes")])
    said = [UserMessage(text="long ago " * 50), UserMessage(text="now")]
    async with turn_usage(tmp_path) as (usage, _):
        model = metered(script, usage, summarize=summarize)
        model.history_size = 1
        await told(model, said)
        await told(model, [*said, AssistantMessage(text="a step")])
    texts = [[message.text for message in prompt.messages if hasattr(message, "text")] for prompt in script.prompts]
    assert texts == [["long ago " * 50, "now"], ["in short", "now"], ["in short", "now", "a step"]]


async def test_a_second_rejection_is_raised(tmp_path: Path) -> None:
    script = ScriptedProvider([ContextTooLong("It is too long.")])
    async with turn_usage(tmp_path) as (usage, _):
        with pytest.raises(ContextTooLong):
            await told(metered(script, usage), [UserMessage(text="now")])
        assert len(script.prompts) == 2
        assert usage.uncommitted == []


async def test_usage_is_estimated_if_the_provider_reports_none(tmp_path: Path) -> None:
    script = ScriptedProvider([TextDelta(text="so many words " * 10)])
    async with turn_usage(tmp_path) as (usage, daily):
        await daily.today("ann")
        *_, used = await told(metered(script, usage), [UserMessage(text="go")])
        assert isinstance(used, TokenUsage)
        assert 20 < used.output_tokens < 60
        assert (await daily.today("ann")).tokens == used.input_tokens + used.output_tokens


async def test_a_free_model_is_not_charged(tmp_path: Path) -> None:
    free = ModelInfo(name="rules", prices=Prices(input=0, output=0, cached_input=0, cache_write=0))
    async with turn_usage(tmp_path) as (usage, _):
        said = await told(metered(ScriptedProvider([TextDelta(text="hi")]), usage, free), [UserMessage(text="go")])
        assert said == [TextDelta(text="hi")]
        assert usage.uncommitted == []


async def test_a_request_is_charged_only_if_it_failed_after_its_first_chunk(tmp_path: Path) -> None:
    async with turn_usage(tmp_path) as (usage, _):
        with pytest.raises(ProviderFailed):
            await told(metered(ScriptedProvider([ProviderFailed("no")]), usage), [UserMessage(text="go")])
        assert usage.uncommitted == []
        cut = ScriptedProvider([TextDelta(text="half"), ProviderFailed("cut")])
        with pytest.raises(ProviderFailed):
            await told(metered(cut, usage), [UserMessage(text="go")])
        (spend,) = usage.uncommitted
    assert spend.input_tokens > 0


async def test_a_charge_names_the_model_that_answered_and_what_it_cost(tmp_path: Path) -> None:
    used = TokenUsage(input_tokens=1_000, output_tokens=100, cache_read_tokens=400, model="other/fallback")
    async with turn_usage(tmp_path) as (usage, _):
        usage.charge(used, model="house/model")
        (spend,) = usage.uncommitted
        assert (spend.model, spend.day, spend.person) == ("other/fallback", "2026-03-01", "ann")
        assert spend.cost_micros == 600 + 40 + 1_000
        entry = usage.entry()
        assert entry is not None
        assert entry.cost_micros == spend.cost_micros
        usage.mark_committed([spend])
        assert not usage.uncommitted
        assert usage.entry() is None


async def test_each_request_is_counted_by_its_outcome(tmp_path: Path) -> None:
    metrics = Metrics()
    async with turn_usage(tmp_path) as (usage, _):
        await told(metered(Counting(), usage, metrics=metrics), [UserMessage(text="hi")])
        with pytest.raises(ContextTooLong):
            await told(metered(Counting(limit=0), usage, metrics=metrics), [UserMessage(text="hi")])
        async with aclosing(
            metered(Counting(), usage, metrics=metrics).stream(Prompt(system="", messages=()))
        ) as chunks:
            await anext(chunks)
    name = INFO.name
    assert metrics.requests == {(name, "answered"): 1, (name, "failed"): 2, (name, "stopped"): 1}
    assert (metrics.answers[(name,)].count, metrics.first_words[(name,)].count) == (4, 2)


async def test_a_limit_of_zero_means_no_limit(tmp_path: Path) -> None:
    async with turn_usage(tmp_path, tokens_per_user_per_day=0, tokens_per_turn=0) as (usage, _):
        usage.charge(TokenUsage(input_tokens=10**9, output_tokens=0), model="m")
        await usage.check_limits()


async def test_the_daily_limit_resets_at_midnight_utc(tmp_path: Path) -> None:
    today = [NOW]
    async with await Spool.open(tmp_path) as spool:
        daily = DailyUsage(spool, lambda: today[0])
        limits = AskerRoles(()).limits(LimitSettings(tokens_per_user_per_day=100, tokens_per_turn=0))
        usage = TurnUsage("ann", daily=daily, limits=lambda: limits, about=lambda _model: INFO, now=lambda: today[0])
        await usage.check_limits()
        usage.charge(TokenUsage(input_tokens=100, output_tokens=0), model="m")
        with pytest.raises(Refused, match=r"today's limit \(100 of 100 tokens\)"):
            await usage.check_limits()
        today[0] = datetime(2026, 3, 2, tzinfo=UTC)
        await usage.check_limits()


async def test_the_spool_is_read_once_a_day_and_not_for_each_person(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(
            AddUsage(
                day=utc_day(NOW),
                person="ann",
                model="m",
                input_tokens=7,
                cached_tokens=0,
                output_tokens=0,
                cost_micros=0,
            )
        )
        daily = DailyUsage(spool, lambda: NOW)
        assert (await daily.today("bob")).tokens == 0
        before = spool.transactions
        assert [(await daily.today(name)).tokens for name in ("ann", "bob", "cyd")] == [7, 0, 0]
        assert spool.transactions == before


async def test_daily_usage_is_read_even_while_the_disk_is_full(tmp_path: Path) -> None:
    """What is read fails with what is written in the same transaction; a turn must not fail with it."""

    def find_no_room(_: Connection) -> None:
        no_room = sqlite3.OperationalError("database or disk is full")
        no_room.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise no_room

    async def write() -> None:
        with suppress(SpoolUnavailable):
            await spool._writer.run(find_no_room)  # noqa: SLF001 - no disk is full at just that moment

    async with await Spool.open(tmp_path) as spool, asyncio.TaskGroup() as tasks:
        used = tasks.create_task(DailyUsage(spool, lambda: NOW).today("ann"), name="used")
        tasks.create_task(write(), name="write")
        assert (await used).tokens == 0
