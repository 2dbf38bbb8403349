"""Roles of programs: what a token may do, and the list of all roles."""

from datetime import UTC, datetime
from pathlib import Path

from gateway.access.guests import Guest, Person
from gateway.contract import TokenScope
from tests.agent.scripted import ScriptedProvider
from tests.api.harness import api
from tests.daemon.harness import settings
from tests.daemon.test_roles import Tools, says

ROLES = {"ci": {"agents": ["coder"], "tools": ["current_time"], "people": ["loopback:ann"]}}


async def test_a_token_has_the_rights_of_its_role_at_once(tmp_path: Path) -> None:
    provider = ScriptedProvider(says())
    agents: dict[str, object] = {"coder": {}}
    configured = settings(tmp_path, agents=agents, roles=ROLES)
    async with api(configured, Tools().given(provider)) as owner:
        program = await owner.token_for(TokenScope.PROMPT, TokenScope.READ, role="ci")
        status, refused = await program.call("POST", "/api/sessions", {})
        assert (status, "may not use the agent `main`" in refused["detail"]) == (403, True)
        _, found = await program.call("GET", "/api/agents")
        assert [(each["id"], each["tools"]) for each in found["agents"]] == [("coder", ["current_time"])]
        session = await program.start(agent="coder")
        await program.prompt(session, "hello")
        await program.answered(session)
        assert [[spec.name for spec in prompt.tools] for prompt in provider.prompts] == [["current_time"]]
        _, found = await program.call("GET", "/v1/models")
        assert [each["id"] for each in found["data"]] == ["coder"]
        chat = {"model": "coder", "messages": [{"role": "user", "content": "hi"}]}
        status, _ = await program.call("POST", "/v1/chat/completions", chat)
        assert status == 200
        assert [spec.name for spec in provider.prompts[-1].tools] == ["current_time"]
        status, _ = await program.call("GET", "/api/roles")
        assert status == 403
        ann = Person(channel="loopback", account="default", sender="ann")
        guest = Guest(person=ann, name="Ann", peer="ann", since=datetime.now(UTC), role="member")
        owner.daemon.live.guest_book.guests[ann] = guest  # The settings win over the role of an approval.
        _, found = await owner.call("GET", "/api/roles")
        assert [each["people"] for each in found["roles"] if each["name"] == "member"] == [[]]
        role = next(each for each in found["roles"] if each["name"] == "ci")
        assert (role["tools"], role["people"], len(role["tokens"])) == (["current_time"], ["loopback:ann"], 1)
        # The table is gone: the token has no tools any more, and nothing that it lacked before.
        await owner.daemon.reload(settings(tmp_path, agents=agents))
        Tools().given(provider)(owner.daemon)
        await program.prompt(session, "hello")
        await program.answered(session, turns=2)
        assert provider.prompts[-1].tools == ()
        _, found = await owner.call("GET", "/api/roles")
        assert [each["name"] for each in found["roles"] if not each["isConfigured"]] == ["ci"]
