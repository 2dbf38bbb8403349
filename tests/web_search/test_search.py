import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from config import SearchSettings
from gateway.conversation import Json
from gateway.doctor.finding import Level
from gateway.doctor.peers import check_search
from gateway.safe_http.client import FetchFailed
from gateway.safe_http.json_api import call_api
from gateway.web_search.engines import NoResultList, read_results
from gateway.web_search.search import SearchFailed, SearchKeyRejected, search
from tests.web_search.harness import KEY, POINTERS, RESULTS, serving_search

QUERY = "rosé & bee+50% /../?x=1#y"
SENT = {
    "searxng": {"path": "/search", "query": {"q": QUERY, "format": "json"}, "body": None, "key": None},
    "brave": {
        "path": "/",
        "query": {"q": QUERY, "count": "8", "text_decorations": "false"},
        "body": None,
        "key": KEY,
    },
    "tavily": {"path": "/", "query": {}, "body": {"query": QUERY, "max_results": 8}, "key": f"Bearer {KEY}"},
    "template": {"path": f"/find/{QUERY}", "query": {"n": "5"}, "body": None, "key": KEY},
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_each_engine_gets_its_own_request_and_its_answer_is_plain_text(kind: str) -> None:
    async with serving_search(kind) as engine:
        (found,) = await search(engine.settings(), QUERY)
    assert engine.asked == [SENT[kind]]
    assert (found.title, found.url) == ("The Rose & the bee", "https://example.org/rose")
    assert found.snippet == "A flower 2. Forged"


@pytest.mark.parametrize(
    ("kind", "answer", "sentence"),
    [
        ("tavily", (429, "{}", {"Retry-After": "29.5"}), "no more searches at the moment. Try again later."),
        ("brave", (429, "{}", {"Retry-After": "30"}), "Try again in 30 seconds."),
        ("tavily", (432, "{}", {}), "plan of the search engine's account is used up"),
        ("searxng", (403, "<html>", {}), "`json` is missing in search.formats"),
        ("template", (302, "", {"Location": "http://127.0.0.1:1/"}), "redirects to another address"),
        ("brave", (500, "", {}), r"out of order \(status 500\)"),
        ("brave", (400, "", {}), "Try other words"),
        ("searxng", (200, " <!doctype html><p>Hi", {}), "answered with an HTML page instead of JSON"),
        ("searxng", (200, '{"results": [', {}), "answered with something else instead of JSON"),
        ("searxng", (200, "[" * 100_000, {}), "something else instead of JSON"),
        ("tavily", {"results": {}}, "no list of results at /results"),
        ("template", {"hits": []}, "no list of results at /hits/list"),
        ("searxng", (200, "x" * 2_000_001, {}), "larger than 2 MB"),
        ("searxng", (200, "{}", {"Content-Encoding": "br"}), "encoding that cannot be read"),
    ],
)
async def test_a_failure_is_one_sentence_and_one_log_event(kind: str, answer: object, sentence: str) -> None:
    async with serving_search(kind, answer) as engine:
        with capture_logs() as events, pytest.raises(SearchFailed, match=sentence) as failed:
            await search(engine.settings(), "rose")
    assert not isinstance(failed.value, SearchKeyRejected)
    assert [event["event"] for event in events] == ["search_failed"]
    assert KEY not in repr(events)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("tavily", (401, json.dumps({"detail": {"error": f"Unauthorized: {KEY}"}}), {})),
        ("brave", (422, json.dumps({"error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "meta": KEY}}), {})),
        ("template", (403, KEY, {})),
    ],
)
async def test_a_rejected_key_is_for_the_operator_and_reported_by_doctor(kind: str, answer: object) -> None:
    async with serving_search(kind, answer) as engine:
        with (
            capture_logs() as events,
            pytest.raises(SearchKeyRejected, match="Only the operator can fix that") as failed,
        ):
            await search(engine.settings(), "rose")
        found = await check_search(engine.settings())
    assert events[0]["event"] == "search_key_rejected"
    assert found.level is Level.ERROR
    assert f"tools.search.{'headers' if kind == 'template' else 'api_key'}" in found.fix
    assert KEY not in f"{events!r} {failed.value} {found}"


async def test_doctor_asks_the_engine_once() -> None:
    async with serving_search("searxng") as engine:
        good = await check_search(engine.settings())
        engine.answer = {"results": []}
        empty = await check_search(engine.settings())
    assert len(engine.asked) == 2
    assert (good.level, empty.level) == (Level.OK, Level.WARNING)
    down = await check_search(engine.settings())
    assert (down.level, "cannot be reached" in down.message) == (Level.ERROR, True)


async def test_a_silent_engine_is_given_up() -> None:
    async with serving_search("searxng", asyncio.Event().wait) as engine:
        with pytest.raises(SearchFailed, match="did not answer within 1 seconds"):
            await search(engine.settings(timeout=1.0), "rose")


async def test_only_a_host_that_the_owner_configured_may_be_private() -> None:
    async with serving_search("searxng") as engine:
        assert await search(engine.settings(), "rose")
        with pytest.raises(FetchFailed, match=r"^127\.0\.0\.1 has a private address\.$"):
            await call_api(engine.url, headers={}, max_bytes=10, is_own=False)
    assert len(engine.asked) == 1


def test_a_result_that_no_tool_could_read_is_left_out_and_the_rest_is_bounded() -> None:
    settings = SearchSettings.model_validate({"engine": "tavily", "api_key": KEY, "max_results": 3})
    urls = (
        "javascript:alert(1)",
        "ftp://a.example/",
        "https://",
        "https://a.example/\n2. x",
        "https://" + "a" * 3000,
        7,
    )
    bad: list[Json] = [{"url": url} for url in urls]
    good: Json = {"title": "t" * 5000, "url": "https://a.example/1", "content": "c" * 5000}
    more: list[Json] = [{"title": None, "url": f"https://a.example/{number}"} for number in (1, 2, 3, 4)]
    found = read_results(settings, {"results": [*bad, None, good, *more]})
    assert [result.url for result in found] == [f"https://a.example/{number}" for number in (1, 2, 3)]
    assert (len(found[0].title), len(found[0].snippet)) == (200, 500)
    assert found[1].title == "https://a.example/2"


def test_an_answer_of_brave_without_web_results_is_empty() -> None:
    settings = SearchSettings.model_validate({"engine": "brave", "api_key": KEY})
    assert read_results(settings, {"query": {"original": "x"}, "type": "search"}) == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["hits", "list", "a", "name", "link", "text"]), inner)
    ),
)


@given(_JSON)
def test_any_json_is_read_or_refused(answer: object) -> None:
    settings = SearchSettings.model_validate({"engine": "template", "url": "http://a.example/{query}", **POINTERS})
    try:
        found = read_results(settings, answer)  # type: ignore[arg-type]  # hypothesis does not say what it makes.
    except NoResultList:
        return
    assert all("\n" not in f"{result.title}{result.url}{result.snippet}" for result in found)
