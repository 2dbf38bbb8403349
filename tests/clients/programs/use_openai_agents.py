"""A conversation with the OpenAI Agents SDK, over responses and over chat completions, and a tool of its own."""

import asyncio
import os

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

MODEL = os.environ["GATEHOUSE_MODEL"]


@function_tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"Sunny in {city}."


async def main() -> None:
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI()
    model = OpenAIResponsesModel(model=MODEL, openai_client=client)
    agent = Agent(name="Ada's", instructions="Be brief.", model=model)
    memory = SQLiteSession("trip")  # It sends the whole history again.

    async def ask(text: str, who: Agent = agent, **more: object) -> str:
        result = await Runner.run(who, text, **more)
        print(result.final_output)
        return str(result.final_output)

    assert await ask("I am Ada.", session=memory) == "1 messages; the first was: I am Ada."
    assert await ask("Who am I?", session=memory) == "2 messages; the first was: I am Ada."
    streamed = Runner.run_streamed(agent, "Are you sure?", session=memory)
    async for _ in streamed.stream_events():
        pass
    print(streamed.final_output)
    assert streamed.final_output == "3 messages; the first was: I am Ada."
    assert await ask("Without a history.") == "4 messages; the first was: I am Ada."
    chat = Agent(name="Chat", model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client))
    assert await ask("Over chat completions.", chat) == "5 messages; the first was: I am Ada."
    await client.close()

    async with AsyncOpenAI(api_key=os.environ["OPENAI_TOOL_KEY"]) as other:
        for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            tools = Agent(name="Tools", tools=[weather], model=kind(model="main", openai_client=other))
            assert await ask("How is it in Lisbon?", tools) == "The tool said: Sunny in Lisbon."


asyncio.run(main())
