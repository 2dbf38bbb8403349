"""Commands about tool calls that need approval, and about those that were allowed for good."""

import builtins
import re
from collections.abc import Sequence

from gateway.commands.command import Answer, Call, Handlers
from gateway.contract import Button, Outbound, PeerKind
from gateway.errors import Refused
from gateway.outbound.long_replies import LongReplies
from gateway.spool import Operation
from gateway.text.plain import in_bytes
from gateway.turns.approvals import Approvals
from gateway.turns.grants import Grant, GrantBook, parse_patterns, save
from gateway.turns.question import Decision, Question, full_text

_APPROVAL = re.compile(r"(?P<id>[0-9a-f]{12})?\s*(?:(?P<span>session|always)\b)?\s*(?P<patterns>.*)", re.DOTALL)
_MAX_BUTTONS = 5
_FILE_NAME = "call.txt"


class ApprovalCommands:
    def __init__(self, approvals: Approvals, grants: GrantBook, long_replies: LongReplies) -> None:
        self._approvals = approvals
        self._grants = grants
        self._long_replies = long_replies

    def handlers(self) -> Handlers:
        return {
            "approve": self.approve,
            "deny": self.deny,
            "approvals": self.list,
            "approvals show": self.show,
            "approvals revoke": self.revoke,
        }

    async def approve(self, call: Call) -> Answer:
        parsed = _APPROVAL.fullmatch(call.argument)
        assert parsed is not None, "the pattern matches every text"  # noqa: S101 - for mypy and the reader.
        if not parsed["span"]:
            return self._decide(call, Decision.APPROVED, "Approved: {tool} will run.")
        question = self._find(call, parsed["id"] or "")
        grant = self._grants.make(
            question,
            call.inbound,
            for_session=parsed["span"] == "session",
            patterns=parse_patterns(parsed["patterns"], question.call),
        )

        async def commit(operations: Sequence[Operation]) -> None:
            also = [*operations, save(grant)]
            await self._approvals.settle(question, Decision.APPROVED, by=call.inbound.sender.id, also=also)
            self._grants.add(grant)

        who = question.asker.name or question.asker.id
        span = "in this session" if grant.session else f"when {who} asks"
        unless = ", unless a file that it names changes" if grant.files else ""
        return Answer(
            text=f"Approved: {question.call.name} will run. From now on I won't ask {span} about {grant}{unless}. "
            f"To change that, send /approvals revoke {grant.id}.",
            commit=commit,
        )

    async def deny(self, call: Call) -> Answer:
        return self._decide(call, Decision.DENIED, "Denied: {tool} won't run.")

    async def show(self, call: Call) -> Answer:
        question = self._find(call, call.argument)
        text = full_text(question.call)
        notice = Outbound(address=call.inbound.address, text=text)
        key = f"{question.turn}-ask-{question.id}"
        file = await self._long_replies.notice_as_file(notice, session=question.session, key=key, name=_FILE_NAME)
        if file is None:
            return Answer(text=text)
        hint = f"This call is too long for a chat ({in_bytes(file.size)}). The file {file.name} has all of it."
        return Answer(text=hint, files=(file,))

    async def list(self, call: Call) -> Answer:
        questions = list(self._approvals.in_chat(call.routed.scope, call.inbound.address))
        lines = [f"Waiting: may I use {each.call.name}? /approvals show {each.id}" for each in questions]
        grants = self._visible(call)
        if grants:
            lines.append("Allowed without asking:")
        for grant in grants:
            where = "in a session here" if grant.session else f"for {grant.person}"
            lines.append(f"{grant.id}  {grant} ({where})")
        if grants:
            lines.append("/approvals revoke <id> revokes one, /approvals revoke all revokes all of them.")
        return Answer(
            text="\n".join(lines) or "No questions are open, and nothing is allowed without asking.",
            buttons=tuple(
                Button(label=f"Revoke {grant.id}", command=f"/approvals revoke {grant.id}")
                for grant in grants[:_MAX_BUTTONS]
            ),
        )

    async def revoke(self, call: Call) -> Answer:
        name = call.argument.strip().lower()
        grants = [grant for grant in self._visible(call) if name in {"all", grant.id}]
        if not grants:
            raise Refused("Which one? /approvals lists them with their ids." if name != "all" else "There are none.")
        # They are not used from now on, even if the commit fails.
        deleted = self._grants.remove(grants)
        what = str(grants[0]) if len(grants) == 1 else f"{len(grants)} of them"
        return Answer(text=f"Revoked: {what}. I'll ask again.", operations=tuple(deleted))

    def _visible(self, call: Call) -> builtins.list[Grant]:
        sees_all = call.is_owner and call.inbound.address.kind is PeerKind.DIRECT
        return self._grants.visible_to(call.inbound, call.routed.scope, sees_all=sees_all)

    def _find(self, call: Call, name: str) -> Question:
        question = self._approvals.find(call.routed.scope, call.inbound.address, name, call.session)
        if not self._approvals.may_answer(question, call.inbound, is_owner=call.is_owner):
            raise Refused("Only the person who wrote that message, or an owner, may answer this.")
        return question

    def _decide(self, call: Call, decision: Decision, text: str) -> Answer:
        question = self._find(call, call.argument)
        return Answer(
            text=text.format(tool=question.call.name),
            commit=lambda operations: self._approvals.settle(
                question, decision, by=call.inbound.sender.id, also=operations
            ),
        )
