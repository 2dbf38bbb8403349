"""Finds statements by the words of a query."""

from gateway.memory import Statement
from gateway.memory.search import MAX_QUERY_WORDS, query_words, search_statements

STATEMENTS = [
    Statement(text=text) for text in ("Ada lives in Lisbon.", "Bob likes tea.", "Ada likes the tea of Lisbon.")
]


def found(query: str) -> list[str]:
    return [statement.text for statement in search_statements(STATEMENTS, query)]


def test_the_words_of_a_query_lose_their_punctuation_and_are_there_once() -> None:
    assert query_words('Where is "Lisbon", Lisbon?  ...') == ("where", "is", "lisbon", "...")
    assert len(query_words(" ".join(map(str, range(100))))) == MAX_QUERY_WORDS


def test_statements_with_all_words_come_first_and_the_newest_of_them_before_the_others() -> None:
    assert found("lisbon ADA") == ["Ada likes the tea of Lisbon.", "Ada lives in Lisbon."]
    assert found("likes") == ["Ada likes the tea of Lisbon.", "Bob likes tea."]


def test_a_question_finds_statements_with_most_of_its_longer_words() -> None:
    assert found("who lives in Lisbon?") == ["Ada lives in Lisbon."]
    assert found("does anybody have a bicycle?") == []


def test_an_empty_query_finds_everything() -> None:
    assert len(found("")) == len(STATEMENTS)
