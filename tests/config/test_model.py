"""The tables of the settings and the checks across them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from config import (
    AccountSettings,
    AgentSettings,
    Backend,
    Binding,
    ChannelSettings,
    DmPolicy,
    DmScope,
    GatewaySettings,
    GroupPolicy,
    HttpSettings,
    McpSettings,
    ProviderKind,
    ProviderSettings,
    Secret,
    SessionSettings,
    Settings,
)

TOKEN = Secret("a-token-of-good-length")


def test_the_defaults_are_enough_to_run() -> None:
    settings = Settings()
    assert settings.agents == {"main": AgentSettings()}
    assert settings.providers["offline"].kind is ProviderKind.OFFLINE
    assert {name for name, channel in settings.channels.items() if channel.enabled} == {"web", "terminal"}
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8420)
    assert settings.session.dm_scope is DmScope.PER_CHANNEL_PEER


def test_built_in_entries_are_added_to_the_given_ones() -> None:
    settings = Settings(agents={"coder": AgentSettings()}, channels={"web": ChannelSettings(enabled=False)})
    assert set(settings.agents) == {"main", "coder"}
    assert not settings.channels["web"].enabled
    assert settings.channels["terminal"].enabled


def test_settings_are_immutable() -> None:
    settings = HttpSettings()
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]  # The claim of this test.


def test_the_workspace_is_in_the_data_directory_by_default(tmp_path: Path) -> None:
    assert GatewaySettings(data_dir=tmp_path).workspace_root == tmp_path / "workspace"
    assert GatewaySettings(data_dir=tmp_path, workspace_root=Path("/srv/w")).workspace_root == Path("/srv/w")


def test_the_data_directory_is_in_the_home_folder() -> None:
    assert GatewaySettings().data_dir == Path.home() / ".gatehouse"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_host_needs_no_token(host: str) -> None:
    assert HttpSettings(host=host).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "127.0.0.1.example.org", "example.org", "127.1", "*"])  # noqa: S104  # Refused, that is the test.
def test_a_host_that_other_machines_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ValidationError, match="other machines can reach"):
        HttpSettings(host=host)
    assert HttpSettings(host=host, token=TOKEN).host == host


def test_open_metrics_need_a_loopback_host() -> None:
    assert HttpSettings(open_metrics=True).open_metrics
    with pytest.raises(ValidationError, match="must be false, because other machines can reach"):
        HttpSettings(host="192.168.1.5", token=TOKEN, open_metrics=True)


@pytest.mark.parametrize("token", ["fifteen-letters", "sixteen letters!", "sechzehn-zeichön", "sixteen\nletters!"])
def test_a_token_that_is_short_or_not_ascii_is_rejected(token: str) -> None:
    with pytest.raises(ValidationError, match="must"):
        HttpSettings(token=Secret(token))


def test_an_account_inherits_from_its_channel() -> None:
    channel = ChannelSettings(
        token=TOKEN,
        dm_policy=DmPolicy.OPEN,
        allow=("1",),
        accounts={"work": AccountSettings(allow=("2",), require_mention=True), "home": AccountSettings()},
        require_mention=False,
    )
    work, home = channel.accounts["work"], channel.accounts["home"]
    assert (work.token, work.dm_policy, work.allow, work.require_mention) == (TOKEN, DmPolicy.OPEN, ("2",), True)
    assert (home.token, home.dm_policy, home.allow, home.require_mention) == (TOKEN, DmPolicy.OPEN, ("1",), False)


def test_for_account_returns_one_account_without_the_others() -> None:
    channel = ChannelSettings(token=TOKEN, accounts={"work": AccountSettings(group_policy=GroupPolicy.OFF)})
    assert channel.for_account("work") == ChannelSettings(token=TOKEN, group_policy=GroupPolicy.OFF)
    assert channel.for_account("default") == ChannelSettings(token=TOKEN)


@pytest.mark.parametrize(
    ("channel", "names"),
    [
        (ChannelSettings(), ("default",)),
        (ChannelSettings(accounts={"work": AccountSettings()}), ("work",)),
        (ChannelSettings(token=TOKEN, accounts={"work": AccountSettings(token=Secret("x"))}), ("default", "work")),
        (ChannelSettings(token=TOKEN, accounts={"default": AccountSettings()}), ("default",)),
    ],
)
def test_the_default_account_runs_if_it_has_a_token_or_is_the_only_one(
    channel: ChannelSettings, names: tuple[str, ...]
) -> None:
    assert channel.account_names() == names


def test_numeric_ids_become_text() -> None:
    channel = ChannelSettings.model_validate({"allow": [123, "abc"], "group_allow": [-1001]})
    assert (channel.allow, channel.group_allow) == (("123", "abc"), ("-1001",))
    assert Binding.model_validate({"agent": "main", "peer": -5}).peer == "-5"


def test_an_unknown_agent_or_provider_is_rejected() -> None:
    with pytest.raises(ValidationError):
        Settings(agents={"main": AgentSettings(provider="nowhere")})
    with pytest.raises(ValidationError):
        Settings(bindings=(Binding(agent="nobody", channel="web"),))


def test_two_bindings_for_the_same_messages_are_rejected() -> None:
    once = Binding(agent="main", channel="web", peer="1")
    assert Settings(bindings=(once, Binding(agent="main", channel="web"))).bindings[0] is once
    with pytest.raises(ValidationError, match="number 0 and number 2 match the same messages"):
        Settings(bindings=(once, Binding(agent="main", peer="1"), once))


def test_a_binding_must_match_something() -> None:
    with pytest.raises(ValidationError, match="has nothing to match"):
        Binding(agent="main")


def test_an_id_cannot_be_linked_to_two_people() -> None:
    with pytest.raises(ValidationError, match="telegram:1 is listed for both `alice` and `bob`"):
        SessionSettings(identity_links={"alice": ("telegram:1",), "bob": ("discord:1", "telegram:1")})


def test_a_webhook_cannot_be_linked_to_a_person() -> None:
    """It would use what the person has allowed the agent to do for good."""
    with pytest.raises(ValidationError, match="webhook:ci is a program, not a person"):
        SessionSettings(identity_links={"alice": ("telegram:1", "webhook:ci")})


@pytest.mark.parametrize("given", [{}, {"command": ["x"], "url": "http://x"}])
def test_an_mcp_server_has_either_a_command_or_a_url(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="command"):
        McpSettings.model_validate(given)
    assert McpSettings(command=("x",)).url is None
    assert McpSettings(url="https://x/mcp").command == ()


@pytest.mark.parametrize("name", ["a__b", "a_"])
def test_the_name_of_an_mcp_server_cannot_contain_the_tool_separator(name: str) -> None:
    with pytest.raises(ValidationError, match="the tables contradict each other"):
        Settings(mcp={"a_b": McpSettings(command=("x",)), name: McpSettings(command=("x",))})
    assert set(Settings(mcp={"a_b": McpSettings(command=("x",))}).mcp) == {"a_b"}


def test_a_command_is_required_for_acp_and_rejected_for_llm() -> None:
    with pytest.raises(ValidationError, match="is not used"):
        AgentSettings(command=("x",))
    with pytest.raises(ValidationError, match="is required"):
        AgentSettings(backend=Backend.ACP)
    assert AgentSettings(backend=Backend.ACP, command=("x",)).command == ("x",)


ACP_VALUES = {
    "preset": "gemini",
    "command": ["x"],
    "env": {"A": "b"},
    "mode": "default",
    "repos": [],
    "worktree": False,
    "client_files": False,
    "client_terminal": False,
    "max_active": 5,
    "idle_minutes": 30,
    "start_timeout": 60.0,
    "sandbox": {},
}
LLM_VALUES = {
    "provider": "offline",
    "fallbacks": [],
    "tools": [],
    "skills": ["pdf"],
    "ask": ["shell"],
    "workspace": "shared",
    "max_iterations": 200,
}
BOTH_VALUES = {"model": "m", "always_allow": [], "choosable": True, "system_prompt": "Hi", "label": "builds"}


@pytest.mark.parametrize("key", ACP_VALUES)
def test_a_key_of_a_program_is_rejected_for_llm(key: str) -> None:
    with pytest.raises(ValidationError, match='is not used by backend "llm"'):
        AgentSettings.model_validate({key: ACP_VALUES[key]})


@pytest.mark.parametrize("key", LLM_VALUES)
def test_a_key_of_a_model_is_rejected_for_acp(key: str) -> None:
    with pytest.raises(ValidationError, match='is not used by backend "acp"'):
        AgentSettings.model_validate({"backend": "acp", "preset": "gemini", key: LLM_VALUES[key]})


def test_every_key_of_an_agent_belongs_to_a_backend_or_to_both() -> None:
    both = {*BOTH_VALUES, "backend", "prompt_file"}  # The last excludes system_prompt.
    assert {*ACP_VALUES, *LLM_VALUES, *both} == set(AgentSettings.model_fields)
    program = {"backend": "acp", **ACP_VALUES, **BOTH_VALUES}
    assert set(AgentSettings.model_validate(program).model_dump()) == {*ACP_VALUES, *both}
    model = {"backend": "llm", **LLM_VALUES, **BOTH_VALUES}
    assert set(AgentSettings.model_validate(model).model_dump()) == {*LLM_VALUES, *both}


@pytest.mark.parametrize("name", ["A=B", "1A", "A B", "ä", "A-B"])
def test_a_name_that_no_environment_variable_can_have_is_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match="a name that no environment variable can have"):
        AgentSettings.model_validate({"backend": "acp", "preset": "gemini", "env": {name: "x"}})


def test_system_prompt_and_prompt_file_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="combined with system_prompt"):
        AgentSettings(system_prompt="Hi", prompt_file=Path("x"))


@pytest.mark.parametrize("limit", [0, -1, "many", "7", 7.5, True, None, [7]])
def test_a_backlog_limit_that_cannot_be_used_becomes_twenty(limit: object) -> None:
    assert SessionSettings.model_validate({"backlog_limit": limit}).backlog_limit == 20


@pytest.mark.parametrize("kind", [ProviderKind.OPENAI, ProviderKind.ANTHROPIC])
def test_the_endpoint_of_a_vendor_needs_an_api_key(kind: ProviderKind) -> None:
    with pytest.raises(ValidationError, match="is required by"):
        ProviderSettings(kind=kind)
    assert ProviderSettings(kind=kind, base_url="http://127.0.0.1:11434/v1").api_key is None
    assert ProviderSettings(kind=kind, api_key=TOKEN).base_url is None


def test_an_agent_needs_a_model_unless_its_provider_is_offline() -> None:
    tables = {"providers": {"gpt": {"kind": "openai", "api_key": "k-0123456789"}}}
    with pytest.raises(ValidationError, match="contradict each other"):
        Settings.model_validate({**tables, "agents": {"main": {"provider": "gpt"}}})
    settings = Settings.model_validate({**tables, "agents": {"main": {"provider": "gpt", "model": "gpt-5"}}})
    assert settings.agents["main"].model == "gpt-5"


@pytest.mark.parametrize("fallback", ["llama", "/llama", "offline/", "nowhere/llama"])
def test_a_fallback_needs_a_known_provider_and_a_model(fallback: str) -> None:
    with pytest.raises(ValidationError, match="contradict each other"):
        Settings.model_validate({"agents": {"main": {"fallbacks": [fallback]}}})
    assert Settings.model_validate({"agents": {"main": {"fallbacks": ["offline/rules"]}}}).agents["main"].fallbacks


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"cluster": {"labels": ["Build Server"]}}, "cluster.labels.0"),
        ({"repos": [{"id": "site", "path": "/srv/site", "label": ""}]}, "repos.0.label"),
        ({"agents": {"main": {"label": "gpu!"}}}, "agents.main.label"),
    ],
)
def test_a_label_is_a_short_name(tables: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"gateway": {"data_dir": "/data"}, **tables})
    (problem,) = refused.value.errors()
    assert (".".join(map(str, problem["loc"])), problem["type"]) == (key, "string_pattern_mismatch")
