"""Titles, status, clear and undo are entries, so they destroy nothing."""

from pathlib import Path

from gateway.sessions import SessionManager, SessionStatus, TurnOutcome
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, OpenManager, undo


async def talk(manager: SessionManager, turns: int) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    for turn in (f"t{number}" for number in range(1, turns + 1)):
        said = [e.User(content=f"question {turn}", turn=turn), e.Assistant(content=f"answer {turn}", turn=turn)]
        await manager.append(SCOPE, [*said, e.TurnEnd(outcome=TurnOutcome.ANSWERED, turn=turn)])


async def lines(manager: SessionManager) -> list[str]:
    return [line.text for line in await manager.lines(SCOPE, 50)]


async def test_title_status_and_workspace_survive_a_restart(manager: SessionManager, open_manager: OpenManager) -> None:
    await talk(manager, 1)
    await manager.set_title(SCOPE, "Trip to Lisbon")
    await manager.set_workspace(SCOPE, "trip")
    meta = await manager.set_status(SCOPE, SessionStatus.CANCELLED, by="ann", why="rain")
    assert (meta.title, meta.workspace, meta.status) == ("Trip to Lisbon", "trip", SessionStatus.CANCELLED)
    assert (await open_manager()).list(SCOPE) == [meta]


async def test_clearing_hides_messages_but_destroys_nothing(manager: SessionManager, directory: Path) -> None:
    await talk(manager, 2)
    before = (directory / "transcripts" / file_name(SCOPE)).read_bytes()
    assert (await manager.clear(SCOPE)).messages == 0
    assert await lines(manager) == []
    assert await manager.history(SCOPE) == []
    assert (directory / "transcripts" / file_name(SCOPE)).read_bytes().startswith(before)


async def test_turns_are_undone_one_after_the_other(manager: SessionManager, open_manager: OpenManager) -> None:
    await talk(manager, 2)
    assert await undo(manager, SCOPE) == "t2"
    assert await lines(manager) == ["question t1", "answer t1"]
    assert await undo(manager, SCOPE) == "t1"
    assert await undo(manager, SCOPE) is None
    again = await open_manager()
    assert await lines(again) == []
    assert again.list(SCOPE)[0].turns == 0
