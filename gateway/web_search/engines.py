"""The formats of the search engines: how a query is sent, and where an answer has its results. Pure functions."""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from config import SearchEngine, SearchSettings
from config.settings.tools import QUERY
from gateway.conversation import Json
from gateway.text import clean, excerpt, printable
from gateway.text.json_pointer import Missing, find

BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"
TAVILY_URL = "https://api.tavily.com/search"
MAX_TITLE, MAX_SNIPPET, MAX_URL = 200, 500, 2_000

_SEARXNG_PATH = "/search"
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,500}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A GET request, or a POST request if it has a body."""

    url: str = field(repr=False)
    """The URL of a template may contain a key."""
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    title: str
    url: str
    snippet: str


def make_request(settings: SearchSettings, query: str) -> SearchRequest:
    headers = {name: value.reveal() for name, value in settings.headers.items()}
    key = settings.api_key.reveal() if settings.api_key is not None else ""
    match settings.engine:
        case SearchEngine.SEARXNG:
            base = (settings.url or "").rstrip("/").removesuffix(_SEARXNG_PATH)
            return SearchRequest(
                url=f"{base}{_SEARXNG_PATH}?{urlencode({'q': query, 'format': 'json'})}", headers=headers
            )
        case SearchEngine.BRAVE:
            parameters = urlencode({"q": query, "count": settings.max_results, "text_decorations": "false"})
            return SearchRequest(
                url=f"{settings.url or BRAVE_URL}?{parameters}", headers={"X-Subscription-Token": key, **headers}
            )
        case SearchEngine.TAVILY:
            return SearchRequest(
                url=settings.url or TAVILY_URL,
                headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers},
                body=msgspec.json.encode({"query": query, "max_results": settings.max_results}),
            )
        case _:
            return SearchRequest(url=(settings.url or "").replace(QUERY, quote(query, safe="")), headers=headers)


_PLACES = {
    SearchEngine.SEARXNG: ("/results", "/title", "/url", "/content"),
    SearchEngine.BRAVE: ("/web/results", "/title", "/url", "/description"),
    SearchEngine.TAVILY: ("/results", "/title", "/url", "/content"),
}
"""JSON Pointers: of the list in the answer, and of title, URL and snippet in a result."""


class NoResultList(ValueError):
    """The answer has no list where the results should be."""


def read_results(settings: SearchSettings, answer: Json) -> list[SearchResult]:
    """Return the results that can be shown, each URL once. Raises `NoResultList`."""
    own = (settings.results_at, settings.title_at, settings.link_at, settings.snippet_at)
    list_at, *inner = _PLACES.get(settings.engine or SearchEngine.TEMPLATE, own)
    found = find(answer, list_at)
    # Brave leaves out the whole part of an answer that has no results.
    is_missing = found is None or isinstance(found, Missing)
    if is_missing and settings.engine is SearchEngine.BRAVE and isinstance(answer, dict) and "query" in answer:
        found = []
    if not isinstance(found, list):
        raise NoResultList(list_at)
    results: dict[str, SearchResult] = {}
    for each in found:
        for result in _read(each, *inner):
            results.setdefault(result.url, result)
    return list(results.values())[: settings.max_results]


def _read(result: Json, title_at: str, url_at: str, snippet_at: str) -> Iterator[SearchResult]:
    title, url, snippet = (find(result, pointer) for pointer in (title_at, url_at, snippet_at))
    if not isinstance(url, str) or not _is_web_url(url):
        return
    shown = _plain(title, MAX_TITLE) or excerpt(url, MAX_TITLE)
    yield SearchResult(title=shown, url=url, snippet=_plain(snippet, MAX_SNIPPET))


def _is_web_url(url: str) -> bool:
    """Return whether `url` can stand in a line of its own, and `fetch_url` could read it."""
    if len(url) > MAX_URL or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def _plain(value: Json | Missing, width: int) -> str:
    """Return one line of text without markup: engines mark the words of the query."""
    if not isinstance(value, str):
        return ""
    text = html.unescape(_TAG.sub("", value[: width * 10]))
    return excerpt(printable(clean(text)), width)
