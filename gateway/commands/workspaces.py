"""The command about the folder that the tools of a session work in."""

from gateway.commands.command import Answer, Call, Command, Kind
from gateway.commands.models import own_session
from gateway.errors import Refused

__all__ = ["WORKSPACE"]

OWN = "default"
MAX_NAME = 200


async def _workspace(call: Call) -> Answer:
    session = await own_session(call)
    folders = {repo.name: repo.path for repo in call.desk.live.settings.repos}
    current = session.workspace if session.workspace in folders else OWN
    wanted = call.argument.lower()
    if not wanted:
        names = [OWN, *folders] if call.is_owner else [current]
        rows = [f"{'▸' if name == current else ' '} {name}" for name in names]
        return Answer(text="\n".join(["Workspaces", *rows, "/workspace <name> to work in another one (owner)"]))
    if not call.is_owner:  # They are folders of the owner's, and not everybody's to look into.
        raise Refused("Only the owner may choose the workspace.")
    if wanted != OWN and wanted not in folders:
        raise Refused(f"There is no workspace {wanted[:MAX_NAME]}. There are: {', '.join([OWN, *folders])}.")
    answer = Answer(text=f"From now on the tools of session {session.number} work in {wanted}.")
    await call.desk.sessions.set_workspace(session.key, "" if wanted == OWN else wanted, also=call.settle(answer))
    return answer


WORKSPACE = Command(
    name="workspace",
    arguments="[name]",
    summary="Show the workspaces, or let the tools work in another one",
    run=_workspace,
    kind=Kind.QUEUED,
)
