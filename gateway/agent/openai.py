"""Models behind OpenAI's Chat Completions API, at OpenAI or at any endpoint that speaks it, by the official SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.json import encode

from config import ProviderSettings
from gateway.agent.connection import http_client
from gateway.agent.endpoint import NO_KEY, Body, Endpoint, Events
from gateway.agent.models import describe
from gateway.agent.openai_answer import OpenAIAnswer
from gateway.agent.provider import Prompt
from gateway.agent.shapes import seen, to_openai

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["ChatCompletions", "open_openai"]

_ENDPOINT = "https://api.openai.com/v1"


def open_openai(settings: ProviderSettings, name: str) -> Endpoint[AsyncOpenAI]:
    return Endpoint(settings, name, ChatCompletions(settings, name))


class ChatCompletions:
    """The dialect. Usage is asked for until the endpoint turns out not to know of it."""

    def __init__(self, settings: ProviderSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._reports_usage = True

    def connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI  # noqa: PLC0415 - that is what this function is for.

        settings = self._settings
        client = AsyncOpenAI(
            api_key=settings.api_key.reveal() if settings.api_key else NO_KEY,
            base_url=settings.base_url or _ENDPOINT,
            max_retries=0,
            http_client=http_client(settings),
        )
        client.organization = client.project = None  # They would come from the environment.
        return client

    def errors(self) -> tuple[type[Exception], ...]:
        import httpx2  # noqa: PLC0415 - imported in a thread by now; see `connect`.
        import openai  # noqa: PLC0415 - as above

        return (openai.OpenAIError, httpx2.HTTPError)

    def body(self, prompt: Prompt) -> Body:
        model = prompt.model or ""
        info = describe(self._name, self._settings, model)
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages = to_openai(seen(prompt.messages, sees_images=info.sees_images), model=info.name)
        body: Body = {"model": model, "messages": [*system, *messages], "stream": True}
        if prompt.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in prompt.tools
            ]
        told = self._settings.models.get(model)
        if told and told.max_output_tokens:
            # OpenAI has renamed it; most others know the old name, and some know only that.
            name = "max_tokens" if self._settings.base_url else "max_completion_tokens"
            body[name] = told.max_output_tokens
        return body

    async def ask(self, client: AsyncOpenAI, body: Body) -> Events:
        import openai  # noqa: PLC0415 - as above

        if self._reports_usage:
            try:
                return await _begun(client, {**body, "stream_options": {"include_usage": True}})
            except (openai.BadRequestError, openai.UnprocessableEntityError) as refused:
                if "stream_options" not in str(refused):
                    raise
                self._reports_usage = False
        return await _begun(client, body)

    def answer(self, name: str) -> OpenAIAnswer:
        return OpenAIAnswer(name)


async def _begun(client: AsyncOpenAI, body: Body) -> Events:
    from openai import AsyncStream  # noqa: PLC0415 - as above

    return await client.post(
        "/chat/completions", cast_to=object, content=encode(body), stream=True, stream_cls=AsyncStream[object]
    )
