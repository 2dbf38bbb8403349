"""What is known about models: how much they read and write, whether they see, and what they cost."""

from dataclasses import dataclass, replace

from config import ModelSettings, ProviderKind, ProviderSettings
from gateway.agent.protocol import TokenUsage

__all__ = ["ModelInfo", "Prices", "describe"]

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """For a million tokens, in whatever currency the settings are in; the built-in ones are US dollars."""

    input: float
    output: float
    cached_input: float
    cache_write: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model of one provider. What nobody said about it is a careful guess."""

    name: str
    """As `provider/model`."""
    context_tokens: int = 32_768
    """All that it reads and writes in one step together."""
    max_output_tokens: int = 8_192
    sees_images: bool = False
    sums_up: bool = True
    """Whether it can be asked for a summary: rules cannot."""
    prices: Prices | None = None
    """None where they are not known."""

    @property
    def is_free(self) -> bool:
        """Whether it is known to cost nothing, so that nobody needs to count."""
        return self.prices == Prices(input=0, output=0, cached_input=0, cache_write=0)

    def cost(self, usage: TokenUsage) -> float | None:
        """Return what a step has cost, or None where the prices are not known."""
        if self.prices is None:
            return None
        fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        paid = (
            fresh * self.prices.input
            + usage.cache_read_tokens * self.prices.cached_input
            + usage.cache_write_tokens * self.prices.cache_write
            + usage.output_tokens * self.prices.output
        )
        return paid / _MILLION


def _claude(price_in: float, price_out: float, *, context: int = 200_000, output: int = 32_000) -> ModelInfo:
    prices = Prices(input=price_in, output=price_out, cached_input=price_in / 10, cache_write=price_in * 1.25)
    return ModelInfo(name="", context_tokens=context, max_output_tokens=output, sees_images=True, prices=prices)


def _gpt(price_in: float, cached: float, price_out: float, *, context: int, output: int = 16_384) -> ModelInfo:
    prices = Prices(input=price_in, output=price_out, cached_input=cached, cache_write=price_in)
    return ModelInfo(name="", context_tokens=context, max_output_tokens=output, sees_images=True, prices=prices)


def _unpriced(context: int, *, output: int = 8_192, sees_images: bool = False) -> ModelInfo:
    return ModelInfo(name="", context_tokens=context, max_output_tokens=output, sees_images=sees_images)


_FAMILIES = {
    "claude-opus-4-1": _claude(15, 75),
    "claude-opus-4-5": _claude(5, 25),
    "claude-opus-4-6": _claude(5, 25),
    "claude-sonnet-4": _claude(3, 15),
    "claude-haiku-4-5": _claude(1, 5),
    "claude-3-5-haiku": _claude(0.8, 4, output=8_192),
    "claude": _unpriced(200_000, output=32_000, sees_images=True),
    "gpt-4o": _gpt(2.5, 1.25, 10, context=128_000),
    "gpt-4o-mini": _gpt(0.15, 0.075, 0.6, context=128_000),
    "gpt-4.1": _gpt(2, 0.5, 8, context=1_000_000, output=32_768),
    "gpt-4.1-mini": _gpt(0.4, 0.1, 1.6, context=1_000_000, output=32_768),
    "gpt-4.1-nano": _gpt(0.1, 0.025, 0.4, context=1_000_000, output=32_768),
    "gpt-5": _unpriced(256_000, output=64_000, sees_images=True),
    "gpt-5-mini": _gpt(0.25, 0.025, 2, context=256_000, output=64_000),
    "gpt-5-nano": _gpt(0.05, 0.005, 0.4, context=256_000, output=64_000),
    "gpt-5.4": _gpt(2.5, 0.25, 15, context=256_000, output=64_000),
    "gpt-5.4-mini": _gpt(0.75, 0.075, 4.5, context=256_000, output=64_000),
    "gpt-6": _unpriced(256_000, output=64_000, sees_images=True),
    "gpt-4": _unpriced(8_192, output=4_096),
    "o3": _gpt(2, 0.5, 8, context=200_000, output=64_000),
    "o4-mini": _gpt(1.1, 0.275, 4.4, context=200_000, output=64_000),
    "gemini": _unpriced(1_000_000, output=32_768, sees_images=True),
    "deepseek": _unpriced(64_000),
    "llama4": _unpriced(128_000, sees_images=True),
    "llama3": _unpriced(32_768),
    "qwen": _unpriced(32_768),
    "gpt-oss": _unpriced(128_000),
    "mistral": _unpriced(32_768),
    "gemma3": _unpriced(32_768, sees_images=True),
}
"""By the beginning of a model's name; the longest that fits counts. A user's settings go over these."""


def describe(provider: str, settings: ProviderSettings, model: str | None) -> ModelInfo:
    """Return what is known of `model`: what the settings say of it, over what its family is like."""
    if settings.kind is ProviderKind.OFFLINE:
        free = Prices(input=0, output=0, cached_input=0, cache_write=0)
        return ModelInfo(name=f"{provider}/{model or 'rules'}", context_tokens=200_000, sums_up=False, prices=free)
    wanted = model or ""
    info = replace(_family(wanted), name=f"{provider}/{wanted}")
    return _told(info, settings.models.get(wanted, ModelSettings()))


def _family(model: str) -> ModelInfo:
    """Find the family by the last part of the name: some endpoints put the maker before it (`openai/gpt-5`)."""
    name = model.rpartition("/")[2].lower()
    fitting = [prefix for prefix in _FAMILIES if name.startswith(prefix)]
    return _FAMILIES[max(fitting, key=len)] if fitting else ModelInfo(name="")


def _told(info: ModelInfo, settings: ModelSettings) -> ModelInfo:
    return replace(
        info,
        context_tokens=settings.context_tokens or info.context_tokens,
        max_output_tokens=settings.max_output_tokens or info.max_output_tokens,
        sees_images=info.sees_images if settings.sees_images is None else settings.sees_images,
        prices=_prices(info.prices, settings),
    )


def _prices(known: Prices | None, settings: ModelSettings) -> Prices | None:
    """Take the settings' prices where they give any: a price that they leave out follows from their input price."""
    if settings.input_price is None or settings.output_price is None:
        return known
    cached, written = settings.cached_input_price, settings.cache_write_price
    return Prices(
        input=settings.input_price,
        output=settings.output_price,
        cached_input=settings.input_price if cached is None else cached,
        cache_write=settings.input_price if written is None else written,
    )
