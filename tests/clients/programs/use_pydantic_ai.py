"""A conversation with Pydantic AI, over chat completions and over responses, and a tool of its own."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = os.environ["GATEHOUSE_MODEL"]

agent = Agent(OpenAIChatModel(MODEL), system_prompt="Be brief.")
first = agent.run_sync("I am Ada.")
print(first.output)
assert first.output == "1 messages; the first was: I am Ada."
second = agent.run_sync("Who am I?", message_history=first.all_messages())
print(second.output)
assert second.output == "2 messages; the first was: I am Ada."
third = Agent(OpenAIResponsesModel(MODEL)).run_sync("Without a history.")
print(third.output)
assert third.output == "3 messages; the first was: I am Ada."

provider = OpenAIProvider(api_key=os.environ["OPENAI_TOOL_KEY"])
for model in (OpenAIChatModel("main", provider=provider), OpenAIResponsesModel("main", provider=provider)):
    tools = Agent(model)

    @tools.tool_plain
    def weather(city: str) -> str:
        """Say how the weather is."""
        return f"Sunny in {city}."

    result = tools.run_sync("How is it in Lisbon?")
    print(result.output)
    assert result.output == "The tool said: Sunny in Lisbon."
