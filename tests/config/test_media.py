"""The settings of `generate_image` and `speak`."""

from pathlib import Path

import pytest

from config import Settings, load, plan_reload
from tests.config.harness import problems_of, write_config

HEAD = '[providers.art]\nkind = "openai"\napi_key = "k"\n[providers.claude]\nkind = "anthropic"\napi_key = "k"\n'


@pytest.mark.parametrize(
    ("table", "line", "key", "hint"),
    [
        ("images", 'provider = "art2"', "provider", "art"),
        ("images", 'provider = "claude"', "provider", 'kind "openai"'),
        ("speech", 'provider = "offline"', "provider", 'kind "openai"'),
        ("images", "price = -1.0", "price", ""),
        ("images", "timeout = 0.5", "timeout", ""),
        ("speech", 'format = "pcm"', "format", ""),
        ("speech", "max_chars = 0", "max_chars", ""),
        ("speech", 'voice = ""', "voice", ""),
    ],
)
def test_a_mistake_is_named_with_what_to_do(tmp_path: Path, table: str, line: str, key: str, hint: str) -> None:
    problem = problems_of(write_config(tmp_path, f"{HEAD}[tools.{table}]\n{line}"))[f"tools.{table}.{key}"]
    assert hint in f"{problem.message} {problem.hint}"


def test_the_tools_are_off_by_default_and_a_reload_switches_them_on(tmp_path: Path) -> None:
    old = load(write_config(tmp_path, HEAD), {}).settings
    assert (old.tools.images.provider, old.tools.speech.provider) == (None, None)
    new = load(write_config(tmp_path, f'{HEAD}[tools.images]\nprovider = "art"\nprice = 0.04'), {}).settings
    plan = plan_reload(old, new)
    assert plan.applied == ("tools.images.price", "tools.images.provider")
    assert isinstance(plan.settings, Settings)
    assert plan.settings.tools.images.provider == "art"
