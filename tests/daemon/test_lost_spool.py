"""A spool that was deleted, emptied or damaged while no daemon was running."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import GatewaySettings, Settings
from gateway.inbound.lost_spool import RESEND
from gateway.sessions import entries
from gateway.spool import Spool
from tests.daemon.harness import Slow, ask, gateway, settings
from tests.observability.scrape import scrape


def owned(folder: Path) -> Settings:
    """Return settings in which bob is an owner."""
    daemon = GatewaySettings.model_validate(
        {"data_dir": folder / "data", "shutdown_timeout": 0.01, "owners": ["loopback:bob"]}
    )
    return settings(folder, gateway=daemon)


async def leave_a_turn(folder: Path) -> None:
    """Stop a gateway while ada's second message is being answered. Bob's is answered."""
    async with gateway(owned(folder)) as (daemon, chat):
        for peer in ("bob", "ada"):
            await chat.say("hello", peer=peer)
            await chat.hear_message()
        model = Slow()
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))
        await chat.say("what is my name?", peer="ada")
        await model.is_asked.wait()
        daemon.stop()
        daemon.stop()


def files(data: Path) -> list[Path]:
    return [data / f"spool.db{ending}" for ending in ("", "-wal", "-shm")]


def delete(data: Path) -> None:
    for file in files(data):
        file.unlink(missing_ok=True)


def empty(data: Path) -> None:
    delete(data)
    (data / "spool.db").touch()


def damage(data: Path) -> None:
    (data / "spool.db").write_bytes(b"not a database" * 1000)


@pytest.mark.parametrize(("lose", "word"), [(delete, "missing"), (empty, "empty"), (damage, "damaged")])
async def test_a_lost_spool_is_reported_once_and_the_unfinished_message_is_asked_for_again(
    tmp_path: Path, lose: Callable[[Path], None], word: str
) -> None:
    await leave_a_turn(tmp_path)
    lose(tmp_path / "data")
    with capture_logs() as logs:
        async with gateway(owned(tmp_path)) as (daemon, chat):
            notices = [await chat.hear_message() for _ in range(2)]
            by_peer = {notice.address.peer: notice for notice in notices}
            assert by_peer["ada"].text == RESEND
            assert by_peer["ada"].is_failure
            assert f"The spool was {word}" in by_peer["bob"].text
            assert "I told 1 chat" in by_peer["bob"].text
            health, seen = daemon.status.health(), await scrape(tmp_path / "data")
    assert [line["log_level"] for line in logs if line["event"] in {"spool_replaced", "spool_was_lost"}] == [
        "error"
    ] * 2
    assert any(f"The spool was {word}" in warning for warning in health.warnings)
    assert health.ready
    assert seen.value("gatehouse_spool_lost") == 1
    async with gateway(owned(tmp_path)) as (daemon, chat):
        await chat.say("/whoami", peer="ada")
        assert RESEND not in (await chat.hear_message()).text
        assert daemon.spool.loss is None


async def test_a_command_that_creates_the_spool_first_hides_nothing(tmp_path: Path) -> None:
    await leave_a_turn(tmp_path)
    delete(tmp_path / "data")
    async with await Spool.open(tmp_path / "data"):
        pass
    async with gateway(owned(tmp_path)) as (_, chat):
        texts = [(await chat.hear_message()).text for _ in range(2)]
    assert any(RESEND in text for text in texts)


async def test_the_first_start_loses_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with gateway(owned(tmp_path)) as (daemon, chat):
            await ask(chat, "hello")
            assert daemon.spool.loss is None
    assert not [line for line in logs if line["event"] in {"spool_replaced", "spool_was_lost"}]


async def test_the_transcript_shows_the_end_of_the_lost_turn(tmp_path: Path) -> None:
    await leave_a_turn(tmp_path)
    delete(tmp_path / "data")
    async with gateway(owned(tmp_path)) as (daemon, chat):
        for _ in range(2):
            await chat.hear_message()
        (meta,) = (each for scope in daemon.sessions.scopes() for each in daemon.sessions.list(scope) if "ada" in scope)
        session = await daemon.sessions.load(meta.key)
    failure, end = session.entries[-2:]
    assert isinstance(failure, entries.System)
    assert isinstance(end, entries.TurnEnd)
    assert failure.turn == end.turn
