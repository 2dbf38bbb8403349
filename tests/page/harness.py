"""Set-up shared by the tests of the page."""

import pytest
from playwright.async_api import Page

from tests.polling import until

BOTH = pytest.mark.parametrize("engine", ["chromium", "firefox"], indirect=True)
"""For tests that run in both browsers."""

HELLO = "Hello, is anybody there?"
QUESTION = "How do I keep a long-running asyncio program from losing tasks?"
ANSWER = """\
Give every task an owner. A **task group** waits for its children, and cancels them when one fails:

```python
async def main() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(), name="listen")
        group.create_task(serve(), name="serve")
```

Three habits that pay off:

1. **Name your tasks**, so that a log line says who it was.
2. **Bound every queue** and decide what happens when it is full.
3. **Give each wait a deadline** with `asyncio.timeout`.

> A task without an owner is lost without a trace.
"""
THANKS = "That is clear. And how does it end?"
WELCOME = "Cancel the group and leave it: `async with` waits until the last child has *really* gone."


async def holds(page: Page, condition: str) -> None:
    """Wait until an expression is true. The page's policy allows no `eval`, which `wait_for_function` needs."""
    await until(lambda: page.evaluate(condition))


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def choose_setting(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_role("menu").get_by_text(name, exact=True).click()
