from gateway.agent.toolbox import current_time
from gateway.agent.tools import ToolContext


async def test_the_time_is_the_one_it_was_handed(context: ToolContext) -> None:
    assert await current_time.run(context, {}) == "Sunday, 01 March 2026, 11:00:05 UTC"
