"""Commands that move between the sessions of a chat."""

from gateway.commands.command import NO_SESSION, Answer, Call, Command, Kind, is_number, read_number
from gateway.commands.info import Dropped
from gateway.contract import Button, PeerKind
from gateway.errors import Refused
from gateway.sessions import Hit, SessionMeta, SessionStatus
from gateway.sessions.export import MarkdownExport, export_pieces, undone_turns
from gateway.text import excerpt
from gateway.text.plain import ago, count

TITLE_WIDTH = 60


async def _new(call: Call) -> Answer:
    title = excerpt(call.argument, TITLE_WIDTH) or None
    session = await call.desk.sessions.start_new(
        call.routed.scope,
        agent=call.routed.agent,
        origin=call.inbound.address,
        title=title,
        also=lambda session: call.settle(_started(session)),
    )
    return _started(session)


def _started(session: SessionMeta) -> Answer:
    named = f": {session.title}" if session.title else ""
    return Answer(text=f"Started session {session.number}{named}. What you write now goes there.")


async def _list(call: Call) -> Answer:
    sessions = call.desk.sessions.list(call.routed.scope)
    if not sessions:
        return Answer(text="There are no sessions here yet. Write something to start the first one.")
    active = call.desk.sessions.active(call.routed.scope)
    rows = [_row(session, call, is_active=active is not None and session.key == active.key) for session in sessions]
    return Answer(
        text="\n".join(["Sessions (newest first)", *rows, "/session resume <number> to go back to one"]),
        buttons=tuple(_button(session) for session in sessions),
    )


def _row(session: SessionMeta, call: Call, *, is_active: bool) -> str:
    mark = "▸" if is_active else " "
    if session.messages == 0:
        return f"{mark} {session.number}  {session.title or '(empty)'}"
    when = ago(session.updated_at, call.desk.now())
    return f"{mark} {session.number}  {session.title} · {count(session.messages, 'message')} · {when}"


def _button(session: SessionMeta) -> Button:
    return Button(label=f"{session.number} {session.title or '(empty)'}", command=f"/session resume {session.number}")


async def _resume(call: Call) -> Answer:
    number = read_number(call.argument, "/session resume 2")
    session = await call.desk.sessions.resume(
        call.routed.scope, number, also=lambda session: call.settle(_resumed(session))
    )
    return _resumed(session)


def _resumed(session: SessionMeta) -> Answer:
    title = f": {session.title}" if session.title else ""
    return Answer(text=f"Back in session {session.number}{title} ({count(session.messages, 'message')}).")


NEW = Command(
    name="new",
    aliases=("reset",),
    arguments="[title]",
    summary="Start a new session; the old one is kept",
    run=_new,
    kind=Kind.STRUCTURAL,
)
LIST = Command(
    name="session list", aliases=("sessions", "session"), summary="Show the sessions of this chat", run=_list
)
RESUME = Command(
    name="session resume",
    aliases=("switch",),
    arguments="<number>",
    summary="Go back to an earlier session",
    run=_resume,
    kind=Kind.STRUCTURAL,
)


EXPORTED_CHARS = 20_000


def _chosen(call: Call, argument: str) -> SessionMeta:
    """Return the session that `argument` names, or the one the command is about."""
    listed = call.desk.sessions.list(call.routed.scope)
    if argument:
        number = read_number(argument, "2")
        found = [session for session in listed if session.number == number]
        if not found:
            raise Refused(f"There is no session {number} here. /session list shows what there is.")
        return found[0]
    found = [session for session in listed if session.key == call.session]
    if not found:
        raise Refused(NO_SESSION)
    return found[0]


async def _rename(call: Call) -> Answer:
    first, _, rest = call.argument.partition(" ")
    numbers = {session.number for session in call.desk.sessions.list(call.routed.scope)}
    has_number = bool(rest.strip()) and is_number(first) and int(first) in numbers
    session = _chosen(call, first if has_number else "")
    title = excerpt(rest if has_number else call.argument, TITLE_WIDTH)
    if not title:
        raise Refused("What should it be called? Send /session rename Trip to Lisbon.")
    answer = Answer(text=f"Session {session.number} is now called {title}.")
    await call.desk.sessions.set_title(session.key, title, also=call.settle(answer))
    return answer


async def _close(call: Call) -> Answer:
    session = _chosen(call, call.argument)
    answer = Answer(text=f"Session {session.number} is closed. Resuming it opens it again.")
    by = call.inbound.sender.id
    await call.desk.sessions.set_status(session.key, SessionStatus.COMPLETED, by=by, also=call.settle(answer))
    return answer


async def _delete(call: Call) -> Answer:
    if call.inbound.address.kind is not PeerKind.DIRECT and not call.is_owner:
        raise Refused("Only the owner may delete a session that others use too.")
    if not call.argument:
        raise Refused("Which one? Send its number, like /session delete 2. /session list shows the numbers.")
    session = _chosen(call, call.argument)
    dropped = Dropped((call.desk.lanes, session.key))
    call.desk.lanes.stop(session.key, "The session was deleted.")
    try:
        await call.desk.sessions.delete(session.key)
    except Exception:
        dropped.put_back()
        raise
    now = call.desk.sessions.active(call.routed.scope)
    where = f" You are in session {now.number} now." if now and call.session == session.key else ""
    sentence = f"Session {session.number} is deleted.{where}"
    return dropped.told(sentence, asked=call.inbound, why="its session was deleted")


async def _info(call: Call) -> Answer:
    session = _chosen(call, call.argument)
    now = call.desk.now()
    return Answer(
        text="\n".join(
            [
                f"Session {session.number}: {session.title or '(empty)'}",
                f"{count(session.messages, 'message')} in {count(session.turns, 'turn')}, {session.status}",
                f"started {ago(session.created_at, now)}, last used {ago(session.last_accessed, now)}",
                f"agent {session.agent}, {session.size / 1024:.1f} kB on disk",
            ],
        ),
    )


async def _search(call: Call) -> Answer:
    if not call.argument:
        raise Refused("What should I look for? Send /session search and some words.")
    result = await call.desk.sessions.search(call.routed.scope, call.argument)
    more = ["(There may be more: I stopped early.)"] if result.stopped_early else []
    if not result.hits:
        return Answer(text="\n".join([f"Nothing found for {excerpt(call.argument, TITLE_WIDTH)}.", *more]))
    return Answer(text="\n".join([*(_hit(hit, call) for hit in result.hits), *more]))


def _hit(hit: Hit, call: Call) -> str:
    who = "you" if hit.role == "user" else "agent"
    return f"{hit.number}  {hit.title or '(empty)'} · {who}, {ago(hit.at, call.desk.now())}: {hit.snippet}"


async def _export(call: Call) -> Answer:
    session = _chosen(call, call.argument)
    undone = await undone_turns(call.desk.sessions.entries(session.key))
    export = MarkdownExport(session, undone, names_scope=False)
    text = ""
    async for piece in export_pieces(export, call.desk.sessions.entries(session.key)):
        text += piece
        if len(text) > EXPORTED_CHARS:
            raise Refused(
                f"Session {session.number} is too long for a chat. "
                "On the server, `gatehouse sessions export` writes it to a file."
            )
    return Answer(text=text)


RENAME = Command(
    name="session rename",
    arguments="[number] <title>",
    summary="Give a session another title",
    run=_rename,
    kind=Kind.STRUCTURAL,
)
CLOSE = Command(
    name="session close",
    arguments="[number]",
    summary="Close a session; your next message starts a new one",
    run=_close,
    kind=Kind.STRUCTURAL,
)
DELETE = Command(
    name="session delete",
    aliases=("delete",),
    arguments="<number>",
    summary="Delete a session for good",
    run=_delete,
    kind=Kind.STRUCTURAL,
)
INFO = Command(name="session info", arguments="[number]", summary="Show the facts about a session", run=_info)
SEARCH = Command(
    name="session search",
    arguments="<words>",
    summary="Find words in the sessions of this chat",
    run=_search,
    kind=Kind.READING,
)
EXPORT = Command(
    name="session export",
    arguments="[number]",
    summary="Show a whole session as Markdown",
    run=_export,
    kind=Kind.READING,
)
