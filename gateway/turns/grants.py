"""Grants: tool calls that a person has allowed for good, for a session or for themselves. Stored as facts."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any

import msgspec
import structlog

from config import ApprovalRight
from config.types import PROGRAM_CHANNELS
from gateway.access.guests import Person
from gateway.access.roles import own_role, role_in
from gateway.access.rules import Live, are_same_person
from gateway.contract import Inbound
from gateway.conversation import Json, ToolCall
from gateway.errors import Refused
from gateway.spool import SetFact, grants_of_session
from gateway.turns.question import Question, shown_value

log = structlog.get_logger()

MAX_GRANTS = 100
"""For each person who allows calls."""
ANY = "*"
_SAFE = re.compile(r"[\w ./:=@%+,-]*", re.ASCII)
"""What a `*` inside a pattern stands for: nothing that a shell treats specially, and no line break."""
_QUOTES = re.compile(r"""['"\\]""")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Allows calls of one tool, by one agent and in one workspace. It is for `session`, or else for `person`."""

    id: str
    tool: str
    arguments: dict[str, Any]  # Any: msgspec knows no recursive types, and these come from JSON.
    """The arguments that have to be equal."""
    patterns: dict[str, str]
    """The arguments that have to match a pattern."""
    agent: str
    workspace: str
    scope: str
    session: str = ""
    person: Person
    """The person whose message led to the call."""
    by: Person
    """The person who allowed it: the same, or an owner."""
    at: datetime
    files: dict[str, str] | None = None
    """The digests of the files that the call named. With patterns: only of those that the other text names."""

    @property
    def fact(self) -> str:
        return f"{grants_of_session(self.session)}{self.id}"

    def covers(self, call: ToolCall) -> bool:
        """Return whether the tool and all arguments of `call` are allowed. An argument more or less is not."""
        if call.name != self.tool or call.input.keys() != self.arguments.keys() | self.patterns.keys():
            return False
        # Compared as JSON, where `true` is not 1.
        is_equal = all(_as_json(call.input[name]) == _as_json(value) for name, value in self.arguments.items())
        return is_equal and all(_matches(pattern, call.input[name]) for name, pattern in self.patterns.items())

    def accepts_files(self, files: Mapping[str, str]) -> bool:
        """Return whether the files that a call names are as they were. Patterns may name further files."""
        if self.files is None:  # An older version made the grant.
            return True
        return self.files.items() <= files.items() if self.patterns else self.files == files

    def __str__(self) -> str:
        parts = [f"{name}: {shown_value(value)}" for name, value in self.arguments.items()]
        parts += [f"{name}: {'anything' if text == ANY else shown_value(text)}" for name, text in self.patterns.items()]
        return f"{self.tool} with {', '.join(parts)}" if parts else f"{self.tool} without arguments"


class GrantBook:
    """All grants, in memory. The caller commits the operations that it returns."""

    def __init__(self, live: Live, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._now = now
        self._grants: dict[str, Grant] = {}

    def __iter__(self) -> Iterator[Grant]:
        """Iterate over all grants, the oldest first. They may change meanwhile."""
        return iter(list(self._grants.values()))

    def read(self, facts: Mapping[str, str]) -> None:
        """Load the facts of the spool. A grant of a person who has lost access since then is dropped."""
        self._grants = {}
        for name, value in facts.items():
            try:
                grant = msgspec.json.decode(value, type=Grant)
            except msgspec.DecodeError:  # Written by a newer version. Without the grant, the person is asked.
                log.warning("grant_unreadable", name=name)
                continue
            if not {grant.person, grant.by} & self._live.guest_book.revoked.keys():
                self._grants[grant.id] = grant

    def make(self, question: Question, by: Inbound, *, for_session: bool, patterns: Mapping[str, str]) -> Grant:
        """Return a new grant for the call of `question`, to be stored with `save` and `add`. Raises `Refused`."""
        if not question.asked.may_always:
            raise Refused("The owner doesn't let this tool be allowed for good. /approve approves this call only.")
        granter = Person.of(by.address, by.sender)
        if sum(grant.by == granter for grant in self._grants.values()) >= MAX_GRANTS:
            raise Refused(f"You have {MAX_GRANTS} of these already. /approvals lists them; revoke some first.")
        given = question.call.input
        if given and all(patterns.get(name) == ANY for name in given):
            raise Refused(f"That would allow every call of {question.call.name}. Leave at least one argument as it is.")
        for name, pattern in patterns.items():
            if not _matches(pattern, given[name]):
                raise Refused(f"The pattern for {name} doesn't match this call, so nothing was approved.")
        return Grant(
            id=token_hex(4),
            tool=question.call.name,
            arguments={name: value for name, value in given.items() if name not in patterns},
            patterns=dict(patterns),
            agent=question.asked.agent,
            workspace=question.asked.workspace,
            scope=question.scope,
            session=question.session if for_session else "",
            person=question.person,
            by=granter,
            at=self._now(),
            files=_fixed_files(question, patterns) if patterns else question.asked.files,
        )

    def add(self, grant: Grant) -> None:
        self._grants[grant.id] = grant

    def find(
        self,
        call: ToolCall,
        *,
        agent: str,
        workspace: str,
        session: str,
        senders: Sequence[Inbound],
        files: Mapping[str, str],
    ) -> Grant | None:
        """Return a grant for `call`. A grant for a person holds only if all messages of the turn are theirs."""
        for grant in self._grants.values():
            if (grant.agent, grant.workspace) != (agent, workspace) or not grant.covers(call):
                continue
            if not grant.accepts_files(files) or not self._is_valid(grant, senders):
                continue
            if grant.session == session or (not grant.session and all(self._is_for(grant, each) for each in senders)):
                return grant
        return None

    def _is_valid(self, grant: Grant, senders: Sequence[Inbound]) -> bool:
        """Return whether the person who made the grant may still approve such calls, by their role of now."""
        if grant.by.channel in PROGRAM_CHANNELS:
            return True
        given = own_role(self._live, grant.by)
        if grant.by == grant.person:
            roles = [given] if given is not None else [role_in(self._live, each) for each in senders]
            return all(role.settings.approve is not ApprovalRight.NONE for role in roles)
        # Made for someone else, by an owner or a person with the right for the chat. A role of their own says whether
        # they still have it; others have it by their chat, or by a proof of their channel.
        return given is None or given.is_owner or given.settings.approve is ApprovalRight.CHAT

    def _is_for(self, grant: Grant, inbound: Inbound) -> bool:
        one, other = (grant.person.channel, grant.person.sender), (inbound.address.channel, inbound.sender.id)
        return grant.person.account == inbound.address.account and are_same_person(self._live, one, other)

    def visible_to(self, inbound: Inbound, scope: str, *, sees_all: bool) -> list[Grant]:
        """Return the grants for sessions of the scope and those for the sender, the oldest first."""
        return [
            grant
            for grant in self._grants.values()
            if sees_all or (grant.scope == scope if grant.session else self._is_for(grant, inbound))
        ]

    def remove(self, grants: Collection[Grant]) -> list[SetFact]:
        """Stop using the grants at once. Return the operations that delete them."""
        for grant in grants:
            self._grants.pop(grant.id, None)
        return [SetFact(name=grant.fact, value=None) for grant in grants]

    def remove_people(self, people: Collection[Person]) -> list[SetFact]:
        """Remove the grants for people who lose access, and those that they have made."""
        return self.remove([each for each in self._grants.values() if each.person in people or each.by in people])

    def remove_sessions(self, exists: Callable[[str], bool]) -> list[SetFact]:
        """Remove the grants for sessions that are gone."""
        return self.remove([each for each in self._grants.values() if each.session and not exists(each.session)])


def save(grant: Grant) -> SetFact:
    """Return the operation that stores `grant`."""
    return SetFact(name=grant.fact, value=msgspec.json.encode(grant).decode())


def parse_patterns(text: str, call: ToolCall) -> dict[str, str]:
    """Read patterns as `path=notes/* content=*`. A value may have spaces: it ends before the next argument's name.

    Raises `Refused` if the text is something else.
    """
    if not text:
        return {}
    names = "|".join(re.escape(name) for name in sorted(call.input, key=len, reverse=True))
    found = list(re.finditer(rf"(?:^|\s)({names})=", text)) if names else []
    if not found or text[: found[0].start()].strip():
        example = next(iter(call.input), "argument")
        raise Refused(f"Write the arguments that may differ as name=pattern, like {example}=*.")
    ends = [*(each.start() for each in found[1:]), len(text)]
    # Several wildcards in a row mean the same as one.
    return {each[1]: re.sub(r"\*+", ANY, text[each.end() : end].strip()) for each, end in zip(found, ends, strict=True)}


def _matches(pattern: str, value: Json) -> bool:
    if pattern == ANY:
        return True
    if not isinstance(value, str):
        return False
    first, *others = pattern.split(ANY)
    if not others:
        return value == pattern
    *middle, last = others
    if len(value) < len(first) + len(last) or not value.startswith(first) or not value.endswith(last):
        return False
    # No way up in a path: neither `notes/*` nor `notes/.*` stands for `notes/../key`.
    if value.count("..") > pattern.count(".."):
        return False
    # The first place of each part is always a right one if any is. A regular expression would try all of them, which
    # takes hours for a few wildcards and a text that a model has chosen.
    at, end = len(first), len(value) - len(last)
    for part in middle:
        found = value.find(part, at, end)
        if found < 0 or not _SAFE.fullmatch(value, at, found):
            return False
        at = found + len(part)
    return _SAFE.fullmatch(value, at, end) is not None


def _fixed_files(question: Question, patterns: Mapping[str, str]) -> dict[str, str]:
    """Return the named files that no wildcard stands for: `sh build.sh *` allows that script as it is now."""
    texts = [_as_json(value).decode() for name, value in question.call.input.items() if name not in patterns]
    texts += [part for pattern in patterns.values() for part in pattern.split(ANY)]
    fixed = " ".join(_QUOTES.sub("", text) for text in texts)

    def is_fixed(path: str) -> bool:
        return re.search(rf"(?<![\w.-]){re.escape(PurePosixPath(path).name)}(?![\w./-])", fixed) is not None

    return {path: digest for path, digest in (question.asked.files or {}).items() if is_fixed(path)}


def _as_json(value: Json) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
