"""The roles that the settings define, what each allows, and who has which by the settings."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import structlog
from msgspec import Struct

from config import GUEST_ROLE, OWNER_ROLE, ApprovalRight, LimitSettings, RoleSettings, Settings
from config.settings.roles import NOT_GRANTED, first_word
from gateway.errors import Refused

log = structlog.get_logger()

ALWAYS = frozenset({"help", "start", "stop", "whoami", "approvals", "approvals revoke"})
"""Commands that everyone may use. They show and stop only what is the person's own."""
ANSWERS = frozenset({"approve", "deny", "approvals show"})
"""Commands about questions. Whoever may approve tool calls may use them."""


class Role(Struct, frozen=True, kw_only=True):
    """One role. A key of its settings that is None limits nothing."""

    name: str
    settings: RoleSettings
    is_owner: bool = False
    missing: str = ""
    """The role that a person, a chat or a token should have, and that the settings no longer define."""

    def may_use(self, command: str, *, is_for_owners: bool) -> bool:
        """Return whether people with this role may use a command, by its full name.

        A command for owners is granted only by a pattern that begins with its first word, never by `*` alone.
        """
        if self.is_owner or command in ALWAYS:
            return True
        if command in ANSWERS:
            return self.settings.approve is not ApprovalRight.NONE
        if self.settings.commands is None or first_word(command) in NOT_GRANTED:
            return not is_for_owners
        patterns = [each.lower().removeprefix("/") for each in self.settings.commands]
        if is_for_owners:
            patterns = [each for each in patterns if first_word(each) == first_word(command)]
        return matches(patterns, command)

    def describe(self) -> list[str]:
        """Return the limits and the additional rights of the role, as sentences for the people who have it."""
        if self.missing:
            hint = "I use no tools for you until an owner gives you another one."
            return [f"Your role was {self.missing}, which no longer exists. {hint}"]
        own = self.settings
        lists = {
            "Commands": own.commands,
            "Agents": own.agents,
            "Models": own.models,
            "Tools": own.tools,
            "Repositories": own.workspaces,
        }
        lines = [f"{what}: {', '.join(names) or 'none'}." for what, names in lists.items() if names is not None]
        if own.ask:
            lines.append(f"Before I use these tools for you, I ask: {', '.join(own.ask)}.")
        if own.approve is ApprovalRight.NONE:
            lines.append("You can't approve tool calls.")
        if own.approve is ApprovalRight.CHAT:
            lines.append("You may approve the tool calls of everyone in your chats.")
        if own.moderate:
            lines.append("You may delete and clear shared sessions, and choose who answers in them.")
        budget = [
            f"{own.tokens_per_day:,} tokens a day" if own.tokens_per_day else "",
            f"{own.tokens_per_turn:,} tokens an answer" if own.tokens_per_turn else "",
            f"a cost of {own.cost_per_day:g} a day" if own.cost_per_day else "",
        ]
        if any(budget):
            lines.append(f"Budget: {', '.join(filter(None, budget))}.")
        return lines

    @property
    def may_moderate(self) -> bool:
        """Whether people may change what others in a shared conversation cannot take back."""
        return self.is_owner or self.settings.moderate

    def is_answered_by(self, agent: str) -> bool:
        """Return whether an agent answers people with this role."""
        named = self.settings.agents
        return self.is_owner or named is None or matches(named, agent)

    def may_choose_agent(self, agent: str, *, is_usual: bool) -> bool:
        """Return whether people may choose an agent. `is_usual`: they could without roles, as in their chat."""
        named = self.settings.agents
        return self.is_owner or (is_usual if named is None else agent in named or (is_usual and matches(named, agent)))

    def may_use_repo(self, repo: str, *, is_usual: bool) -> bool:
        """Return whether agents may use a repository for people with this role. `is_usual`: as above."""
        named = self.settings.workspaces
        return self.is_owner or (is_usual if named is None else repo in named or (is_usual and matches(named, repo)))

    def may_choose_model(self, *names: str, is_usual: bool) -> bool:
        """Return whether people may choose a model, which has several `names`. `is_usual`: as above."""
        named = self.settings.models
        if self.is_owner or named is None:
            return self.is_owner or is_usual
        return any(name in named for name in names) or (is_usual and any(matches(named, name) for name in names))


class AskerRoles:
    """The roles of all people whose messages one turn answers: the narrowest right of them holds."""

    def __init__(self, roles: Iterable[Role]) -> None:
        self.roles = tuple({id(role): role for role in roles}.values())

    @property
    def limits_tools(self) -> bool:
        return any(role.settings.tools is not None or role.settings.ask for role in self.roles)

    @property
    def limits_models(self) -> bool:
        return any(role.settings.models is not None for role in self.roles)

    def allows_tool(self, tool: str) -> bool:
        return all(role.settings.tools is None or matches(role.settings.tools, tool) for role in self.roles)

    def asks_before(self, tool: str) -> bool:
        return any(matches(role.settings.ask, tool) for role in self.roles)

    def allows_model(self, *names: str) -> bool:
        return all(
            role.is_owner or role.settings.models is None or any(matches(role.settings.models, name) for name in names)
            for role in self.roles
        )

    def check_place(self, agent: str, repos: Iterable[str]) -> None:
        """Raise `Refused` if the agent, or one of the repositories of its session, is not for one of the people."""
        for role in self.roles:
            if not role.is_answered_by(agent):
                raise Refused(
                    f"The agent {agent} doesn't answer people with the role {role.name}. Send /new to start a session "
                    "with one that does."
                )
            named = role.settings.workspaces
            for repo in repos if named is not None else ():
                if not matches(named or (), repo):
                    raise Refused(
                        f"This session works in {repo}, which is not for people with the role {role.name}. "
                        "Send /new to start another session."
                    )

    def limits(self, general: LimitSettings) -> "Limits":
        """Return the budget of the people. `general` holds for those whose role has none of its own."""
        usual = Limit(general.tokens_per_user_per_day, "limits.tokens_per_user_per_day")
        usual_turn = Limit(general.tokens_per_turn, "limits.tokens_per_turn")
        days, turns, costs = [], [], [Limit(0, "")]
        for role in self.roles:
            own, key = role.settings, f"roles.{role.name}"
            days.append(usual if own.tokens_per_day is None else Limit(own.tokens_per_day, f"{key}.tokens_per_day"))
            turns.append(
                usual_turn if own.tokens_per_turn is None else Limit(own.tokens_per_turn, f"{key}.tokens_per_turn")
            )
            costs.append(Limit(own.cost_per_day or 0, f"{key}.cost_per_day"))
        return Limits(
            tokens_per_day=_narrowest(days or [usual]),
            tokens_per_turn=_narrowest(turns or [usual_turn]),
            cost_per_day=_narrowest(costs),
        )


class Limit(NamedTuple):
    """One limit, and the key of the settings that it comes from. 0 means no limit."""

    value: float
    key: str


class Limits(Struct, frozen=True, kw_only=True):
    """A budget."""

    tokens_per_day: Limit
    tokens_per_turn: Limit
    cost_per_day: Limit


class RoleTable:
    """All roles of one configuration."""

    def __init__(self, settings: Settings) -> None:
        self.roles = {
            name: Role(name=name, settings=each, is_owner=name == OWNER_ROLE) for name, each in settings.roles.items()
        }
        linked = {each: ids for ids in settings.session.identity_links.values() for each in ids}
        self.people = {
            each: name
            for name, role in settings.roles.items()
            for listed in role.people
            for each in (listed, *linked.get(listed, ()))
        }
        """The roles of people by `channel:id`, also of the ids that are linked to a listed one."""
        self.chats = {chat: name for name, role in settings.roles.items() for chat in role.chats}
        """The roles of chats by `channel:id`."""
        self._missing: dict[str, Role] = {}

    def __getitem__(self, name: str) -> Role:
        """Return the role `name`. One that is no longer defined is a guest whose agents have no tools."""
        if name in self.roles:
            return self.roles[name]
        if name not in self._missing:
            log.warning("role_missing", role=name, hint="add a table [roles.<name>], or give those people another role")
            closed = {"tools": (), "workspaces": (), "approve": ApprovalRight.NONE, "moderate": False}
            settings = self.roles[GUEST_ROLE].settings.model_copy(update=closed)
            self._missing[name] = Role(name=GUEST_ROLE, settings=settings, missing=name)
        return self._missing[name]

    def __iter__(self) -> Iterator[Role]:
        return iter(self.roles.values())

    def check_exists(self, name: str) -> None:
        """Raise `Refused` if there is no role `name`."""
        if name not in self.roles:
            raise Refused(f"There is no role {name[:64]}. There are: {', '.join(self.roles)}.")


def matches(patterns: Collection[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _narrowest(limits: Sequence[Limit]) -> Limit:
    return min((each for each in limits if each.value), default=limits[0])
