"""The tables [roles.<name>]: which combinations are refused, and how."""

from pathlib import Path

import pytest

from config import ConfigError, load
from tests.config.harness import write_config

HOOK = '[channels.webhook.hooks.ci]\nsecrets = ["0123456789012345678901234567890123456789"]\npreset = "github"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[roles.a]\ncommands = ["/pair list"]', "roles.a.commands: `/pair list` cannot be granted"),
        ('[roles.a]\ncommands = ["pair*"]', "cannot be granted"),
        ('[roles.a]\nagents = ["mian"]', "roles.a.agents[0]: matches no agent"),
        ('[roles.a]\nmodels = ["gpt-9"]', "roles.a.models[0]: matches no model"),
        ('[roles.a]\nworkspaces = ["site"]', "roles.a.workspaces[0]: matches no repo"),
        ('[roles.a]\npeople = ["api:1"]', "is a program"),
        ('[roles.a]\npeople = ["webhook:ci"]', "is a webhook"),
        ('[roles.a]\npeople = ["trminal:1"]', "roles.a.people[0]: the channel `trminal` does not exist"),
        ('[roles.a]\nchats = ["discord:1"]', "roles.a.chats[0]: this channel does not exist"),
        ('[roles.a]\npeople = ["x:1"]\n[roles.b]\npeople = ["x:1"]', "x:1 has another role by roles.a.people"),
        ('[roles.a]\nchats = ["x:1"]\n[roles.b]\nchats = ["x:1"]', "x:1 has another role by roles.a.chats"),
        ('[gateway]\nowners = ["x:1"]\n[roles.a]\npeople = ["x:1"]', "x:1 has another role by gateway.owners"),
        (
            '[session.identity_links]\nann = ["x:1", "y:2"]\n[roles.a]\npeople = ["x:1"]\n[roles.b]\npeople = ["y:2"]',
            "y:2 has another role by roles.a.people",
        ),
        ('[roles.owner]\napprove = "none"', "roles.owner.approve: cannot be set"),
        ("[roles.owner]\ncommands = []", "roles.owner.commands: cannot be set"),
        ('[roles.owner]\npeople = ["x:1"]', "roles.owner.people: cannot be set"),
        (f'{HOOK}role = "nobody"', "channels.webhook.hooks.ci.role: this role does not exist"),
        (f'{HOOK}role = "owner"', "a webhook cannot be an owner"),
        ("[roles.a]\ncost_per_day = 0", "must be more than 0"),
    ],
)
def test_impossible_roles_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write_config(tmp_path, text), {})
    assert sentence in str(refused.value)
    assert "member, owner" not in str(refused.value)


def test_owners_may_ask_themselves_and_have_a_budget(tmp_path: Path) -> None:
    text = '[roles.owner]\nask = ["shell"]\ntools = ["shell", "current_time"]\ntokens_per_day = 5'
    assert load(write_config(tmp_path, text), {}).settings.roles["owner"].tokens_per_day == 5
