"""Calls an OpenAI-compatible endpoint that makes pictures or recordings. Its errors become those of models."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus

import msgspec
import structlog
from yarl import URL

from config import ProviderSettings
from gateway.agent.providers.endpoint import url_of
from gateway.agent.providers.errors import ErrorResponse, ProviderFault, json_or_text, read_fault, translate_errors
from gateway.agent.providers.openai import OpenAIApi
from gateway.errors import ContextTooLong, ProviderBusy, ProviderFailed
from gateway.safe_http.client import FetchFailed
from gateway.safe_http.json_api import ApiResponse, call_api

log = structlog.get_logger()

_MAX_LIST_BYTES = 2_000_000
"""Of the list of models. That of a provider with hundreds of models has some 100 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaEndpoint:
    """A model of a provider. Requests go to its host alone: redirects are not followed."""

    provider: str
    settings: ProviderSettings
    model: str
    timeout: float
    """Seconds for everything that is done within `limits`."""

    @asynccontextmanager
    async def limits(self) -> AsyncIterator[None]:
        """End the calls within at the deadline, and turn their errors into `ProviderFailed` with a sentence."""
        try:
            with translate_errors(self.provider, self.model, api_key=self.settings.api_key):
                async with asyncio.timeout(self.timeout):
                    yield
        except ContextTooLong as rejection:
            raise ProviderFailed(f"The text is too long for `{self.model}`. Try a shorter one.") from rejection
        except FetchFailed as failure:
            log.warning("model_failed", provider=self.provider, model=self.model, reason=str(failure))
            raise ProviderBusy(f"`{self.model}` could not be used: {failure} Try again later.") from failure

    async def post(
        self, path: str, body: Mapping[str, object], *, accept: str, max_bytes: int, charge: Callable[[], None]
    ) -> bytes:
        """Return the body of a response. Calls `charge` unless the endpoint has refused or was not reached.

        A call that is cancelled is charged too: the endpoint goes on, and may ask for money.
        """
        try:
            response = await self._call(path, accept=accept, body=msgspec.json.encode(body), max_bytes=max_bytes)
        except asyncio.CancelledError:
            charge()
            raise
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise ErrorResponse(_fault(response))
        charge()
        if response.is_cut:
            raise ProviderFailed(
                f"The response of `{self.model}` is larger than the settings allow, so it is not used."
            )
        return response.body

    async def list_models(self) -> list[str] | None:
        """Return the names of the endpoint's models, or None if it does not list them."""
        async with self.limits():
            response = await self._call("/models", accept="application/json", max_bytes=_MAX_LIST_BYTES)
            if response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
                return None
            if response.status != HTTPStatus.OK:
                raise ErrorResponse(_fault(response))
            try:
                return [each.id for each in msgspec.json.decode(response.body, type=_Models).data]
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None

    async def _call(self, path: str, *, accept: str, max_bytes: int, body: bytes | None = None) -> ApiResponse:
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.settings.api_key is not None:
            headers["Authorization"] = f"Bearer {self.settings.api_key.reveal()}"
        return await call_api(
            str(url_of(self.base_url, path)),
            headers=headers,
            body=body,
            max_bytes=max_bytes,
            is_own=self.settings.base_url is not None,
        )

    @property
    def base_url(self) -> URL:
        return URL(self.settings.base_url or OpenAIApi.default_url)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _fault(response: ApiResponse) -> ProviderFault:
    fault = read_fault(json_or_text(response.body), response.status)
    return replace(fault, retry_after=response.retry_after)
