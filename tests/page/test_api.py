"""The API in a browser: a page of our own origin follows a session with EventSource, and the documentation renders."""

import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.page.conftest import shoot
from tests.page.daemon import Daemon
from tests.page.harness import holds

Json = dict[str, Any]

FOLLOW = """async (id) => {
    window.events = [];
    window.opened = 0;
    window.source = new EventSource(`/api/sessions/${id}/events`);
    window.source.onopen = () => window.opened++;
    for (const name of ['message', 'delta', 'text', 'turn', 'status', 'title', 'gone']) {
        window.source.addEventListener(name, (event) => {
            window.events.push({ name, id: event.lastEventId, data: JSON.parse(event.data) });
        });
    }
}"""
FETCH = """async ([method, path, body]) => {
    const headers = { 'Content-Type': 'application/json' };
    const response = await fetch(path, { method, headers, body: JSON.stringify(body) });
    return await response.json();
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    await daemon.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(daemon: Daemon) -> str:
    return await daemon.start()


async def call(page: Page, method: str, path: str, body: Json) -> Json:
    """Call the API from the page, which is signed in by its cookie."""
    found: Json = await page.evaluate(FETCH, [method, path, body])
    return found


async def ended(page: Page, turns: int) -> list[Json]:
    """Wait until the page knows that so many turns have ended, and return its events."""
    count = "window.events.filter((event) => event.name === 'turn').length"
    await holds(page, f"{count} >= {turns}")
    assert await page.evaluate(count) == turns
    found: list[Json] = await page.evaluate("window.events")
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_an_event_source_goes_on_after_a_restart(page: Page, daemon: Daemon, how: signal.Signals) -> None:
    session = await call(page, "POST", "/api/sessions", {"title": "From a browser"})
    await page.evaluate(FOLLOW, session["id"])
    await holds(page, "window.opened === 1")
    prompt = f"/api/sessions/{session['id']}/prompt"
    await call(page, "POST", prompt, {"text": "What can you do?"})
    events = await ended(page, 1)
    pieces = "".join(event["data"]["text"] for event in events if event["name"] == "delta")
    messages = [event["data"] for event in events if event["name"] == "message"]
    assert [message["role"] for message in messages] == ["user", "agent"]
    assert messages[-1]["content"]["text"] == pieces

    await daemon.stop(how)
    await holds(page, "window.source.readyState === EventSource.CONNECTING")
    await daemon.start()
    # The page has not reconnected yet, or just now. It gets this either way.
    await call(page, "POST", prompt, {"text": "What time is it?"})
    events = await ended(page, 2)
    assert await page.evaluate("window.opened") >= 2
    ids = Counter(event["id"] for event in events if event["name"] in ("message", "turn"))
    assert all(times == 1 for times in ids.values()), events
    texts = [event["data"]["content"] for event in events if event["name"] == "message"]
    stored = await call(page, "PATCH", f"/api/sessions/{session['id']}", {"title": "Read"})
    assert stored["messageCount"] == len([each for each in texts if each["type"] == "text"])
    asked = [e["data"]["content"]["text"] for e in events if e["name"] == "message" and e["data"]["role"] == "user"]
    assert asked == ["What can you do?", "What time is it?"]
    await holds(page, "window.events.some((event) => event.name === 'title')")


async def test_an_event_source_waits_for_a_gateway_that_starts(page: Page, daemon: Daemon) -> None:
    """A browser gives up for good if it gets an error instead of a stream."""
    session = await call(page, "POST", "/api/sessions", {})
    await page.evaluate(FOLLOW, session["id"])
    await holds(page, "window.opened === 1")
    for restarts in range(2, 5):
        await daemon.stop(signal.SIGKILL)
        await daemon.start()
        await holds(page, f"window.opened >= {restarts}")
    await call(page, "DELETE", f"/api/sessions/{session['id']}?permanent=true", {})
    await holds(page, "window.events.some((event) => event.name === 'gone')")
    # The session is not found any more, so that the browser stops asking for it.
    await holds(page, "window.source.readyState === EventSource.CLOSED")


async def test_the_documentation_renders(browser: Browser, daemon: Daemon, page_url: str) -> None:
    """Without a sign-in, on a wide and on a narrow screen, without an error or a request to elsewhere."""
    assert page_url
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    problems: list[str] = []
    requested: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text))
    page.on("request", lambda request: requested.append(request.url))
    await page.goto(f"{daemon.url}api/docs")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Gatehouse API")
    await expect(page.locator("#sendPrompt h3")).to_have_text("POST /api/sessions/{id}/prompt")
    await expect(page.locator("section.operation").first).to_have_css("border-radius", "8px")
    links: list[str] = await page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.hash)")
    missing = await page.evaluate("(links) => links.filter((link) => !document.querySelector(link))", links)
    assert len(links) > 50
    assert missing == []
    await shoot(page, "api-docs")
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    await shoot(page, "api-docs-narrow")
    assert set(requested) == {f"{daemon.url}api/docs", f"{daemon.url}api/docs.css"}
    assert problems == []
