"""Checks the endpoints that make pictures and recordings."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator

from config import Settings
from gateway.agent.media.endpoint import MediaEndpoint
from gateway.agent.media.speech import make_recording
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.errors import ModelUnavailable, ProviderFailed


def media_checks(settings: Settings, deadline: float) -> Iterator[Coroutine[None, None, Finding]]:
    """Yield a check for each of the two tools that the settings switch on."""
    if settings.tools.images.provider is not None:
        yield _check("tools.images", settings.tools.images.provider, lambda: _check_images(settings, deadline))
    if settings.tools.speech.provider is not None:
        yield _check("tools.speech", settings.tools.speech.provider, lambda: _check_speech(settings, deadline))


async def _check(about: str, provider: str, call: Callable[[], Awaitable[Finding]]) -> Finding:
    endpoint = f"providers.{provider}"
    try:
        return await call()
    except ModelUnavailable as failure:
        fix = f"Check {endpoint}.api_key, {endpoint}.base_url and {about}.model."
        return error(about, str(failure), fix)
    except ProviderFailed as failure:
        return error(about, str(failure), f"Check {endpoint}.base_url, the network, and the other settings in {about}.")


async def _check_images(settings: Settings, deadline: float) -> Finding:
    """Ask for the list of models: a picture would cost money, and take a minute."""
    images, about = settings.tools.images, "tools.images"
    provider = str(images.provider)
    endpoint = MediaEndpoint(
        provider=provider, settings=settings.providers[provider], model=images.model, timeout=deadline
    )
    models = await endpoint.list_models()
    try_it = "Ask an agent for a picture to be sure."
    if models is None:
        message = f"The endpoint doesn't list its models, so the model `{images.model}` was not checked."
        return warning(about, message, f"Check providers.{provider}.base_url. {try_it}")
    if images.model not in models:
        message = f"The endpoint doesn't list the model `{images.model}`."
        return warning(about, message, f"Check {about}.model. {try_it}")
    return ok(about, f"The endpoint has the model `{images.model}`.")


async def _check_speech(settings: Settings, deadline: float) -> Finding:
    """Have a word spoken, as the tool does. It costs next to nothing."""
    speech = settings.tools.speech
    provider = str(speech.provider)
    endpoint = MediaEndpoint(
        provider=provider, settings=settings.providers[provider], model=speech.model, timeout=deadline
    )
    await make_recording(endpoint, speech, "Hello.", charge=lambda: None)
    return ok("tools.speech", f"The model `{speech.model}` speaks.")
