"""The console with a real daemon: each view, wide and narrow, by keyboard, and that nothing of what it shows runs."""

import asyncio
import csv
import dataclasses
import io
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import pytest_asyncio
import structlog
from msgspec.structs import replace
from playwright.async_api import Browser, BrowserContext, Page, expect

from gateway.admin_api.replies import MARK
from gateway.contract import Sender, TokenScope
from gateway.spool import MarkDead
from tests.page.conftest import shoot
from tests.page.console import ANSWER, EVIL, PROMPT, TITLE, Console, Speaker, console
from tests.page.daemon import Daemon as DaemonOfPage
from tests.polling import until
from tests.spool.samples import send

TOOLS = Path(os.environ.get("GATEHOUSE_PAGE_TOOLS") or Path(__file__).parents[2] / ".venv/page-tools")
AXE = TOOLS / "node_modules/axe-core/axe.min.js"
VIEWS = ("overview", "sessions", "people", "agents", "schedules", "usage", "logs", "settings", "system")
SIZES = {"wide": (1280, 860), "tablet": (800, 1100), "narrow": (390, 844)}


@pytest_asyncio.fixture(loop_scope="session")
async def shown(tmp_path: Path) -> AsyncIterator[Console]:
    async with console(tmp_path) as found:
        yield found


@asynccontextmanager
async def opened(browser: Browser, link: str, **options: object) -> AsyncIterator[Page]:
    """Open the console. Any error in its code, or on the browser's console, fails the test."""
    context: BrowserContext = await browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})  # type: ignore[arg-type]  # Options of playwright.
    page = await context.new_page()
    page.set_default_timeout(30_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type in {"error", "warning"} else None)
    await page.goto(link)
    yield page
    assert await page.evaluate("document.body.dataset.hacked") is None
    await context.close()
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session")
async def owner(browser: Browser, shown: Console) -> AsyncIterator[Page]:
    async with opened(browser, shown.link()) as page:
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        yield page


async def visit(page: Page, path: str) -> None:
    await page.evaluate("path => { location.hash = `#/${path}`; }", path)
    await expect(page.locator(".view > .fine", has_text="Loading…")).to_have_count(0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_is_accessible_and_fits(browser: Browser, shown: Console, size: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: tests/page/install_tools.sh")
    axe = await asyncio.to_thread(AXE.read_text)
    width, height = SIZES[size]
    session = await shown.session_with("rocket")
    async with opened(browser, shown.link(), viewport={"width": width, "height": height}, color_scheme=scheme) as page:
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        problems: list[tuple[str, str, str]] = []
        for view in (*VIEWS, f"sessions/{session}"):
            await visit(page, view)
            await expect(page.locator(".panel, .window-row a, .message").first).to_be_visible()
            await shoot(page, f"console-{view.partition('/')[0] if '/' not in view else 'transcript'}-{size}-{scheme}")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            await page.evaluate(axe)
            found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            problems += [(view, each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
        assert problems == []


async def test_the_overview_follows_what_happens(owner: Page, shown: Console) -> None:
    await expect(owner.locator(".readiness")).to_contain_text("Ready")
    await expect(owner.locator(".turn")).to_contain_text("Waits for approval: launch")
    await expect(owner.locator(".log-line")).to_contain_text("pump_failed")
    await expect(owner.get_by_role("link", name="2 things")).to_be_visible()
    (question,) = shown.daemon.approvals.open_questions.values()
    path = f"/api/sessions/{await shown.session_with('rocket')}/approvals/{question.id}"
    status, told = await shown.owner.call("POST", path, {"decision": "deny"})
    assert status == 200, told
    await expect(owner.get_by_text("Nothing is running.")).to_be_visible()


async def test_sessions_are_found_and_read(owner: Page, shown: Console) -> None:
    await visit(owner, "sessions")
    await expect(owner.locator(".session-row")).to_have_count(3)
    await owner.get_by_label("Words of the title").fill("kitchen")
    await expect(owner.locator(".session-row")).to_have_count(1)
    await owner.get_by_label("Words of the title").fill("")
    await owner.get_by_label("Person or chat").fill("BOB")
    await expect(owner.locator(".session-title")).to_have_text(["Start the rocket, please"])
    await owner.get_by_label("Person or chat").fill("")
    await owner.get_by_label("Search in messages").fill("hallway")
    await expect(owner.locator(".hit")).to_contain_text("hallway")
    await owner.locator(".hits a").click()
    await expect(owner.locator(".message.user .said")).to_have_text(PROMPT)
    await expect(owner.locator(".message.agent .said")).to_have_text(ANSWER)
    await expect(owner.locator(".message.agent")).to_contain_text("1,200 in, 340 out")
    link = await owner.locator(".message.agent .permalink").get_attribute("href")
    assert link == f"#/sessions/{await shown.session_with('kitchen')}/{link.rpartition('/')[2]}" if link else False
    await owner.get_by_role("link", name="All sessions").click()
    await expect(owner.locator(".session-row")).to_have_count(3)


async def test_a_running_answer_is_followed_and_stopped(owner: Page, shown: Console) -> None:
    """Who reads its end keeps that in view, and who has scrolled up keeps what is there."""
    speaker = Speaker()
    shown.daemon.agents.replace("main", lambda agent: dataclasses.replace(agent, provider=speaker))
    ada = Sender(id="cy", name=f"Cy {EVIL}", is_owner=True)
    await shown.loopback.say("Tell me a story", peer="cy", sender=ada)
    speaker.say("Once upon a time. " * 400)
    await until(lambda: shown.daemon.lanes.is_busy("agent:main:loopback:direct:cy"))
    await visit(owner, f"sessions/{await shown.session_with('story')}")
    await expect(owner.locator(".message.user .message-head b")).to_have_text(ada.name)
    frame, draft = owner.locator("#content"), owner.locator(".draft")
    await expect(draft).to_contain_text("Once upon a time.")
    await owner.get_by_role("button", name="To the end").click()
    speaker.say("There was a king. " * 400)
    await expect(draft).to_contain_text("There was a king.")
    below = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    assert await frame.evaluate(below) < 2
    await frame.evaluate("node => { node.scrollTop = 300; }")
    speaker.say("He had a daughter. " * 400)
    await expect(draft).to_contain_text("He had a daughter.")
    assert await frame.evaluate("node => node.scrollTop") == 300
    await owner.get_by_role("button", name="Actions").click()
    await owner.get_by_role("menuitem", name="Stop", exact=True).click()
    await expect(owner.locator(".message.system .said")).to_have_text("Stopped by owner.")
    await expect(owner.locator(".transcript-head .badge")).to_have_text("Open")


async def test_a_turn_is_stopped_from_the_overview_by_keyboard(owner: Page, shown: Console) -> None:
    """The list is drawn again every two seconds, for the age of the turns. The focus stays in it."""
    stop = owner.locator(".turn").get_by_role("button", name="Stop")
    await stop.focus()
    age = await owner.locator(".turn-state").text_content()
    await expect(owner.locator(".turn-state")).not_to_have_text(age or "")
    await expect(stop).to_be_focused()
    await owner.keyboard.press("Enter")
    await expect(owner.get_by_text("Nothing is running.")).to_be_visible()
    assert not shown.daemon.approvals.open_questions


async def test_a_text_is_found_in_a_transcript(owner: Page, shown: Console) -> None:
    await visit(owner, f"sessions/{await shown.session_with('kitchen')}")
    await owner.get_by_label("Search in this session").fill("SENSOR reports")
    await owner.keyboard.press("Enter")
    await expect(owner.locator(".message.found .said")).to_have_text(ANSWER)
    marked = "[...CSS.highlights.get('found-text')].map(range => range.toString())"
    assert await owner.evaluate(marked) == ["sensor reports"]
    await owner.get_by_label("Search in this session").fill("no such words")
    await owner.keyboard.press("Enter")
    await expect(owner.locator(".search-inside [role=status]")).to_have_text("0 / 0")
    assert await owner.evaluate("CSS.highlights.has('found-text')") is False


async def test_an_owner_answers_renames_and_deletes_a_session(owner: Page, shown: Console) -> None:
    await visit(owner, f"sessions/{await shown.session_with('router')}")
    await expect(owner.get_by_role("heading", name="Fix the router")).to_have_text(TITLE[:80])
    await owner.get_by_label("Answer in the place of the agent").last.fill("It works again.")
    await owner.get_by_role("button", name="Send as a person").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Send as a person").click()
    await expect(owner.locator(".message.agent .said").last).to_have_text(f"It works again.\n\n{MARK}")
    await owner.get_by_role("button", name="Actions").click()
    await owner.get_by_role("menuitem", name="Rename").click()
    await owner.get_by_label("Title").fill("The router")
    await owner.get_by_role("button", name="Save").click()
    await expect(owner.get_by_role("heading", name="The router")).to_be_visible()
    await owner.get_by_role("button", name="Actions").click()
    await owner.get_by_role("menuitem", name="Delete").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(owner.locator(".session-row")).to_have_count(2)


async def test_a_question_is_approved_and_the_transcript_follows(browser: Browser, owner: Page, shown: Console) -> None:
    """Two browsers at once: one decides, and the other sees it."""
    async with opened(browser, shown.link()) as other:
        await expect(other.get_by_text("Live", exact=True)).to_be_visible()
        await visit(other, f"sessions/{await shown.session_with('rocket')}")
        await expect(other.locator(".message .badge", has_text="Running")).to_be_visible()
        await visit(owner, "people")
        asked = owner.get_by_role("article", name="launch")
        await expect(asked.locator("pre")).to_contain_text(EVIL.replace('"', '\\"'))
        await asked.get_by_role("button", name="Approve").click()
        await expect(owner.get_by_text("No agent waits for an answer.")).to_be_visible()
        await other.locator("summary", has_text="launch").click()
        await expect(other.locator(".call pre").last).to_have_text(f"launched at {EVIL}")
        await expect(other.locator(".message.agent .said").last).to_have_text("Done.")


async def test_people_are_approved_and_revoked(owner: Page, shown: Console) -> None:
    await visit(owner, "people")
    waiting = owner.locator("section", has_text="People who ask for access").get_by_role("row", name="Eve")
    await waiting.get_by_label("Role").select_option("guest")
    await waiting.get_by_role("button", name="Approve").click()
    row = owner.get_by_role("group", name="Approved people").get_by_role("row", name="Eve")
    await expect(row.get_by_label("Role")).to_have_value("guest")
    await row.get_by_role("button", name="Revoke").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(owner.get_by_role("group", name="People without access any more")).to_contain_text("Eve")
    assert [guest.name for guest in shown.daemon.live.guest_book.guests.values()] == ["Carol"]


async def test_a_tool_is_tried(owner: Page) -> None:
    await visit(owner, "agents")
    await owner.locator("summary", has_text="launch").click()
    await owner.get_by_label("Arguments as JSON").fill("[1]")
    await owner.get_by_role("button", name="Try it").click()
    await expect(owner.get_by_text("These arguments are not a JSON object.")).to_be_visible()
    await owner.get_by_label("Arguments as JSON").fill('{"target": "pad 7"}')
    await owner.get_by_role("button", name="Try it").click()
    await expect(owner.locator(".call pre").last).to_have_text("launched at pad 7")


async def test_a_schedule_is_run_paused_and_deleted(owner: Page) -> None:
    await visit(owner, "schedules")
    plan = owner.get_by_role("region", name="Look at the oven")
    await expect(plan).to_contain_text("Active")
    await plan.get_by_role("button", name="Pause").click()
    await expect(plan).to_contain_text("Paused")
    await plan.get_by_role("button", name="Resume").click()
    await plan.get_by_role("button", name="Run now").click()
    await plan.locator("summary").click()
    await expect(plan.get_by_role("group", name="Last runs")).to_be_visible()
    await plan.get_by_role("button", name="Delete").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(owner.get_by_text("There are no schedules.")).to_be_visible()


async def test_usage_is_plotted_and_exported(owner: Page) -> None:
    await visit(owner, "usage")
    plot = owner.get_by_role("img", name="Tokens")
    await expect(plot.locator("rect")).not_to_have_count(0)
    tallest = await plot.evaluate(
        "node => Math.min(...[...node.querySelectorAll('rect')].map(each => each.getBBox().y))"
    )
    assert tallest >= 12
    await owner.get_by_label("Unit").select_option("cost")
    await expect(owner.get_by_role("img", name="Cost")).to_be_visible()
    await owner.get_by_role("combobox", name="Group by").select_option("model")
    await expect(owner.locator(".legend")).to_contain_text("gpt-5.4")
    await owner.get_by_role("combobox", name="Group by").select_option("agent")
    await expect(owner.locator(".legend li")).to_contain_text(["Unknown", "main", "coder"])
    async with owner.expect_download() as download:
        await owner.get_by_role("button", name="Save as CSV").click()
    text = await asyncio.to_thread((await (await download.value).path()).read_text)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {"day", "person", "agent", "model", "costMicros"} <= rows[0].keys()
    assert f"web:{EVIL}" in {row["person"] for row in rows}


async def test_the_log_runs_along_and_dead_letters_are_handled(owner: Page, shown: Console) -> None:
    await visit(owner, "logs")
    await expect(owner.locator(".log-line", has_text="pump_failed")).to_contain_text(EVIL)
    structlog.get_logger().warning("valve_stuck", where=EVIL)
    await expect(owner.locator(".log-line", has_text="valve_stuck")).to_be_visible()
    await owner.get_by_label("Contains").fill("valve")
    await expect(owner.locator(".log-line", has_text="pump_failed")).to_have_count(0)
    await owner.get_by_role("row", name="parcel").get_by_role("button", name="Drop").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Drop").click()
    await owner.get_by_role("row", name="Here it is").get_by_role("button", name="Retry").click()
    await expect(owner.get_by_text("Every message was answered")).to_be_visible()
    while not (await shown.loopback.hear_message()).text.startswith("Here it is"):
        pass


async def test_new_dead_letters_show_at_once_and_all_are_dropped(owner: Page, shown: Console) -> None:
    await visit(owner, "logs")
    await expect(owner.get_by_role("row", name="parcel")).to_be_visible()
    gone = MarkDead(key="k2", reason="The bot was blocked.")
    await shown.daemon.spool.commit(send("k2", "Good evening.", datetime.now(UTC)), gone)
    await expect(owner.get_by_role("row", name="Good evening.")).to_contain_text("The bot was blocked.")
    await owner.locator(".for-all").get_by_role("button", name="Drop").click()
    await owner.get_by_role("dialog").get_by_role("button", name="Drop").click()
    await expect(owner.get_by_text("Every message was answered")).to_be_visible()


async def test_a_setting_is_previewed_and_applied(owner: Page, shown: Console) -> None:
    await visit(owner, "settings")
    await owner.get_by_role("searchbox", name="Search").fill("tokens_per_turn")
    await owner.get_by_label("limits.tokens_per_turn").fill("123456")
    await owner.get_by_label("limits.tokens_per_turn").press("Tab")
    await expect(owner.get_by_text("1 change", exact=True)).to_be_visible()
    await owner.get_by_role("button", name="Preview").click()
    await expect(owner.get_by_role("dialog").locator(".removed")).to_have_text(
        ["--- before\n", "-tokens_per_turn = 200000\n"]
    )
    await expect(owner.get_by_role("dialog").locator(".added").last).to_have_text("+tokens_per_turn = 123456\n")
    await owner.get_by_role("dialog").get_by_role("button", name="Apply").click()
    await expect(owner.get_by_text("The changes are in effect.")).to_be_visible()
    assert shown.daemon.live.settings.limits.tokens_per_turn == 123456
    await owner.get_by_role("searchbox", name="Search").fill("http.token")
    await expect(owner.locator(".setting input")).to_have_count(0)


async def test_the_doctor_and_a_backup(owner: Page, shown: Console) -> None:
    await asyncio.to_thread((shown.home / "data/http.token").chmod, 0o644)
    await visit(owner, "system")
    await owner.get_by_role("button", name="Check", exact=True).click()
    await expect(owner.locator(".findings li", has_text="permissions")).to_be_visible()
    await owner.get_by_role("button", name="Repair what can be repaired").click()
    await expect(owner.get_by_text("1 problem repaired.")).to_be_visible()
    async with owner.expect_download() as download:
        await owner.get_by_role("button", name="Download a backup").click()
    assert (await download.value).suggested_filename.endswith(".tar")


async def test_everything_can_be_reached_by_keyboard(browser: Browser, shown: Console) -> None:
    async with opened(browser, shown.link(), viewport={"width": 390, "height": 844}) as page:
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Show the views")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="Sessions", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("navigation", name="Views")).to_be_hidden()
        await page.locator(".session-row", has_text="rocket").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".message.user")).to_be_visible()


async def test_a_program_with_admin_signs_in_and_is_shut_out(browser: Browser, shown: Console) -> None:
    admin = await shown.owner.token_for(TokenScope.ADMIN)
    reader = await shown.owner.token_for(TokenScope.READ)
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(shown.url)
    field = page.get_by_label("Or an API token with the scope admin")
    for token, problem in (("gh_wrong", "This token is wrong"), (reader.token, "lacks the scope admin")):
        await field.fill(token)
        await page.get_by_role("button", name="Use this token").click()
        await expect(page.get_by_role("alert").last).to_contain_text(problem)
    await field.fill(admin.token)
    await page.get_by_role("button", name="Use this token").click()
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await visit(page, "sessions")
    await expect(page.locator(".session-row")).to_have_count(3)
    (name,) = [token.id for token in shown.daemon.live.token_book.tokens.values() if TokenScope.ADMIN in token.scopes]
    await shown.daemon.tokens.revoke(name)
    await expect(page.get_by_text("Your access has ended.")).to_be_visible()
    await expect(page.locator(".session-row")).to_have_count(0)
    await context.close()


async def test_the_console_calls_nothing_but_the_api_of_programs(browser: Browser, shown: Console) -> None:
    """A token gets everything that the page shows, and each of its requests is an operation that is documented."""
    admin = await shown.owner.token_for(TokenScope.ADMIN)
    _, document = await shown.owner.call("GET", "/api/openapi.json")
    documented = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in document["paths"]]
    session = await shown.session_with("rocket")
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(shown.url)
    await page.get_by_label("Or an API token with the scope admin").fill(admin.token)
    called: set[str] = set()
    page.on("request", lambda request: called.add(urlsplit(request.url).path))
    await page.get_by_role("button", name="Use this token").click()
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    for view in (*VIEWS, f"sessions/{session}"):
        await visit(page, view)
        await expect(page.locator(".panel, .window-row a, .message").first).to_be_visible()
    assert await context.cookies() == []
    await context.close()
    answers = {path for path in called if not re.search(r"\.(js|css|svg)$", path)}
    assert {"/api/events", "/api/sessions", "/api/settings", f"/api/sessions/{session}/events"} <= answers
    assert [path for path in answers if not any(each.fullmatch(path) for each in documented)] == []


async def test_a_session_is_closed_exported_archived_and_brought_back(owner: Page, shown: Console) -> None:
    await visit(owner, f"sessions/{await shown.session_with('kitchen')}")
    status = owner.locator(".transcript-head .badge")

    async def choose(name: str) -> None:
        await owner.get_by_role("button", name="Actions").click()
        await owner.get_by_role("menuitem", name=name, exact=True).click()

    await choose("Close")
    await expect(status).to_have_text("Closed")
    await choose("Open again")
    await expect(status).to_have_text("Open")
    async with owner.expect_download() as download:
        await choose("Export as markdown")
    assert "hallway sensor" in await asyncio.to_thread((await (await download.value).path()).read_text)
    await choose("Archive")
    await expect(owner.locator(".session-row")).to_have_count(2)
    await owner.get_by_label("Archived").check()
    await owner.locator(".session-row", has_text="kitchen").get_by_role("button", name="Bring back").click()
    await expect(owner.locator(".message.user .said")).to_have_text(PROMPT)


async def test_a_hundred_thousand_sessions_scroll(owner: Page, shown: Console) -> None:
    daemon = shown.daemon
    index = daemon.sessions._store.index  # noqa: SLF001 - starting so many sessions would take long.
    state = index.require(next(meta.key for scope in daemon.sessions.scopes() for meta in daemon.sessions.list(scope)))
    for number in range(100_000):
        title = f"Session number {number}"
        created = state.created_at - timedelta(seconds=number + 1)
        copy = replace(state, id=str(UUID(int=number)), title=title, created_at=created)
        index.update(f"agent:main:loopback:direct:p{number}", copy)
    await visit(owner, "sessions")
    await expect(owner.get_by_text("100,003 sessions")).to_be_visible()
    window = owner.get_by_role("region", name="Sessions")
    for share, number in ((1, 99_999), (0.5, 50_000), (0, 1)):
        await window.evaluate("(node, share) => { node.scrollTop = node.scrollHeight * share; }", share)
        await expect(owner.locator(".session-title", has_text=f"Session number {number}").first).to_be_visible()
        assert await owner.locator(".window-row").count() < 60
    last = owner.locator(".window-row").last
    assert await last.get_attribute("aria-setsize") == "100003"
    places = await owner.locator(".window-row").evaluate_all("nodes => nodes.map(each => Number(each.dataset.at))")
    assert places == sorted(places)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_console_survives_a_restart_of_the_daemon(
    browser: Browser, tmp_path: Path, how: signal.Signals
) -> None:
    daemon = DaemonOfPage(tmp_path)
    link = (await daemon.start()).replace("/#", "/console#")
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(link)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await visit(page, "logs")
    await daemon.stop(how)
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await daemon.start()
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await visit(page, "sessions")
    await expect(page.get_by_text("0 sessions")).to_be_visible()
    await context.close()
    await daemon.stop()


async def test_the_chat_page_leads_to_the_console(browser: Browser, shown: Console) -> None:
    async with opened(browser, shown.link().replace("/console", "/")) as page:
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Console").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.get_by_role("link", name="Chat", exact=True).click()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()


async def test_the_console_speaks_german(browser: Browser, shown: Console) -> None:
    async with opened(browser, shown.link(), locale="de-DE") as page:
        await expect(page.get_by_role("heading", name="Überblick")).to_be_visible()
        for view in VIEWS:
            await visit(page, view)
            await expect(page.locator(".panel, .window-row a").first).to_be_visible()
        assert await page.evaluate("document.documentElement.lang") == "de"


async def test_the_console_paints_fast_and_is_small(owner: Page) -> None:
    await owner.reload()
    await expect(owner.get_by_text("Live", exact=True)).to_be_visible()
    for view in VIEWS:
        await visit(owner, view)
    sizes = await owner.evaluate(
        "performance.getEntriesByType('resource').filter(each => /\\.(js|css|svg)$/.test(each.name))"
        ".map(each => each.decodedBodySize)"
    )
    assert 0 < sum(sizes) < 300_000
    painted = await owner.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first paint after {painted:.0f} ms, {sum(sizes):,} bytes")  # noqa: T201 - for the record
