"""Commands that show and cancel reminders."""

from datetime import tzinfo

from gateway.commands.command import Answer, Call, Command, Kind, is_number
from gateway.contract import Button
from gateway.errors import Refused
from gateway.spool import CancelReminder, ReminderRow
from gateway.text import excerpt

__all__ = ["REMINDERS", "REMINDERS_CANCEL"]

_WIDTH = 80


async def _list(call: Call) -> Answer:
    reminders = call.desk.reminders
    rows = sorted(await reminders.of_scope(call.routed.scope), key=lambda row: row.due_at)
    if not rows:
        return Answer(text="There are no reminders here. Ask me to remind you of something.")
    lines = [_line(row, reminders.zone) for row in rows]
    buttons = tuple(Button(label=f"Cancel {row.number}", command=f"/reminders cancel {row.number}") for row in rows)
    return Answer(
        text="\n".join(["Reminders", *lines, "/reminders cancel <number> to drop one"]),
        buttons=buttons,
    )


def _line(row: ReminderRow, zone: tzinfo) -> str:
    again = f" · `{row.cron}`" if row.cron else ""
    return (
        f"  {row.number}  {row.due_at.astimezone(zone):%a %d %b %Y, %H:%M}{again} · {excerpt(row.about.text, _WIDTH)}"
    )


async def _cancel(call: Call) -> Answer:
    if not is_number(call.argument):
        raise Refused("Which one? Send its number, like /reminders cancel 2. /reminders shows the numbers.")
    reminders = call.desk.reminders
    number = int(call.argument)
    found = [row for row in await reminders.of_scope(call.routed.scope) if row.number == number]
    if not found:
        raise Refused(f"There is no reminder {number} here. /reminders shows those that there are.")
    if not reminders.may_cancel(found[0], call.inbound, is_owner=call.is_owner):
        raise Refused("Only the person who asked for that reminder, or an owner, may cancel it.")
    return Answer(
        text=f"Reminder {number} is cancelled: {excerpt(found[0].about.text, _WIDTH)}",
        also=(CancelReminder(id=found[0].id, at=call.desk.now()),),
    )


REMINDERS = Command(name="reminders", aliases=("reminders list",), summary="Show the reminders of this chat", run=_list)
REMINDERS_CANCEL = Command(
    name="reminders cancel", summary="Cancel a reminder", arguments="<reminder>", run=_cancel, kind=Kind.STRUCTURAL
)
