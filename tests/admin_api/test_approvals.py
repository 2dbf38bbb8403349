"""Open questions, grants and people in the API for administration."""

from datetime import UTC, datetime
from pathlib import Path

from gateway.access.guests import Applicant, Person, save_fact
from gateway.contract import TokenScope
from gateway.daemon import Daemon
from gateway.turns.grants import Grant
from tests.admin_api.harness import CONFIG, administered
from tests.admin_api.test_overview import loopback
from tests.api.harness import Api
from tests.daemon.harness import OWNER
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.polling import until

EVE = Person(channel="loopback", account="default", sender="eve")


async def test_a_question_is_listed_with_all_arguments_and_answered(tmp_path: Path) -> None:
    rocket, target = Rocket(), "<b>pad</b> " * 1000
    async with administered(tmp_path, before=agent(scripted([launch(target)]), rocket)) as owner:
        await loopback(owner.daemon).say("launch it", sender=OWNER, peer="ada")
        await until(lambda: owner.daemon.approvals.open_questions)
        _, found = await owner.call("GET", "/api/approvals")
        (asked,) = found["approvals"]
        assert (asked["tool"], asked["args"], asked["asker"]) == ("launch", {"target": target}, "loopback:ada")
        admin = await owner.token_for(TokenScope.ADMIN)
        path = f"/api/sessions/{asked['sessionId']}/approvals/{asked['approvalId']}"
        status, _ = await admin.call("POST", path, {"decision": "approve"})
        assert status == 200
        await until(lambda: rocket.launched)
        _, found = await owner.call("GET", "/api/approvals")
        assert found["approvals"] == []


async def test_a_grant_is_listed_and_revoked(tmp_path: Path) -> None:
    def before(daemon: Daemon) -> None:
        daemon.grants.add(
            Grant(
                id="ab12",
                tool="launch",
                arguments={"target": "pad 7"},
                patterns={},
                agent="main",
                workspace="/",
                scope="agent:main:loopback:direct:eve",
                person=EVE,
                by=EVE,
                at=datetime.now(UTC),
            )
        )

    async with administered(tmp_path) as owner:
        before(owner.daemon)
        _, found = await owner.call("GET", "/api/grants")
        assert [(each["id"], each["tool"], each["person"]) for each in found["grants"]] == [
            ("ab12", "launch", "loopback:eve")
        ]
        status, _ = await owner.call("DELETE", "/api/grants/ab12")
        assert (status, list(owner.daemon.grants)) == (200, [])
        status, found = await owner.call("DELETE", "/api/grants/ab12")
        assert (status, "GET /api/grants" in found["detail"]) == (404, True)


async def applies(owner: Api, code: str = "ABCD-EFGH", person: Person = EVE) -> None:
    """Let a person wait for access."""
    applicant = Applicant(person=person, name="<i>Eve</i>", peer="eve", code=code, asked_at=datetime.now(UTC))
    await owner.daemon.spool.commit(save_fact(applicant))
    owner.daemon.live.guest_book.applicants[person] = applicant


async def test_a_person_is_approved_gets_a_role_and_is_revoked(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await applies(owner)
        _, found = await owner.call("GET", "/api/people")
        assert [(each["code"], each["id"], each["name"]) for each in found["waiting"]] == [
            ("ABCD-EFGH", "loopback:eve", "<i>Eve</i>")
        ]
        status, found = await owner.call("POST", "/api/people/approve", {"code": "ABCD-EFGH", "role": "nobody"})
        assert (status, "There is no role" in found["detail"]) == (409, True)
        status, found = await owner.call("POST", "/api/people/approve", {"code": "ABCD-EFGH"})
        assert (status, found["id"], found["role"]) == (200, "loopback:eve", "member")
        status, found = await owner.call("POST", "/api/people/role", {"id": "loopback:eve", "role": "guest"})
        assert (status, found["role"]) == (200, "guest")
        status, found = await owner.call("POST", "/api/people/revoke", {"id": "loopback:eve"})
        _, found = await owner.call("GET", "/api/people")
        assert (found["waiting"], found["guests"]) == ([], [])
        assert [each["id"] for each in found["revoked"]] == ["loopback:eve"]
        status, found = await owner.call("POST", "/api/people/revoke", {"id": "loopback:eve"})
        assert status == 409


async def test_the_role_of_the_settings_is_shown_and_stays(tmp_path: Path) -> None:
    async with administered(tmp_path, f'{CONFIG}\n[roles.team]\n[roles.kids]\npeople = ["loopback:eve"]\n') as owner:
        await applies(owner)
        status, found = await owner.call("POST", "/api/people/approve", {"code": "ABCD-EFGH", "role": "team"})
        assert (status, found["role"]) == (200, "kids")
        status, found = await owner.call("POST", "/api/people/role", {"id": "loopback:eve", "role": "team"})
        assert (status, found["detail"]) == (
            409,
            "The configuration gives <i>Eve</i> the role kids. Change it there.",
        )
        _, found = await owner.call("GET", "/api/people")
        assert [each["role"] for each in found["guests"]] == ["kids"]


async def test_a_person_is_denied(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await applies(owner)
        status, found = await owner.call("POST", "/api/people/deny", {"code": "abcdefgh"})
        assert (status, found["id"]) == (200, "loopback:eve")
        _, found = await owner.call("GET", "/api/people")
        assert found["waiting"] == []


async def test_a_token_makes_no_owner_and_revokes_none(tmp_path: Path) -> None:
    """Otherwise, `admin` would give more rights than it has."""
    async with administered(tmp_path) as owner:
        admin = await owner.token_for(TokenScope.ADMIN)
        await applies(owner)
        status, found = await admin.call("POST", "/api/people/approve", {"code": "ABCD-EFGH", "role": "owner"})
        assert (status, "Only an owner" in found["detail"]) == (403, True)
        status, _ = await admin.call("POST", "/api/people/approve", {"code": "ABCD-EFGH"})
        assert status == 200
        status, _ = await admin.call("POST", "/api/people/role", {"id": "loopback:eve", "role": "owner"})
        assert status == 403
        status, found = await owner.call("POST", "/api/people/role", {"id": "loopback:eve", "role": "owner"})
        assert (status, found["role"]) == (200, "owner")
        for path, body in (("revoke", {}), ("role", {"role": "guest"})):
            status, _ = await admin.call("POST", f"/api/people/{path}", {"id": "loopback:eve", **body})
            assert status == 403
