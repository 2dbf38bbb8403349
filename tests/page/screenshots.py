"""Screenshots that are compared with reference images: stable in every part but the pages themselves.

The fonts come with the tests, the clock of the page stands still and animations are off. The reference images have half
the size of the screenshots, which averages out how a version of Chromium smooths the edges of letters.
"""

import asyncio
import base64
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Route

import channels.web

HERE = Path(__file__).parent
REFERENCES = HERE / "screenshots"
SHOTS = HERE.parents[1] / "test-output"
FONTS = HERE / "fonts"
NOW = datetime(2026, 3, 5, 14, 30, tzinfo=UTC)
IS_UPDATE = os.environ.get("GATEHOUSE_UPDATE_SCREENSHOTS") == "1"

MAX_LEVELS = 8
"""A pixel is different if its red, green or blue differs by more than this, of 255."""

MAX_PIXELS = 30
"""So many pixels may be different. The cross of the smallest button has about as many."""

ATTEMPTS = 4
"""A page that polls may be drawing when the screenshot is taken."""

STYLE = """
@font-face { font-family: "Test Sans"; src: url(/fonts/DejaVuSans.woff2); }
@font-face { font-family: "Test Sans"; font-weight: 600 900; src: url(/fonts/DejaVuSans-Bold.woff2); }
@font-face { font-family: "Test Mono"; src: url(/fonts/DejaVuSansMono.woff2); }
:root { --sans: "Test Sans"; --mono: "Test Mono"; }
*, *::before, *::after { animation: none !important; transition: none !important; caret-color: transparent !important; }
::-webkit-scrollbar { display: none; }
"""
HIDE_WHAT_VARIES = """() => {
    const patterns = [
        [/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}/g, "00000000-0000-0000-0000-000000000000"],
        [/\\/\\S+\\/(data|gatehouse.toml)/g, "/home/$1"],
        [/\\d+(\\.\\d+)? (kB|MB|GB)\\b/g, "0 MB"],
        [/\\d+(\\.\\d+)? (ms|s|min)\\b/g, "0 s"],
        [/\\d\\d?:\\d\\d:\\d\\d(\\s[AP]M)?/g, "00:00:00"],
    ];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        let text = walker.currentNode.data;
        for (const [pattern, instead] of patterns) text = text.replace(pattern, instead);
        if (text !== walker.currentNode.data) walker.currentNode.data = text;
    }
}"""
"""Ids, paths, sizes, and times that the clock of the test does not set."""

HALVE_AND_COMPARE = """async ([shot, reference, maxLevels]) => {
    const read = async (base64, scale) => {
        const bitmap = await createImageBitmap(await (await fetch(`data:;base64,${base64}`)).blob());
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [Math.round(bitmap.width * scale), Math.round(bitmap.height * scale)];
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.imageSmoothingQuality = "high";
        context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
        return [canvas, context.getImageData(0, 0, canvas.width, canvas.height)];
    };
    const [canvas, now] = await read(shot, 0.5);
    const half = canvas.toDataURL("image/webp", 1).split(",")[1];
    if (!reference) return { half, pixels: 0, box: null, marked: "" };
    const [, before] = await read(reference, 1);
    const isSameSize = before.width === now.width && before.height === now.height;
    if (!isSameSize) return { half, pixels: 1e9, box: null, marked: half };
    const box = [now.width, now.height, 0, 0];
    let pixels = 0;
    for (let at = 0; at < now.data.length; at += 4) {
        if (![0, 1, 2].some((each) => Math.abs(now.data[at + each] - before.data[at + each]) > maxLevels)) continue;
        const [x, y] = [(at / 4) % now.width, Math.floor(at / 4 / now.width)];
        [box[0], box[1]] = [Math.min(box[0], x), Math.min(box[1], y)];
        [box[2], box[3]] = [Math.max(box[2], x), Math.max(box[3], y)];
        pixels += 1;
        now.data.set([255, 0, 160, 255], at);
    }
    canvas.getContext("2d").putImageData(now, 0, 0);
    return { half, pixels, box, marked: canvas.toDataURL("image/png").split(",")[1] };
}"""


async def still_context(browser: Browser, **options: Any) -> BrowserContext:  # noqa: ANN401 - options of playwright.
    """Open a context whose pages look the same at any time, on any machine."""
    defaults = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", "timezone_id": "UTC"}
    # Requests of a service worker pass by the routes below.
    context = await browser.new_context(
        **{**defaults, "service_workers": "block", "reduced_motion": "reduce", **options}
    )
    await context.clock.set_fixed_time(NOW)
    await context.route("**/shared/theme.css", _theme_with_our_fonts)
    await context.route("**/fonts/*.woff2", _font)
    return context


async def _theme_with_our_fonts(route: Route) -> None:
    theme = Path(channels.web.__file__).parent / "page/shared/theme.css"
    text = await asyncio.to_thread(theme.read_text)
    await route.fulfill(body=text + STYLE, content_type="text/css")


async def _font(route: Route) -> None:
    await route.fulfill(path=FONTS / Path(route.request.url).name, content_type="font/woff2")


async def compare(page: Page, name: str) -> None:
    """Fail if the page looks different from its reference image, or write a new one if the caller wants that."""
    await page.evaluate("document.fonts.ready.then(() => {})")
    found = await difference(page, name)
    for _ in range(ATTEMPTS - 1):
        if found["pixels"] > MAX_PIXELS:
            found = await difference(page, name)
    reference = REFERENCES / f"{name}.webp"
    half = base64.b64decode(found["half"])
    if IS_UPDATE:
        if (
            found["pixels"] > MAX_PIXELS or not reference.exists()
        ):  # Files of pages that look the same stay as they are.
            await asyncio.to_thread(reference.write_bytes, half)
        return
    await asyncio.to_thread(SHOTS.mkdir, exist_ok=True)
    await asyncio.to_thread((SHOTS / f"{name}-now.webp").write_bytes, half)
    if not reference.exists():
        pytest.fail(f"There is no reference image of {name}. To make one, run: make screenshots")
    if found["pixels"] > MAX_PIXELS:
        await asyncio.to_thread((SHOTS / f"{name}-marked.png").write_bytes, base64.b64decode(found["marked"]))
        pytest.fail(
            f"{name} looks different: {found['pixels']} pixels, within {found['box']} (left, top, right, bottom).\n"
            f"Compare {reference.relative_to(HERE.parents[1])} with test-output/{name}-now.webp. "
            f"The pixels are marked in test-output/{name}-marked.png.\nIf the change is wanted, run: make screenshots"
        )


async def difference(page: Page, name: str) -> Mapping[str, Any]:
    """Return how the page differs from its reference image. A blank page does the comparison: browsers read images."""
    await page.evaluate(HIDE_WHAT_VARIES)
    shot = await page.screenshot(animations="disabled")
    reference = REFERENCES / f"{name}.webp"
    before = await asyncio.to_thread(reference.read_bytes) if reference.exists() else b""
    assert page.context.browser is not None
    blank = await page.context.browser.new_page()
    images = [base64.b64encode(image).decode() for image in (shot, before)]
    found: Mapping[str, Any] = await blank.evaluate(HALVE_AND_COMPARE, [*images, MAX_LEVELS])
    await blank.close()
    return found
