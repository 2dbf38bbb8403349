import pytest

from config import ProviderSettings
from gateway.agent.models import describe
from gateway.agent.protocol import TokenUsage


def settings(kind: str = "openai", **models: dict[str, object]) -> ProviderSettings:
    return ProviderSettings.model_validate({"kind": kind, "api_key": "k-0123456789", "models": models})


def test_the_longest_matching_prefix_counts() -> None:
    assert describe("p", settings(), "gpt-4o-mini-2024-07-18").prices == describe("p", settings(), "gpt-4o-mini").prices
    assert describe("p", settings(), "gpt-4o-mini").prices != describe("p", settings(), "gpt-4o").prices


def test_a_maker_in_front_of_the_name_is_ignored() -> None:
    info = describe("router", settings(), "anthropic/claude-sonnet-4-5")
    assert info.name == "router/anthropic/claude-sonnet-4-5"
    assert (info.context_tokens, info.sees_images) == (200_000, True)


def test_an_unknown_model_gets_cautious_defaults() -> None:
    info = describe("p", settings(), "my-own")
    assert (info.context_tokens, info.sees_images, info.prices) == (32_768, False, None)
    assert info.cost(TokenUsage(input_tokens=1, output_tokens=1)) is None


def test_the_settings_override_the_built_in_facts() -> None:
    told = settings(mine={"context_tokens": 5_000, "sees_images": True, "input_price": 1, "output_price": 2.5})
    info = describe("p", told, "mine")
    assert (info.context_tokens, info.sees_images) == (5_000, True)
    assert info.cost(TokenUsage(input_tokens=1_000_000, output_tokens=1_000_000)) == 3.5


def test_cached_tokens_have_their_own_price() -> None:
    info = describe("p", settings("anthropic"), "claude-sonnet-4-5")
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=0, cache_read_tokens=500_000, cache_write_tokens=100_000)
    assert info.cost(usage) == pytest.approx(0.4 * 3 + 0.5 * 0.3 + 0.1 * 3.75)


def test_the_offline_responder_costs_nothing() -> None:
    offline = ProviderSettings.model_validate({"kind": "offline"})
    assert describe("offline", offline, None).cost(TokenUsage(input_tokens=5, output_tokens=5)) == 0
