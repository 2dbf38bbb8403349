"""Dead letters in the API for administration."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gateway.contract import Sender, TokenScope
from gateway.spool import InboxState, MarkDead, SetInboxState
from tests.admin_api.harness import administered
from tests.admin_api.test_overview import loopback
from tests.api.harness import Api
from tests.daemon.harness import ADA, OWNER, accepted, ask
from tests.spool.samples import send


async def sets_aside(owner: Api, turn: str = "t1", text: str = "<b>hello</b>") -> None:
    await ask(loopback(owner.daemon), "first", sender=OWNER)
    dead = SetInboxState(turn=turn, state=InboxState.DEAD, note="It crashed.")
    await owner.daemon.spool.commit(accepted(turn, text), dead)


async def gives_up(owner: Api, key: str = "k1") -> None:
    await owner.daemon.spool.commit(
        send(key, "a reply", datetime.now(UTC)), MarkDead(key=key, reason="The chat is gone.")
    )


async def test_a_message_that_was_set_aside_is_answered_after_a_retry(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await sets_aside(owner)
        _, found = await owner.call("GET", "/api/dead-letters")
        (letter,) = found["messages"]
        assert (letter["id"], letter["text"], letter["reason"]) == ("t1", "<b>hello</b>", "It crashed.")
        status, found = await owner.call("POST", "/api/dead-letters/retry", {"messages": ["t1", "unknown"]})
        assert (status, found["messages"]) == (200, ["t1"])
        answer = await loopback(owner.daemon).hear_message()
        assert answer.address == ADA
        _, found = await owner.call("GET", "/api/dead-letters")
        assert found["messages"] == []
        _, found = await owner.call("POST", "/api/dead-letters/retry", {"messages": ["t1"]})
        assert found["messages"] == []


async def test_a_reply_is_sent_again(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await gives_up(owner)
        _, found = await owner.call("GET", "/api/dead-letters")
        assert [(each["id"], each["state"]) for each in found["replies"]] == [("k1", "dead")]
        status, found = await owner.call("POST", "/api/dead-letters/retry", {"replies": ["k1"]})
        assert (status, found["replies"]) == (200, ["k1"])
        assert (await loopback(owner.daemon).hear_message()).text == "a reply"


async def test_dropped_letters_are_gone(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await sets_aside(owner)
        await gives_up(owner)
        admin = await owner.token_for(TokenScope.ADMIN)
        status, found = await admin.call("POST", "/api/dead-letters/drop", {"messages": ["t1"], "replies": ["k1"]})
        assert (status, found) == (200, {"messages": ["t1"], "replies": ["k1"]})
        _, found = await admin.call("GET", "/api/dead-letters")
        assert (found["messages"], found["replies"]) == ([], [])
        status, found = await admin.call("POST", "/api/dead-letters/drop", {})
        assert (status, found) == (200, {"messages": [], "replies": []})


async def test_a_message_of_a_person_without_access_is_not_retried(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await sets_aside(owner)
        dead = SetInboxState(turn="t2", state=InboxState.DEAD, note="It crashed.")
        stranger = accepted("t2", "hi", peer="stranger")
        inbound = replace(stranger.inbound, sender=Sender(id="stranger"))
        await owner.daemon.spool.commit(replace(stranger, inbound=inbound), dead)
        status, found = await owner.call("POST", "/api/dead-letters/retry", {"messages": ["t2"]})
        assert (status, "lost access" in found["detail"]) == (422, True)
        _, found = await owner.call("GET", "/api/dead-letters")
        assert "t2" in [each["id"] for each in found["messages"]]
