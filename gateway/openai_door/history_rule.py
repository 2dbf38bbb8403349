"""The history rule: what is new in the messages that a client sends to a session that has a memory. Pure.

Clients send the whole conversation again with each request. The session has it already, so only the messages after the
last answer that both know are new. Nothing is stored twice, and nothing is left out silently.
"""

from collections.abc import Iterable, Iterator, Sequence
from uuid import uuid4

from msgspec import Struct

from gateway.contract import Sender
from gateway.conversation import AssistantMessage, Message, UserMessage
from gateway.openai_door.answer import AnswerText
from gateway.openai_door.errors import refusal
from gateway.outbound.draft_stream import join_paragraphs
from gateway.sessions import Entry, TurnOutcome, entries
from gateway.spool import InboxRow

MAX_KNOWN = 50
"""Turns of a session that are compared with the messages of a client, the newest ones."""
MAX_UNANSWERED = 10
"""The same for a client that sends no answers. Only turns without an answer matter then."""

BEGUN_BY_ASSISTANT = "[The assistant has begun this conversation.]"
"""Stands for the question before a greeting: models expect that the user speaks first."""

NOTHING_NEW = "The last message must come from the user."


class KnownTurn(Struct, frozen=True, kw_only=True):
    """A turn of a session. `outcome` is None while it waits or runs; then `answer` is its text so far."""

    id: str
    message_id: str
    """The id of its last message; empty if it has none."""
    asked: str
    """The texts of its messages and the names of their files."""
    answer: str
    outcome: TurnOutcome | None


class NewPrompt(Struct, frozen=True, kw_only=True):
    """The client says something new."""

    messages: tuple[UserMessage, ...]
    seed: tuple[Message, ...] = ()
    """Earlier messages, which an empty session starts with."""
    replaces: str | None = None
    """The turn that has failed with the same messages. It is undone, so that they count once."""

    @property
    def text(self) -> str:
        return join_paragraphs(message.text for message in self.messages)


class Repetition(Struct, frozen=True, kw_only=True):
    """The client repeats a message that the session has. It gets the answer of that turn."""

    turn: KnownTurn


def find_new_messages(
    messages: Sequence[Message],
    known: Sequence[KnownTurn],
    *,
    after: str | None = None,
    is_retry: bool = False,
) -> NewPrompt | Repetition | None:
    """Compare the messages of a client with the turns of a session. Returns None if they do not fit together.

    With `after`, the messages follow the answer of that turn. `is_retry` says that the client repeats a request.
    Raises `HttpError` if there is no message of the user to answer.

    1. Without an answer among the messages, all of them are new.
    2. If their last answer is the newest of the session, the messages after it are new.
    3. If it is an older one, and the session has the messages after it as well, they are repeated.
    4. An empty session takes over the messages before the new ones.
    5. Everything else does not fit.
    """
    said = [each for each in messages if isinstance(each, UserMessage | AssistantMessage)]
    border = next((at for at in range(len(said), 0, -1) if isinstance(said[at - 1], AssistantMessage)), 0)
    new = [each for each in said[border:] if isinstance(each, UserMessage)]
    if not new:
        raise refusal(NOTHING_NEW, param="messages")
    if border and not known and after is None:
        return NewPrompt(messages=tuple(new), seed=tuple(said[:border]))
    candidates: Iterable[int]
    if after is not None:
        candidates = [at for at, turn in enumerate(known) if turn.id == after and not border]
    elif border:
        candidates = _candidates(said[:border], known)
    else:
        # Everything that was answered came before. A client that repeats its request may have missed the last answer.
        unanswered = next((at for at in range(len(known), 0, -1) if _is_answered(known[at - 1])), 0) - 1
        candidates = [unanswered, *([unanswered - 1] if is_retry and unanswered >= 0 else [])]
    # Most clients know the newest turn, so that the first candidate fits and no other one is compared.
    found = (result for at in candidates if (result := _place(new, known[at + 1 :])) is not None)
    if is_retry:
        return min(found, key=lambda result: isinstance(result, NewPrompt), default=None)  # A repetition, if any.
    return next(found, None)


def _candidates(before: Sequence[UserMessage | AssistantMessage], known: Sequence[KnownTurn]) -> Iterator[int]:
    """Yield the turns whose answer is the last one in `before`, the likeliest first."""
    start = next((at for at in range(len(before), 0, -1) if isinstance(before[at - 1], UserMessage)), 0)
    answer = _normalized(each.text for each in before[start:])
    question: list[UserMessage] = []
    for each in reversed(before[:start]):
        if not isinstance(each, UserMessage):
            break
        question.insert(0, each)

    def fits(at: int) -> bool:
        return any(_is_same(question[start:], known[at : at + 1]) for start in range(len(question)))

    # The same answer may have been given twice. The question before it tells which one is meant, unless the client
    # has changed the question since. Without any text, only the question counts.
    others: list[int] = []
    is_known = False
    for at in range(len(known) - 1, -1, -1):
        if _normalized([known[at].answer]) == answer:
            is_known = True
            if fits(at):
                yield at
            else:
                others.append(at)
    last = len(known) - 1
    if not is_known and known and _normalized([known[last].answer]).startswith(answer) and (answer or fits(last)):
        yield last  # The client has stopped reading in the middle of it.
    if answer:
        yield from others


def _place(new: Sequence[UserMessage], later: Sequence[KnownTurn]) -> NewPrompt | Repetition | None:
    """Compare messages with the turns after the answer that they follow. Returns None if they contradict each other."""
    answered = next((at for at, turn in enumerate(later) if _is_answered(turn)), None)
    later = later if answered is None else later[: answered + 1]
    for start in range(len(later) - 1, -1, -1):
        if _is_same(new, later[start:]):
            last = later[-1]
            if last.outcome is None or _is_answered(last):
                return Repetition(turn=last)
            again = next((new[at:] for at in range(len(new)) if _is_same(new[at:], later[-1:])), new)
            return NewPrompt(messages=tuple(again), replaces=last.id)
    if answered is not None:
        return None
    for start in range(len(later)):  # The client repeats messages that got no answer before the new ones.
        for count in range(len(new) - 1, 0, -1):
            if _is_same(new[:count], later[start:]):
                return NewPrompt(messages=tuple(new[count:]))
    return NewPrompt(messages=tuple(new))


def _is_answered(turn: KnownTurn) -> bool:
    return turn.outcome is TurnOutcome.ANSWERED


def _is_same(messages: Sequence[UserMessage], turns: Sequence[KnownTurn]) -> bool:
    return _normalized(map(_content, messages)) == _normalized(turn.asked for turn in turns)


def _content(message: UserMessage) -> str:
    return " ".join([message.text, *(picture.name for picture in message.pictures)])


def _normalized(texts: Iterable[str]) -> str:
    """Return the words of all texts. Clients change spaces and line breaks."""
    return " ".join(word for text in texts for word in text.split())


def known_turns(
    found: Sequence[Entry],
    waiting: Sequence[InboxRow] = (),
    unwritten: tuple[str, str] | None = None,
    *,
    limit: int = MAX_KNOWN,
) -> list[KnownTurn]:
    """Return the newest turns of a session from its entries, without those that were undone.

    `waiting` are messages that may have no entry yet. `unwritten` is the turn that is running, and the text of its
    current step.
    """
    undone: set[str] = set()
    turns: dict[str, list[Entry]] = {}
    has_entry: set[str | None] = set()
    for entry in reversed(found):
        if isinstance(entry, entries.Undo):  # It comes after the turn.
            undone.add(entry.undone)
        if isinstance(entry, entries.User):
            has_entry.add(entry.event_id)
        if entry.turn is None or entry.turn in undone:
            continue
        if entry.turn not in turns:
            if len(turns) >= limit:
                break
            turns[entry.turn] = []
        turns[entry.turn].append(entry)
    newest = [_known_turn(turn, turns[turn][::-1], unwritten) for turn in reversed(turns)]
    newest += [
        KnownTurn(
            id=row.turn,
            message_id=row.inbound.event_id,
            asked=" ".join([row.inbound.text, *(file.name for file in row.inbound.attachments)]),
            answer="",
            outcome=None,
        )
        for row in waiting
        if row.inbound.event_id not in has_entry
    ]
    return [turn for turn in newest if turn.asked or turn.answer]


def _known_turn(turn: str, of_turn: Sequence[Entry], unwritten: tuple[str, str] | None) -> KnownTurn:
    users = [entry for entry in of_turn if isinstance(entry, entries.User)]
    answer = AnswerText()
    for entry in of_turn:
        if isinstance(entry, entries.Assistant):
            answer.end_step(entry.content)
    if unwritten is not None and unwritten[0] == turn:
        answer.end_step(unwritten[1])
    ends = [entry.outcome for entry in of_turn if isinstance(entry, entries.TurnEnd)]
    return KnownTurn(
        id=turn,
        message_id=(users[-1].event_id or "") if users else "",
        asked=" ".join(part for user in users for part in (user.content, *(file.name for file in user.attachments))),
        answer=answer.text,
        outcome=ends[-1] if ends else None,
    )


def seed_entries(messages: Sequence[Message], sender: Sender) -> list[Entry]:
    """Return messages from before the session as turns that are over, so that they count like any others."""
    seed: list[Entry] = []
    turn = ""
    for message in messages:
        is_question = isinstance(message, UserMessage)
        if is_question and (not seed or isinstance(seed[-1], entries.TurnEnd)):
            turn = uuid4().hex
        elif not seed:
            turn = uuid4().hex
            seed.append(entries.User(content=BEGUN_BY_ASSISTANT, sender=sender.id, sender_name=sender.name, turn=turn))
        if isinstance(message, UserMessage):
            seed.append(entries.User(content=message.text, sender=sender.id, sender_name=sender.name, turn=turn))
        elif isinstance(message, AssistantMessage):
            if isinstance(seed[-1], entries.TurnEnd):  # Two answers in a row belong to one turn.
                seed.pop()
            seed += [
                entries.Assistant(content=message.text, turn=turn),
                entries.TurnEnd(outcome=TurnOutcome.ANSWERED, turn=turn),
            ]
    return seed
