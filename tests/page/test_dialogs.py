"""The dialogs and menus that the pages share, as modules in the browser."""

from playwright.async_api import Page, expect

ASK_FOR_TEXT = """() => {
    window.answer = import("/shared/dialog.js").then(({ askForText }) =>
        askForText({ title: "Rename", label: "Title", value: "Old", confirm: "Save" }));
}"""
ASK_TO_CONFIRM = """() => {
    window.answer = import("/shared/dialog.js").then(({ askToConfirm }) =>
        askToConfirm({ title: "Delete <b>it</b>?", text: "For good.", confirm: "Delete", isDangerous: true }));
}"""
OPEN_MENU = """async () => {
    const [{ openMenu }, { $ }] = await Promise.all([import("/shared/menu.js"), import("/shared/dom.js")]);
    window.chosen = "";
    const item = (label) => ({ label, run: () => (window.chosen = label) });
    openMenu($("theme"), "Things", [item("One"), { ...item("Two"), isDangerous: true }, item("Three")]);
}"""


async def test_a_dialog_asks_for_text_by_keyboard(page: Page) -> None:
    await page.evaluate(ASK_FOR_TEXT)
    field = page.get_by_label("Title")
    await expect(field).to_be_focused()
    await page.keyboard.type("  New name  ")
    await page.keyboard.press("Enter")
    assert await page.evaluate("window.answer") == "New name"
    await expect(page.locator("dialog")).to_have_count(0)
    await page.evaluate(ASK_FOR_TEXT)
    await field.wait_for()
    await page.keyboard.press("Escape")
    assert await page.evaluate("window.answer") is None


async def test_a_dangerous_question_is_safe_by_default_and_shows_text_as_text(page: Page) -> None:
    await page.evaluate(ASK_TO_CONFIRM)
    await expect(page.get_by_role("dialog", name="Delete <b>it</b>?")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Enter")
    assert await page.evaluate("window.answer") is False
    await page.evaluate(ASK_TO_CONFIRM)
    await page.get_by_role("button", name="Delete", exact=True).click()
    assert await page.evaluate("window.answer") is True


async def test_a_menu_works_by_keyboard_and_stays_on_the_screen(page: Page) -> None:
    await page.evaluate(OPEN_MENU)
    menu = page.get_by_role("menu", name="Things")
    await expect(menu.get_by_role("menuitem", name="One")).to_be_focused()
    box = await menu.bounding_box()
    assert box is not None
    assert min(box["x"], box["y"]) >= 0
    assert box["x"] + box["width"] <= 1280
    assert box["y"] + box["height"] <= 800
    await page.keyboard.press("ArrowUp")
    await expect(menu.get_by_role("menuitem", name="Three")).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await expect(menu).to_have_count(0)
    assert await page.evaluate("window.chosen") == "Two"
    await page.evaluate(OPEN_MENU)
    await page.keyboard.press("Escape")
    await expect(menu).to_have_count(0)
    assert await page.evaluate("window.chosen") == ""
