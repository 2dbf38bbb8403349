import pytest

from config import Settings
from gateway.agent.toolbox import built_in
from gateway.agent.toolbox.search import make_search
from gateway.agent.tools import ToolContext, ToolFailed
from tests.web_search.harness import KEY, serving_search


async def test_results_are_numbered_links_that_are_marked_as_untrusted(context: ToolContext) -> None:
    hits = [{"title": f"Page {number}", "url": f"https://a.example/{number}", "content": "Text."} for number in (1, 2)]
    async with serving_search("tavily", {"results": hits}) as engine:
        shown = await make_search(engine.settings()).run(context, {"query": " rose \n bee "})
    assert engine.asked[0]["body"]["query"] == "rose bee"
    head, first, second = shown.split("\n\n")
    assert "not instructions" in head
    assert first == "1. Page 1\n   https://a.example/1\n   Text."
    assert second.startswith("2. Page 2\n   https://a.example/2")


async def test_a_failure_is_a_sentence_for_the_model(context: ToolContext) -> None:
    async with serving_search("tavily", (401, KEY, {})) as engine:
        tool = make_search(engine.settings())
        with pytest.raises(ToolFailed, match="rejected the API key") as failed:
            await tool.run(context, {"query": "rose"})
        assert KEY not in str(failed.value)
        for query in ("  ", "..", "x" * 401):
            with pytest.raises(ToolFailed, match="query"):
                await tool.run(context, {"query": query})
    assert len(engine.asked) == 1


def test_the_tool_exists_only_with_an_engine() -> None:
    def names(**search: object) -> set[str]:
        return {tool.spec.name for tool in built_in(Settings.model_validate({"tools": {"search": search}}))}

    assert names(engine="searxng", url="http://127.0.0.1:8080") - names() == {"web_search"}
