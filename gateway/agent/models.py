"""Facts about models: context size, output limit, images, prices. Built in, and overridden by the settings."""

from dataclasses import dataclass, field, replace

from config import ModelSettings, ProviderKind, ProviderSettings
from gateway.agent.protocol import TokenUsage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a million tokens, in the currency of the settings. The built-in prices are in US dollars."""

    input: float
    output: float
    cached_input: float
    cache_write: float


_FREE = Prices(input=0, output=0, cached_input=0, cache_write=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model of one provider. The defaults are cautious guesses for unknown models."""

    name: str
    """As `provider/model`."""
    context_tokens: int = 32_768
    """Input and output of one step together."""
    max_output_tokens: int = 8_192
    sees_images: bool = False
    sums_up: bool = True
    """Whether it can summarise a conversation. The offline provider cannot."""
    prices: Prices | None = None
    """None if unknown."""
    is_free: bool = field(init=False)
    """Whether it is known to cost nothing, so its tokens need not be counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_free", self.prices == _FREE)

    def cost(self, usage: TokenUsage) -> float | None:
        """Return the cost of a step, or None if the prices are unknown."""
        if self.prices is None:
            return None
        # Providers charge cached input at its own price, so it is subtracted first.
        fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        paid = (
            fresh * self.prices.input
            + usage.cache_read_tokens * self.prices.cached_input
            + usage.cache_write_tokens * self.prices.cache_write
            + usage.output_tokens * self.prices.output
        )
        return paid / _MILLION


def _claude(price_in: float, price_out: float, *, context: int = 200_000, output: int = 32_000) -> ModelInfo:
    # Anthropic charges a tenth for cached input, and a quarter more for input that it writes to its cache.
    prices = Prices(input=price_in, output=price_out, cached_input=price_in / 10, cache_write=price_in * 1.25)
    return ModelInfo(name="", context_tokens=context, max_output_tokens=output, sees_images=True, prices=prices)


def _gpt(price_in: float, cached: float, price_out: float, *, context: int, output: int = 16_384) -> ModelInfo:
    # OpenAI caches automatically, at no extra charge.
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
"""By the start of a model's name; the longest match counts. The settings override these."""


def describe(provider: str, settings: ProviderSettings, model: str | None) -> ModelInfo:
    """Return the facts about `model`: from the settings, else from its family, else cautious guesses."""
    if settings.kind is ProviderKind.OFFLINE:
        return ModelInfo(name=f"{provider}/{model or 'rules'}", context_tokens=200_000, sums_up=False, prices=_FREE)
    family = _find_family(model or "")
    own = settings.models.get(model or "", ModelSettings())
    prices = family.prices
    if own.input_price is not None and own.output_price is not None:
        prices = Prices(
            input=own.input_price,
            output=own.output_price,
            cached_input=own.input_price if own.cached_input_price is None else own.cached_input_price,
            cache_write=own.input_price if own.cache_write_price is None else own.cache_write_price,
        )
    return replace(
        family,
        name=f"{provider}/{model or ''}",
        context_tokens=own.context_tokens or family.context_tokens,
        max_output_tokens=own.max_output_tokens or family.max_output_tokens,
        sees_images=family.sees_images if own.sees_images is None else own.sees_images,
        prices=prices,
    )


def family_info(agent: str, model: str) -> ModelInfo:
    """Return the facts about the model that a coding agent uses by itself."""
    return replace(_find_family(model), name=f"{agent}/{model}", sees_images=True, sums_up=False)


def _find_family(model: str) -> ModelInfo:
    # Some endpoints put the maker before the name (`openai/gpt-5`).
    short = model.rpartition("/")[2].lower()
    matching = [prefix for prefix in _FAMILIES if short.startswith(prefix)]
    return _FAMILIES[max(matching, key=len)] if matching else ModelInfo(name="")
