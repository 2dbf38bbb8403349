"""Recall: finds what was said in earlier conversations of a scope, and in others of the same person if that is allowed.

Messages with all words of the query come first, newest first. Then come those with the words that tell most: a word
tells more the fewer messages have it, so `the` hardly counts, and a query may be a whole question. Only rare words are
looked up one by one, because a message with common words alone rarely tells enough.
"""

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import aclosing
from itertools import accumulate
from math import inf
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
"""The newest messages that are read of those with a word."""
_RARE = 1_000
"""A word that more messages contain is not looked up by itself."""
_MIN_TOTAL = 160
"""In a scope with fewer messages, words weigh as if there were so many."""
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
        listed = [meta for each in searched for meta in each.listed]
        archived = [meta for each in searched for meta in each.archived]
        metas = {meta.key: meta for meta in (*listed, *archived)}
        found: dict[tuple[str, int], Hit] = {}
        rare: list[str] = []
        counts: dict[str, float] = {}

        async def look_up(some: Sequence[str], *, limit: int = _HITS_OF_WORD) -> tuple[int, bool]:
            """Add messages with some of the words. Return how many there are, and whether these are all."""
            # The index follows the trigrams of each word that it looks up through all messages that have them.
            rarest = sorted(some, key=lambda word: counts.get(word, inf))[:2]
            result = await self._sessions.search(
                listed,
                " ".join(some),
                archived=archived,
                rare=[word for word in some if word in rare] or rarest,
                counted=words,
                limit=limit,
                width=SNIPPET_WIDTH,
                max_seconds=MAX_SECONDS,
            )
            # The question itself does not count, and neither does what the agent has forgotten.
            hits = [hit for hit in result.hits if hit.turn != turn and not _is_cleared(hit, metas[hit.key])]
            found.update({(hit.key, hit.seq): hit for hit in hits})
            return len(hits), not result.stopped_early

        if len(words) == 1:
            await look_up(words, limit=2 * MAX_MESSAGES)
            return heapq.nlargest(MAX_MESSAGES, found.values(), key=lambda hit: hit.at)

        # 1. Look up the rare words one by one. A sample of the messages tells which words are common.
        long = [word for word in words if len(word) >= _MIN_WORD]
        counted = sorted(long or words, key=len, reverse=True)[:_MAX_COUNTED]
        parts = await self._sessions.frequencies([*listed, *archived], counted)
        total = max(_MIN_TOTAL, sum(meta.messages for meta in metas.values()))
        counts = {word: max(1.0, parts.get(word, 0) * total) for word in counted}
        rare = [word for word in counted if counts[word] <= _RARE]
        complete: set[str] = set()
        for word in rare:
            count, is_complete = await look_up([word])
            if is_complete or not count:  # If its time was over, another search would not find the word either.
                complete.add(word)
                counts[word] = max(1, count)
            else:
                counts[word] = max(counts[word], count)

        weights = {word: logarithm(max(1.0, total / counts[word])) for word in counted}
        needed = _MIN_SCORE * sum(weights.values())
        scores: dict[tuple[str, int], float] = {}

        def rank() -> list[Hit]:
            """Return the messages with all words, then those with enough of their weight."""
            scores.update({place: sum(weights.get(word, 0) for word in hit.found) for place, hit in found.items()})
            good = [hit for place, hit in found.items() if len(hit.found) == len(words) or scores[place] >= needed]
            ranked = sorted(
                good, key=lambda hit: (len(hit.found) == len(words), scores[hit.key, hit.seq], hit.at), reverse=True
            )
            return ranked[:MAX_MESSAGES]

        # 2. Look up the fewest words that weigh enough together, at least two. If all messages with them are found, so
        # are those with more words. Messages of which all words weigh too little are not looked for.
        others = sorted((word for word in counted if word not in complete), key=lambda word: -weights[word])
        least = bisect_left(list(accumulate(weights[word] for word in others)), needed) + 1
        if least > len(others) or (complete and len(rank()) == MAX_MESSAGES):
            return rank()
        fewest = min(max(least, 2), len(others))
        count, is_complete = await look_up(others[:fewest])
        if is_complete:
            if not count and least < fewest and others[0] not in rare:
                await look_up(others[:1])
            return rank()
        # 3. There are more, and the newest need not be those with more words. Look up all words, and then fewer.
        if not complete:
            count, _ = await look_up(words, limit=2 * MAX_MESSAGES)
            if count >= MAX_MESSAGES:
                return rank()
            if len(others) == len(words):
                others.pop()
        while len(others) > fewest and not (await look_up(others))[0]:
            others.pop()
        return rank()


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
