"""What waits for a decision: open questions of agents and people who ask for access. And what was decided before."""

from datetime import UTC
from http import HTTPStatus

from config import OWNER_ROLE
from gateway.access.guests import Guest
from gateway.access.pairing import Pairing
from gateway.access.roles import check_changeable, current_role
from gateway.access.rules import Live
from gateway.admin_api import types as t
from gateway.admin_api.nodes import OtherNodes
from gateway.api.operation import ApiCall
from gateway.contract import Caller
from gateway.http.responses import HttpError
from gateway.sessions import SessionManager
from gateway.spool import Spool
from gateway.turns.approvals import Approvals
from gateway.turns.grants import Grant, GrantBook
from gateway.turns.question import Question

LOCAL = "/api/approvals?local=true"


class Decisions:
    """Handles the routes of approvals, grants and people."""

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        approvals: Approvals,
        grants: GrantBook,
        pairing: Pairing,
        spool: Spool,
        nodes: OtherNodes,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._approvals = approvals
        self._grants = grants
        self._pairing = pairing
        self._spool = spool
        self._nodes = nodes

    async def approvals(self, call: ApiCall) -> t.OpenApprovals:
        """Return the open questions, in a cluster those of all nodes."""
        own = [
            self._approval(question, session.id, session.title)
            for question in self._approvals.open_questions.values()
            if (session := self._sessions.find(question.session)) is not None
        ]
        is_local = call.query_as(t.LocalQuery).local
        others = {} if is_local else await self._nodes.ask(call.caller, LOCAL, t.OpenApprovals)
        return t.OpenApprovals(approvals=[*own, *(each for found in others.values() for each in found.approvals)])

    def _approval(self, question: Question, session_id: str, title: str) -> t.OpenApproval:
        return t.OpenApproval(
            approval_id=question.id,
            session_id=session_id,
            title=title,
            channel=question.message.address.channel,
            chat=question.message.address.peer,
            agent=question.asked.agent,
            asker=str(question.person),
            asker_name=question.asker.name,
            tool=question.call.name,
            call_title=question.call.title,
            args=question.call.input,
            files=sorted(question.asked.files or ()),
            workspace=question.asked.workspace,
        )

    async def grants(self, call: ApiCall) -> t.GrantList:
        del call
        return t.GrantList(grants=[_grant(each) for each in self._grants])

    async def revoke_grant(self, call: ApiCall) -> t.GrantInfo:
        name = call.path("id")
        found = next((grant for grant in self._grants if grant.id == name), None)
        if found is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "Nothing is allowed under this id. GET /api/grants lists what is.")
        # It is not used from now on, even if the commit fails.
        await self._spool.commit(*self._grants.remove([found]))
        return _grant(found)

    async def people(self, call: ApiCall) -> t.PeopleList:
        del call
        book = self._pairing.guest_book
        return t.PeopleList(
            waiting=[
                t.ApplicantInfo(
                    code=each.code, id=str(each.person), name=each.name, asked_at=each.asked_at.astimezone(UTC)
                )
                for each in self._pairing.waiting()
            ],
            guests=[self._guest(each) for each in book.guests.values()],
            revoked=[
                t.RevokedInfo(id=str(each.person), name=each.name, at=each.at.astimezone(UTC))
                for each in book.revoked.values()
            ],
        )

    async def approve_person(self, call: ApiCall) -> t.GuestInfo:
        body = call.body_as(t.ApprovePersonBody)
        if body.role is not None:
            self._check_role(call.caller, body.role)
        applicant = await self._pairing.find_applicant(body.code)
        return self._guest(await self._pairing.approve(applicant, role=body.role or ""))

    async def deny_person(self, call: ApiCall) -> t.ApplicantInfo:
        denied = await self._pairing.deny(await self._pairing.find_applicant(call.body_as(t.DenyPersonBody).code))
        return t.ApplicantInfo(
            code=denied.code, id=str(denied.person), name=denied.name, asked_at=denied.asked_at.astimezone(UTC)
        )

    async def revoke_person(self, call: ApiCall) -> t.GuestInfo:
        guest = self._pairing.find_guest(call.body_as(t.RevokePersonBody).id)
        _require_owner(call.caller, current_role(self._live, guest))
        revoked = self._guest(guest)
        await self._pairing.revoke(guest)
        return revoked

    async def change_role(self, call: ApiCall) -> t.GuestInfo:
        body = call.body_as(t.ChangeRoleBody)
        guest = self._pairing.find_guest(body.id)
        _require_owner(call.caller, current_role(self._live, guest))
        self._check_role(call.caller, body.role)
        check_changeable(self._live, guest)
        return self._guest(await self._pairing.set_role(guest, body.role))

    def _guest(self, guest: Guest) -> t.GuestInfo:
        role = current_role(self._live, guest)
        return t.GuestInfo(id=str(guest.person), name=guest.name, role=role, since=guest.since.astimezone(UTC))

    def _check_role(self, caller: Caller, role: str) -> None:
        self._live.roles.check_exists(role)
        _require_owner(caller, role)


def _require_owner(caller: Caller, role: str) -> None:
    """Let only owners make owners, or take their access away."""
    if role == OWNER_ROLE and not caller.is_owner:
        raise HttpError(
            HTTPStatus.FORBIDDEN,
            "Only an owner can make owners, or change what they may do. Sign in as the owner, or use `gatehouse pair`.",
        )


def _grant(grant: Grant) -> t.GrantInfo:
    return t.GrantInfo(
        id=grant.id,
        tool=grant.tool,
        description=str(grant),
        agent=grant.agent,
        workspace=grant.workspace,
        session_key=grant.session,
        person=str(grant.person),
        by=str(grant.by),
        at=grant.at.astimezone(UTC),
    )
