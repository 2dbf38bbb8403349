"""Searches the rows of a database by the trigrams of words, in the sessions that the caller names.

One query finds the messages that contain all words. If they are too many to be sorted, the sessions are searched one
by one instead, newest message first, which ends soon: there are enough hits.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from gateway.database.connection import UnpreparedStatement
from gateway.sessions.session import SessionMeta
from gateway.sessions.storage.search import (
    MAX_MATCHES,
    MESSAGES_PER_PLACE,
    ROWS_PER_STEP,
    SearchedSession,
    match_all,
)

Query = Callable[[str, Sequence[object]], list[Any]]
"""Runs a statement and returns all rows. Any: the types of the columns."""

MAX_COMPARED_BYTES = 512 * 1024
"""The size of sessions whose texts are compared without an index."""

_NO_SEQ = 1 << 62
_SEQ_BITS = 32
"""The bits of a row's id in SQLite's index that are the seq of its entry. Those above are the session."""


class RowSearch(Protocol):
    """The search of one kind of database. All words are folded. Those that are `compared` are not looked up."""

    def sample(self, places: Sequence[tuple[str, int]], words: Sequence[str]) -> tuple[int, list[int]]:
        """Return how many messages follow the seqs of these sessions, and how many of them contain each word."""

    def compare(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        """Return the session and the seq of messages that contain all words, without an index. None: too many."""

    def matches(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        """Return the same by an index. None: there are too many, or the words are too short for it."""

    def lines(self, key: str, words: Sequence[str], compared: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield the lines of a session that contain all words, the last one first."""

    def pending(self) -> int:
        """Return how many messages are not in the index yet. They are found all the same."""

    def has_index(self) -> bool:
        """Return False if searches have to read all messages."""


def candidates(
    query: Query, index: RowSearch, sessions: Sequence[SessionMeta], words: Sequence[str], compared: Sequence[str]
) -> Iterator[SearchedSession]:
    """Yield sessions with their lines that may contain all of the folded words, in their order."""
    if not words:
        return
    # An index has the trigrams of all sessions. So the first few are read faster without it, and they often are enough.
    size = count = 0
    for each in sessions:
        size += each.size
        if size > MAX_COMPARED_BYTES:
            break
        count += 1
    for some, find in ((sessions[:count], index.compare), (sessions[count:], index.matches)):
        if not some:
            continue
        try:
            matches = find([each.key for each in some], words, compared)
        except OSError:  # The query took too long. One by one, each session that can be read is searched.
            matches = None
        found: dict[str, list[int]] = defaultdict(list)
        for key, seq in matches or ():
            found[key].append(seq)
        for each in some:
            if matches is None:
                lines = index.lines(each.key, words, compared)
            elif each.key in found:
                lines = _lines_of(query, each.key, sorted(found[each.key], reverse=True))
            else:
                continue
            yield SearchedSession(key=each.key, number=each.number, title=each.title, lines=lines)


def _lines_of(query: Query, key: str, seqs: Sequence[int]) -> Iterator[bytes]:
    for start in range(0, len(seqs), ROWS_PER_STEP):
        some = seqs[start : start + ROWS_PER_STEP]
        wanted = ", ".join("?" for _ in some)
        sql = f"SELECT line FROM entry WHERE session = ? AND seq IN ({wanted}) ORDER BY seq DESC"  # noqa: S608 - constants only
        for (line,) in query(sql, (key, *some)):
            yield line.encode()


class SqliteSearch:
    """FTS5 with trigrams. Messages that are not indexed yet, and words without trigrams, are compared row by row."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def has_index(self) -> bool:
        return True

    def pending(self) -> int:
        ((count,),) = self._query("SELECT count(*) FROM search_pending", ())
        return int(count)

    def sample(self, places: Sequence[tuple[str, int]], words: Sequence[str]) -> tuple[int, list[int]]:
        counts = "count(*)" + ", count(*) FILTER (WHERE instr(e.folded, ?))" * len(words)
        ((size, *contain),) = self._query(
            "WITH place AS (SELECT json_extract(value, '$[0]') AS key, json_extract(value, '$[1]') AS seq "  # noqa: S608 - constants only
            f"FROM json_each(?)) SELECT {counts} FROM place p CROSS JOIN entry e "
            "ON e.session = p.key AND e.seq >= p.seq AND e.seq < p.seq + ? "
            "WHERE e.folded IS NOT NULL",
            (json.dumps(places), *words, MESSAGES_PER_PLACE),
        )
        return size, contain

    def compare(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        everything = (*words, *compared)
        contains = _all("instr(e.folded, ?)", everything)
        found = self._query(
            "SELECT e.session, e.seq FROM json_each(?) k CROSS JOIN entry e ON e.session = k.value "  # noqa: S608 - constants only
            f"WHERE {contains} LIMIT ?",
            (json.dumps(keys), *everything, MAX_MATCHES + 1),
        )
        return found if len(found) <= MAX_MATCHES else None

    def matches(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        chosen, everything = json.dumps(keys), (*words, *compared)
        contains = _all("instr(e.folded, ?)", everything)
        match = match_all(words)
        if not match:
            return None
        found = self._query(
            "SELECT p.session, p.seq FROM json_each(?) k CROSS JOIN search_pending p ON p.session = k.value "  # noqa: S608 - constants only
            f"CROSS JOIN entry e ON e.session = p.session AND e.seq = p.seq WHERE {contains} LIMIT ?",
            (chosen, *everything, MAX_MATCHES + 1),
        )
        numbers = self._query(
            "SELECT id, session FROM search_session WHERE session IN (SELECT value FROM json_each(?))", (chosen,)
        )
        sessions = dict(numbers)
        exists = (
            "AND EXISTS (SELECT 1 FROM search_session s JOIN entry e ON e.session = s.session "  # noqa: S608 - constants only
            f"AND e.seq = t.rowid & {(1 << _SEQ_BITS) - 1} WHERE s.id = t.rowid >> {_SEQ_BITS} "
            f"AND {_all('instr(e.folded, ?)', compared)})"
            if compared
            else ""
        )
        if sessions and len(found) <= MAX_MATCHES:
            indexed = self._query(
                "SELECT rowid >> ?, rowid & ? FROM search_text t WHERE search_text MATCH ? AND rowid BETWEEN ? AND ? "  # noqa: S608 - constants only
                "AND rowid >> ? IN (SELECT id FROM search_session WHERE session IN (SELECT value FROM json_each(?))) "
                f"{exists} LIMIT ?",
                (
                    *(_SEQ_BITS, (1 << _SEQ_BITS) - 1, match),
                    *(min(sessions) << _SEQ_BITS, (max(sessions) + 1) << _SEQ_BITS),
                    *(_SEQ_BITS, chosen, *compared, MAX_MATCHES + 1),
                ),
            )
            found += [(sessions[number], seq) for number, seq in indexed if number in sessions]
        return found if len(found) <= MAX_MATCHES else None

    def lines(self, key: str, words: Sequence[str], compared: Sequence[str] = ()) -> Iterator[bytes]:
        match, everything = match_all(words), (*words, *compared)
        contains = _all("instr(e.folded, ?)", everything)
        if not match:
            yield from self._steps(
                f"SELECT e.seq, e.line FROM entry e WHERE e.session = ? AND e.seq < ? AND {contains} "  # noqa: S608 - constants only
                "ORDER BY e.seq DESC LIMIT ?",
                lambda before: (key, before, *everything),
            )
            return
        # Entries are indexed in their order, so all that wait are newer than those that are indexed.
        yield from self._steps(
            "SELECT e.seq, e.line FROM search_pending p CROSS JOIN entry e ON e.session = p.session AND e.seq = p.seq "  # noqa: S608 - constants only
            f"WHERE p.session = ? AND p.seq < ? AND {contains} ORDER BY p.seq DESC LIMIT ?",
            lambda before: (key, before, *everything),
        )
        for (number,) in self._query("SELECT id FROM search_session WHERE session = ?", (key,)):
            first = number << _SEQ_BITS
            yield from self._steps(
                "SELECT e.seq, e.line FROM search_text t CROSS JOIN entry e "  # noqa: S608 - constants only
                "ON e.session = ? AND e.seq = t.rowid - ? "
                f"WHERE t.search_text MATCH ? AND t.rowid >= ? AND t.rowid < ? AND {contains} "
                "ORDER BY t.rowid DESC LIMIT ?",
                lambda before, first=first: (  # type: ignore[misc]  # The default binds the session of this round.
                    *(key, first, match, first, first + min(before, 1 << _SEQ_BITS), *everything),
                ),
            )

    def _steps(self, sql: str, parameters: Callable[[int], Sequence[object]]) -> Iterator[bytes]:
        yield from _in_steps(self._query, sql, parameters)


class PostgresSearch:
    """An index of pg_trgm, where the server decides whether it is better than reading the rows of the sessions.

    That depends on the words and on the sessions. A plan for any words first collects all rows of the sessions, which
    takes most of the time in a scope with many messages.
    """

    def __init__(self, query: Query) -> None:
        self._query = query

    def has_index(self) -> bool:
        return self._query("SELECT to_regclass('entry_search') IS NOT NULL", ()) == [(True,)]

    def pending(self) -> int:
        return 0  # The server has a list of its own.

    def sample(self, places: Sequence[tuple[str, int]], words: Sequence[str]) -> tuple[int, list[int]]:
        counts = "count(*)" + ", count(*) FILTER (WHERE folded LIKE ?)" * len(words)
        keys, seqs = [key for key, _ in places], [seq for _, seq in places]
        ((size, *contain),) = self._query(
            f"SELECT {counts} FROM unnest(?::text[], ?::bigint[]) AS place (key, first) CROSS JOIN LATERAL ("  # noqa: S608 - constants only
            "SELECT folded FROM entry WHERE session = place.key AND seq >= place.first AND seq < place.first + ? "
            "ORDER BY seq LIMIT ?) AS found WHERE folded IS NOT NULL",
            (*map(_pattern, words), keys, seqs, MESSAGES_PER_PLACE, MESSAGES_PER_PLACE),
        )
        return size, contain

    def compare(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        return self._find(keys, (), (*words, *compared))

    def matches(
        self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()
    ) -> list[tuple[str, int]] | None:
        return self._find(keys, words, compared) if match_all(words) else None

    def _find(self, keys: Sequence[str], words: Sequence[str], compared: Sequence[str]) -> list[tuple[str, int]] | None:
        contains = _contain(words, compared)
        found = self._query(
            UnpreparedStatement(f"SELECT session, seq FROM entry WHERE session = ANY(?) AND {contains} LIMIT ?"),  # noqa: S608 - constants only
            (list(keys), *map(_pattern, (*words, *compared)), MAX_MATCHES + 1),
        )
        return found if len(found) <= MAX_MATCHES else None

    def lines(self, key: str, words: Sequence[str], compared: Sequence[str] = ()) -> Iterator[bytes]:
        contains = _contain(words, compared)
        yield from _in_steps(
            self._query,
            UnpreparedStatement(
                f"SELECT seq, line FROM entry WHERE session = ? AND seq < ? AND {contains} ORDER BY seq DESC LIMIT ?"  # noqa: S608 - constants only
            ),
            lambda before: (key, before, *map(_pattern, (*words, *compared))),
        )


def _all(condition: str, words: Sequence[str]) -> str:
    return " AND ".join(condition for _ in words)


def _contain(words: Sequence[str], compared: Sequence[str]) -> str:
    # The index has no values of the second expression, so the server reads the rows that it has found otherwise.
    return " AND ".join([*("folded LIKE ?" for _ in words), *("(folded || '') LIKE ?" for _ in compared)])


def _in_steps(query: Query, sql: str, parameters: Callable[[int], Sequence[object]]) -> Iterator[bytes]:
    """Yield the lines of a query for entries before a seq, a few at a time."""
    before = _NO_SEQ
    while True:
        found = query(sql, (*parameters(before), ROWS_PER_STEP))
        for _, line in found:
            yield line.encode()
        if len(found) < ROWS_PER_STEP:
            return
        before = found[-1][0]


def _pattern(word: str) -> str:
    for special in ("\\", "%", "_"):
        word = word.replace(special, f"\\{special}")
    return f"%{word}%"
