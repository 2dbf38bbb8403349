"""Recall: finds what was said in earlier conversations of a scope, and in others of the same person if that is allowed.

Messages with all words of the query come first, newest first. Then come those with the words that tell most: a word
tells more the fewer messages have it, so `the` hardly counts, and a query may be a whole question.
"""

import asyncio
import heapq
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from math import log as logarithm
from typing import NamedTuple

import structlog

from gateway.access.rules import Live
from gateway.agent.tools import FoundMessage, FoundStatement, Recalled
from gateway.errors import Refused
from gateway.memory.search import query_words, search_statements
from gateway.memory.shared import SharedMemory
from gateway.memory.store import memory_folder
from gateway.routing import channel_of, linked_scopes
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions.session import meta_of
from gateway.sessions.storage.search import Hit
from gateway.spool import SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_MESSAGES = 10
SNIPPET_WIDTH = 300
MAX_SESSIONS = 1_000
"""Sessions that are searched of each scope, the archived ones included."""
MAX_SECONDS = 2.0
"""For each search. A query with several words may need more than one."""

_MAX_COUNTED = 6
"""Words that are looked up one by one, the longest."""
_MIN_WORD = 3
"""Letters of a word that can be looked up quickly."""
_HITS_OF_WORD = 40
_COMMON = 4 * _HITS_OF_WORD
"""How many messages are assumed to have a word that more than `_HITS_OF_WORD` have."""
_MIN_SCORE = 0.4
"""The part of the weight of all words that a message needs."""


class _Searched(NamedTuple):
    """The sessions of a scope. `channel` is empty for the scope of the turn itself."""

    channel: str
    listed: list[SessionMeta]
    archived: list[SessionMeta]


class Recall:
    """Searches the memory and the sessions of a scope. Which scopes those are depends on the scope of a turn alone."""

    def __init__(self, live: Live, sessions: SessionManager, memory: SharedMemory) -> None:
        self._live = live
        self._sessions = sessions
        self._memory = memory

    async def find(self, scope: str, turn: str, query: str) -> Recalled:
        """Return what is known about the `query` in a scope, without the messages of a turn."""
        scopes = [scope]
        if self._live.settings.session.recall_linked:
            scopes += linked_scopes(self._live.settings, scope)
        statements: list[FoundStatement] = []
        searched: list[_Searched] = []
        for each in scopes:
            channel = "" if each == scope else channel_of(each)
            statements += await self._statements(each, channel, query)
            searched.append(await self._sessions_of(each, channel))
        words = query_words(query)
        hits = await self._search(searched, words, turn) if words else []
        places = {meta.key: each for each in searched for meta in (*each.listed, *each.archived)}
        return Recalled(
            statements=tuple(statements),
            messages=tuple(_found(hit, places[hit.key].channel) for hit in hits),
        )

    async def _statements(self, scope: str, channel: str, query: str) -> list[FoundStatement]:
        folder = memory_folder(self._live.settings.gateway.data_dir, scope)
        try:
            known = await self._memory.statements(scope, folder)
        except (OSError, Refused, SpoolUnavailable) as error:  # The conversations can be searched all the same.
            log.warning("memory_unusable", reason=str(error))
            return []
        found = await asyncio.to_thread(search_statements, known, query)
        return [FoundStatement(statement=each, channel=channel) for each in found]

    async def _sessions_of(self, scope: str, channel: str) -> _Searched:
        if channel:  # Another node of a cluster may own it, so the storage tells.
            async with aclosing(self._sessions.everywhere(scope)) as scopes:
                listed = [meta_of(key, found.sessions[key]) async for found in scopes for key in found.ordered_sessions]
        else:
            listed = self._sessions.last_used(scope)
        archived = [session.meta for session in await self._sessions.archive.list(scope)]
        listed = listed[:MAX_SESSIONS]
        return _Searched(channel, listed, archived[: MAX_SESSIONS - len(listed)])

    async def _search(self, searched: Sequence[_Searched], words: Sequence[str], turn: str) -> list[Hit]:
        """Return the best hits, each message once."""
        metas = {meta.key: meta for each in searched for meta in (*each.listed, *each.archived)}
        listed = [meta for each in searched for meta in each.listed]
        archived = [meta for each in searched for meta in each.archived]
        long = [word for word in words if len(word) >= _MIN_WORD]
        counted = sorted(long or words, key=len, reverse=True)[:_MAX_COUNTED]
        find = partial(self._sessions.search, listed, archived=archived, counted=counted, width=SNIPPET_WIDTH)

        def usable(hits: Sequence[Hit]) -> list[Hit]:
            """Leave out the question itself, and what the agent has forgotten."""
            return [hit for hit in hits if hit.turn != turn and not _is_cleared(hit, metas[hit.key])]

        found = await find(" ".join(words), limit=2 * MAX_MESSAGES, max_seconds=MAX_SECONDS)
        best = usable(found.hits)
        if len(best) >= MAX_MESSAGES or len(words) < 2:  # noqa: PLR2004 - one word has no parts.
            return heapq.nlargest(MAX_MESSAGES, best, key=lambda hit: hit.at)
        known = {(hit.key, hit.seq) for hit in best}
        others: dict[tuple[str, int], Hit] = {}
        counts: dict[str, int] = {}

        async def look_up(some: Sequence[str]) -> int:
            result = await find(" ".join(some), limit=_HITS_OF_WORD, max_seconds=MAX_SECONDS)
            hits = usable(result.hits)
            others.update({(hit.key, hit.seq): hit for hit in hits if (hit.key, hit.seq) not in known})
            return _COMMON if result.stopped_early else len(hits)

        for word in counted:
            counts[word] = await look_up([word])
        # The newest messages with common words need not be those with several of them.
        common = [word for word in counted if counts[word] == _COMMON]
        for size in range(len(common), 1, -1):
            if await look_up(common[:size]):
                break
        total = max(_COMMON, *(meta.messages for meta in metas.values())) if metas else 1
        weights = {word: logarithm(1 + total / max(1, counts[word])) for word in counted}
        needed = _MIN_SCORE * sum(weights.values())
        scores = {place: sum(weights[word] for word in hit.found) for place, hit in others.items()}
        good = [hit for place, hit in others.items() if scores[place] >= needed]
        good.sort(key=lambda hit: (scores[hit.key, hit.seq], hit.at), reverse=True)
        return [*sorted(best, key=lambda hit: hit.at, reverse=True), *good][:MAX_MESSAGES]


def _is_cleared(hit: Hit, session: SessionMeta) -> bool:
    """Return whether the agent has forgotten a message: it is older than the last `/clear` of its session."""
    return session.messages == 0 if session.first == 0 else hit.seq < session.first


def _found(hit: Hit, channel: str) -> FoundMessage:
    return FoundMessage(
        session=hit.number,
        is_archived=hit.is_archived,
        channel=channel,
        at=hit.at,
        role=hit.role,
        text=hit.snippet,
    )
