"""The texts of the pages: complete in every language, and each of them used."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

import channels.web
from tests.page.fake_gateway import FakeGateway

PAGE = Path(channels.web.__file__).parent / "page"
LANGUAGES = sorted(path.stem for path in (PAGE / "texts").glob("*.js"))
PLACEHOLDER = re.compile(r"\{\w+\}")


async def texts_of(page: Page, language: str) -> dict[str, str]:
    """Return the texts by their names, such as `chat.newChat`."""
    found: dict[str, Any] = await page.evaluate(f"import('/texts/{language}.js').then((module) => module.default)")

    def flatten(texts: dict[str, Any], prefix: str = "") -> dict[str, str]:
        flat: dict[str, str] = {}
        for name, text in texts.items():
            flat |= flatten(text, f"{prefix}{name}.") if isinstance(text, dict) else {f"{prefix}{name}": text}
        return flat

    return flatten(found)


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
async def test_every_language_has_all_texts_with_the_same_places(page: Page, language: str) -> None:
    english, other = await texts_of(page, "en"), await texts_of(page, language)
    assert sorted(other) == sorted(english)
    for name, text in other.items():
        assert text.strip(), name
        assert sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(english[name])), name
        assert text.count("`") == english[name].count("`"), name


async def test_sizes_and_times_are_in_words(page: Page) -> None:
    found = await page.evaluate(
        """async () => {
            const { formatDuration, formatSize } = await import("/shared/format.js");
            return [...[1, 999, 1000, 1_234_567, 5e9].map(formatSize), formatDuration(61.4)];
        }"""
    )
    assert found == ["1 byte", "999 bytes", "1 kB", "1.2 MB", "5 GB", "1:01"]


async def test_every_language_can_be_chosen(page: Page) -> None:
    offered = await page.evaluate("import('/shared/texts.js').then((module) => Object.keys(module.LANGUAGES))")
    assert sorted(offered) == LANGUAGES


async def test_every_text_is_used_and_every_used_text_exists(page: Page) -> None:
    sources = [path for path in PAGE.rglob("*") if path.suffix in {".js", ".html"} and path.parent.name != "texts"]
    code = "\n".join(path.read_text() for path in sources)
    groups = "|".join({name.partition(".")[0] for name in await texts_of(page, "en")})
    for path in sources:  # A module of one page may call its group `words`.
        if group := re.search(r"^const words = texts\.(\w+);$", path.read_text(), re.MULTILINE):
            code += "".join(f"\ntexts.{group[1]}.{name}" for name in re.findall(r"\bwords\.(\w+)", path.read_text()))
    used = set(re.findall(rf"texts\.((?:{groups})\.\w+)", code)) | set(re.findall(rf"\"((?:{groups})\.\w+)\"", code))
    assert used == {".".join(name.split(".")[:2]) for name in await texts_of(page, "en")}


async def test_the_browser_chooses_the_language_and_a_person_may_choose_another(
    browser: Browser, gateway: FakeGateway
) -> None:
    context = await browser.new_context(locale="de-AT")
    page = await context.new_page()
    await page.goto(gateway.login_link())
    await expect(page.get_by_role("textbox", name="Nachricht")).to_have_attribute("placeholder", "Nachricht schreiben")
    assert await page.evaluate("document.documentElement.lang") == "de"
    await page.get_by_role("button", name="Einstellungen").click()
    await page.get_by_role("menuitemradio", name="English").click()
    await page.get_by_role("textbox", name="Message").wait_for()
    await page.reload()
    await page.get_by_role("textbox", name="Message").wait_for()
    await context.close()
