"""Models behind Anthropic's Messages API, by the official SDK, with prompt caching and thinking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.json import encode

from config import ModelSettings, ProviderSettings
from gateway.agent.anthropic_answer import AnthropicAnswer
from gateway.agent.connection import http_client
from gateway.agent.endpoint import NO_KEY, Body, Endpoint, Events
from gateway.agent.models import describe
from gateway.agent.provider import Prompt
from gateway.agent.shapes import Shape, seen, to_anthropic
from gateway.conversation import AssistantMessage, Message, UserMessage

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["Messages", "open_anthropic"]

_ENDPOINT = "https://api.anthropic.com"
_ROOM_TO_ANSWER = 4_096
"""Tokens that an answer gets beyond what the model may think."""
_CACHED = {"type": "ephemeral"}
"""Marks the end of what the API shall keep: of the tools, of the system prompt, and of the last two user messages."""


def open_anthropic(settings: ProviderSettings, name: str) -> Endpoint[AsyncAnthropic]:
    return Endpoint(settings, name, Messages(settings, name))


class Messages:
    """The dialect of the Messages API."""

    def __init__(self, settings: ProviderSettings, name: str) -> None:
        self._settings = settings
        self._name = name

    def connect(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic  # noqa: PLC0415 - that is what this function is for.

        settings = self._settings
        return AsyncAnthropic(
            api_key=settings.api_key.reveal() if settings.api_key else NO_KEY,
            base_url=settings.base_url or _ENDPOINT,
            max_retries=0,
            open_telemetry=False,
            http_client=http_client(settings),
        )

    def errors(self) -> tuple[type[Exception], ...]:
        import anthropic  # noqa: PLC0415 - imported in a thread by now; see `connect`.
        import httpx2  # noqa: PLC0415 - as above

        return (anthropic.AnthropicError, httpx2.HTTPError)

    def body(self, prompt: Prompt) -> Body:
        model = prompt.model or ""
        info = describe(self._name, self._settings, model)
        messages = to_anthropic(seen(prompt.messages, sees_images=info.sees_images), model=info.name)
        body: Body = {
            "model": model,
            "max_tokens": info.max_output_tokens,
            "messages": _marked(messages),
            "stream": True,
        }
        if prompt.system:
            body["system"] = [{"type": "text", "text": prompt.system, "cache_control": _CACHED}]
        if prompt.tools:
            tools: list[Shape] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in prompt.tools
            ]
            tools[-1]["cache_control"] = _CACHED
            body["tools"] = tools
        if _may_think(prompt.messages, info.name):
            body.update(_thinking(self._settings.models.get(model, ModelSettings()), info.max_output_tokens))
        return body

    async def ask(self, client: AsyncAnthropic, body: Body) -> Events:
        from anthropic import AsyncStream  # noqa: PLC0415 - as above

        return await client.post(
            "/v1/messages", cast_to=object, content=encode(body), stream=True, stream_cls=AsyncStream[object]
        )

    def answer(self, name: str) -> AnthropicAnswer:
        return AnthropicAnswer(name)


def _marked(messages: list[Shape]) -> list[Shape]:
    """Mark the last two user messages, so that each step reads from the cache what the one before has put there."""
    for message in [each for each in messages if each["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = _CACHED
    return messages


def _may_think(messages: Sequence[Message], name: str) -> bool:
    """Tell whether the steps of this turn have their thoughts: after a restart, or by another model, they have not."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return True
        if isinstance(message, AssistantMessage) and message.tool_calls:
            return any(thought.model == name for thought in message.thoughts)
    return True


def _thinking(settings: ModelSettings, max_output: int) -> Body:
    if settings.thinking_tokens:
        budget = settings.thinking_tokens
        return {
            "thinking": {"type": "enabled", "budget_tokens": budget},
            "max_tokens": max(max_output, budget + _ROOM_TO_ANSWER),
        }
    return {"thinking": {"type": "adaptive"}} if settings.thinking else {}
