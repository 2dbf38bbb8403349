"""Finds statements by the words of a query. Pure."""

from collections.abc import Sequence

from gateway.memory.statement import Statement

MAX_QUERY_WORDS = 12
_MIN_TELLING = 4
"""Letters of a word that says something about a subject."""
_AROUND = "\"'“”„«»‘’()[]{}<>.,;:!?…¿¡。、，！？"  # noqa: RUF001 - punctuation of many scripts.


def query_words(query: str) -> tuple[str, ...]:
    """Return the words of a query without the punctuation around them, each once."""
    words = (word.strip(_AROUND) or word for word in query.casefold().split())
    return tuple(dict.fromkeys(words))[:MAX_QUERY_WORDS]


def search_statements(statements: Sequence[Statement], query: str) -> list[Statement]:
    """Return the statements with all words of a query, newest first, then those with most of the longer words.

    A query without words finds all.
    """
    words = query_words(query)
    telling = [word for word in words if len(word) >= _MIN_TELLING]
    ranked: list[tuple[int, int]] = []
    for at, statement in enumerate(statements):
        text = statement.text.casefold()
        if all(word in text for word in words):
            ranked.append((len(words) + 1, at))
        elif 2 * (count := sum(word in text for word in telling)) > len(telling):
            ranked.append((count, at))
    return [statements[at] for _, at in sorted(ranked, reverse=True)]
