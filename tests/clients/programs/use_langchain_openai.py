"""A conversation with LangChain's ChatOpenAI, over chat completions and over responses, and a tool of its own."""

import os

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL = os.environ["GATEHOUSE_MODEL"]


def text_of(message: BaseMessage) -> str:
    print(message.text)
    return str(message.text)


chat = ChatOpenAI(model=MODEL)
history: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("I am Ada.")]
history.append(AIMessage(text_of(chat.invoke(history))))
assert history[-1].content == "1 messages; the first was: I am Ada."
history.append(HumanMessage("Who am I?"))
history.append(AIMessage("".join(str(chunk.content) for chunk in chat.stream(history))))
print(history[-1].content)
assert history[-1].content == "2 messages; the first was: I am Ada."
assert text_of(chat.invoke("Without a history.")) == "3 messages; the first was: I am Ada."

responses = ChatOpenAI(model=MODEL, use_responses_api=True)
assert text_of(responses.invoke("Over responses.")) == "4 messages; the first was: I am Ada."


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"Sunny in {city}."


for is_responses in (False, True):
    agent = ChatOpenAI(model="main", api_key=os.environ["OPENAI_TOOL_KEY"], use_responses_api=is_responses).bind_tools(
        [weather]
    )
    asked: list[BaseMessage] = [HumanMessage("How is it in Lisbon?")]
    called = agent.invoke(asked)
    (call,) = called.tool_calls
    asked += [called, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert text_of(agent.invoke(asked)) == "The tool said: Sunny in Lisbon."
