from datetime import timedelta

import pytest

from gateway.spool import AddUsage, Duplicate, Spool, UsageTotal
from gateway.spool.retention import USAGE_KEPT
from tests.spool.conftest import Crash
from tests.spool.samples import NOW, take

TODAY = NOW.date().isoformat()


def spend(person: str = "web:ann", model: str = "m", day: str = TODAY, agent: str = "main") -> AddUsage:
    return AddUsage(
        day=day,
        person=person,
        model=model,
        agent=agent,
        input_tokens=100,
        cached_tokens=60,
        output_tokens=7,
        cost_micros=5,
    )


async def test_usage_adds_up_and_survives_a_crash(spool: Spool, crash: Crash) -> None:
    await spool.commit(spend(), spend(model="other"))
    await spool.commit(spend(), spend(person="web:bob"))
    again = await crash()
    assert await again.usage(TODAY, "web:ann") == UsageTotal(
        input_tokens=300, cached_tokens=180, output_tokens=21, cost_micros=15
    )
    assert (await again.usage(TODAY)).tokens == 428
    assert [(person, spent.tokens) for person, spent in await again.top_usage(TODAY, limit=5)] == [
        ("web:ann", 321),
        ("web:bob", 107),
    ]


async def test_usage_of_several_days_is_listed_by_person_and_model(spool: Spool) -> None:
    await spool.commit(spend(), spend(), spend(model="other", day="2026-02-27"), spend(person="web:bob"))
    await spool.commit(spend(day="2026-02-01"))
    found = await spool.usage_between("2026-02-20", TODAY, limit=10)
    assert [(each.day, each.person, each.model, each.total.tokens) for each in found] == [
        (TODAY, "web:ann", "m", 214),
        (TODAY, "web:bob", "m", 107),
        ("2026-02-27", "web:ann", "other", 107),
    ]
    assert [each.day for each in await spool.usage_between("2026-01-01", TODAY, "web:ann", limit=2)] == [
        TODAY,
        "2026-02-27",
    ]


async def test_usage_is_listed_by_agent(spool: Spool) -> None:
    """Usage without an agent was charged by an earlier version."""
    await spool.commit(spend(), spend(agent="coder"), spend(agent="coder"), spend(agent=""), spend(day="2026-02-27"))
    await spool.commit(spend(person="web:bob", agent=""))
    found = await spool.usage_between(TODAY, TODAY, limit=10)
    assert [(each.person, each.agent, each.total.tokens, each.total.cost_micros) for each in found] == [
        ("web:ann", "", 107, 5),
        ("web:ann", "coder", 214, 10),
        ("web:ann", "main", 107, 5),
        ("web:bob", "", 107, 5),
    ]
    assert (await spool.usage(TODAY, "web:ann")).tokens == 428
    (of_bob,) = await spool.usage_between(TODAY, TODAY, "web:bob", limit=10)
    assert of_bob.total.cached_tokens == 60


async def test_usage_is_zero_without_rows(spool: Spool) -> None:
    assert await spool.usage(TODAY, "web:ann") == UsageTotal()
    assert await spool.top_usage(TODAY, limit=5) == []


async def test_usage_is_refused_with_the_rest_of_its_commit(spool: Spool) -> None:
    await spool.commit(take("e1"))
    with pytest.raises(Duplicate):
        await spool.commit(spend(), take("e1"))
    assert await spool.usage(TODAY) == UsageTotal()


async def test_old_days_of_usage_are_deleted(spool: Spool) -> None:
    old = (NOW - USAGE_KEPT - timedelta(days=1)).date().isoformat()
    await spool.commit(spend(), *(spend(f"web:{number}", day=old) for number in range(1_200)))
    await spool.delete_old_rows(NOW)
    assert await spool.usage(old) == UsageTotal()
    assert [each.day for each in await spool.usage_between(old, TODAY, limit=10)] == [TODAY]
    assert (await spool.usage(TODAY)).tokens == 107
