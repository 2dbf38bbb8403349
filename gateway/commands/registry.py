"""All commands. The parser, `/help` and the menus of the platforms are made from this list."""

from config import Settings
from gateway.access.rights import Action, is_open_to_all
from gateway.access.role_table import matches
from gateway.access.roles import role_of
from gateway.access.rules import Live
from gateway.commands.command import Command, CommandKind
from gateway.contract import Address, Sender
from gateway.errors import CannotStart

# The next four are also used by name: a plain yes or no becomes APPROVE or DENY, RETRY is run as a turn, and AGENT runs
# at intake if it starts a session.
APPROVE = Command(
    name="approve",
    arguments="[session|always]",
    summary="Approve the tool call that the agent asked about",
    kind=CommandKind.ORDERED,
)
DENY = Command(name="deny", summary="Deny the tool call that the agent asked about", kind=CommandKind.ORDERED)
AGENT = Command(
    name="agent", arguments="[name] [@repository]", summary="List or switch agents", kind=CommandKind.QUEUED
)
RETRY = Command(name="retry", summary="Regenerate the last answer", kind=CommandKind.QUEUED)

COMMANDS: tuple[Command, ...] = (
    Command(
        name="new",
        aliases=("reset",),
        arguments="[@repository] [title]",
        summary="Start a new session; the old one is kept",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session list",
        aliases=("sessions", "session"),
        arguments="[archived]",
        summary="List the sessions of this chat",
        is_personal=True,
    ),
    Command(
        name="session resume",
        aliases=("switch",),
        arguments="<number>",
        summary="Go back to an earlier session",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session restore",
        arguments="<number>",
        summary="Bring a session back from the archive",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session rename",
        arguments="[number] <title>",
        summary="Rename a session",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session close",
        arguments="[number]",
        summary="Close a session; your next message starts a new one",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session delete",
        aliases=("delete",),
        arguments="<number>",
        summary="Delete a session permanently",
        right=Action.DELETE,
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="session search",
        arguments="<words>",
        summary="Search the sessions of this chat",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="session info",
        arguments="[number]",
        summary="Show the details of a session",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="session export",
        arguments="[number]",
        summary="Show a whole session as Markdown",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="history",
        arguments="[lines]",
        summary="Show the last lines of this session",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="clear",
        summary="Make the agent forget this session so far",
        kind=CommandKind.QUEUED,
        right=Action.CLEAR,
    ),
    Command(name="undo", summary="Undo your last message and its answer", kind=CommandKind.QUEUED),
    RETRY,
    Command(
        name="compact",
        summary="Summarise the older part of this session",
        kind=CommandKind.QUEUED,
        is_long=True,
    ),
    AGENT,
    Command(name="model", arguments="[name]", summary="List or switch models", kind=CommandKind.QUEUED),
    Command(
        name="workspace",
        arguments="[name]",
        summary="List or switch workspaces (owner)",
        kind=CommandKind.QUEUED,
        is_for_owners=True,
    ),
    Command(name="repos", summary="List the repositories", kind=CommandKind.READING, is_personal=True),
    Command(
        name="diff",
        arguments="[number|file]",
        summary="Show what changed in the repository since a session started",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(name="tools", summary="List the tools of the agent", kind=CommandKind.READING, is_personal=True),
    Command(name="reminders", aliases=("reminders list",), summary="List the reminders of this chat", is_personal=True),
    Command(
        name="reminders cancel",
        arguments="<reminder>",
        summary="Cancel a reminder",
        kind=CommandKind.ORDERED,
    ),
    Command(
        name="memory",
        aliases=("memory list",),
        summary="Show the memory of this chat",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="memory search",
        arguments="<words>",
        summary="Search the memory of this chat",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(
        name="memory forget",
        arguments="<number>",
        summary="Remove a statement from the memory of this chat",
        kind=CommandKind.ORDERED,
        right=Action.CHANGE_MEMORY,
    ),
    Command(
        name="memory edit",
        arguments="<number> <text>",
        summary="Change a statement in the memory of this chat",
        kind=CommandKind.ORDERED,
        right=Action.CHANGE_MEMORY,
    ),
    Command(
        name="schedule list",
        aliases=("schedules", "schedule"),
        summary="List the schedules of this chat (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="schedule add",
        arguments="<when> <prompt>",
        summary="Ask the agent something regularly (owner)",
        kind=CommandKind.ORDERED,
        is_for_owners=True,
    ),
    Command(
        name="schedule show",
        arguments="<number>",
        summary="Show a schedule (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="schedule history",
        arguments="<number>",
        summary="Show the runs of a schedule (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="schedule pause",
        arguments="<number>",
        summary="Pause a schedule (owner)",
        kind=CommandKind.ORDERED,
        is_for_owners=True,
    ),
    Command(
        name="schedule resume",
        arguments="<number>",
        summary="Let a paused schedule go on (owner)",
        kind=CommandKind.ORDERED,
        is_for_owners=True,
    ),
    Command(
        name="schedule run",
        arguments="<number>",
        summary="Run a schedule now (owner)",
        kind=CommandKind.ORDERED,
        is_for_owners=True,
    ),
    Command(
        name="schedule delete",
        arguments="<number>",
        summary="Delete a schedule (owner)",
        kind=CommandKind.ORDERED,
        is_for_owners=True,
    ),
    APPROVE,
    DENY,
    Command(name="approvals", aliases=("approvals list",), summary="List tool calls that run without a question"),
    Command(name="approvals show", summary="Show a question about a tool call in full"),
    Command(
        name="approvals revoke",
        arguments="<id>",
        summary="Ask again about a tool call that was allowed",
        kind=CommandKind.ORDERED,
    ),
    Command(name="stop", summary="Stop the current answer and clear the queue"),
    Command(
        name="status",
        summary="Show the state of the gateway and this session",
        kind=CommandKind.READING,
        is_personal=True,
    ),
    Command(name="usage", summary="Show your token usage for today and this session", is_personal=True),
    Command(name="whoami", summary="Show your ID and your role", is_personal=True),
    Command(
        name="pair",
        aliases=("pair list",),
        summary="List access requests and approved people (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="pair approve",
        arguments="<code> [role]",
        summary="Approve an access request (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="pair deny",
        arguments="<code>",
        summary="Deny an access request (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="pair revoke",
        arguments="<id>",
        summary="Revoke someone's access (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(
        name="pair role",
        arguments="<id> <role>",
        summary="Give an approved person another role (owner)",
        is_personal=True,
        is_for_owners=True,
    ),
    Command(name="restart", summary="Restart the gateway; no messages are lost (owner)", is_for_owners=True),
    Command(name="start", summary="Show how to begin", is_personal=True),
    Command(name="help", summary="Show this list", is_personal=True),
)

BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
"""Commands by their names and aliases."""


def check_role_commands(settings: Settings) -> None:
    """Raise `CannotStart` if a role names a command that does not exist."""
    names = [command.name for command in COMMANDS]
    faults = []
    for role, table in settings.roles.items():
        for pattern in table.commands or ():
            wanted = pattern.lower().removeprefix("/")
            if not any(matches([wanted], each) for each in names):
                hint = f"Write it as `{BY_NAME[wanted].name}`." if wanted in BY_NAME else "/help lists the commands."
                faults.append(f"roles.{role}.commands: `{pattern}` matches no command. {hint}")
    if faults:
        raise CannotStart("\n".join(faults))


def usable_commands(
    live: Live, address: Address | None = None, sender: Sender | None = None, guild: str | None = None
) -> list[Command]:
    """Return the commands that `sender` may use in a chat, for menus. Without a chat: all but those for owners.

    The handlers check again: a menu may be out of date.
    """
    if address is None or sender is None:
        return [command for command in COMMANDS if not command.is_for_owners]
    role = role_of(live, address, sender, guild)
    return [
        command
        for command in COMMANDS
        if role.may_use(command.name, is_for_owners=command.is_for_owners)
        and (not command.right or role.may_moderate or is_open_to_all(live, command.right, address, sender))
    ]
