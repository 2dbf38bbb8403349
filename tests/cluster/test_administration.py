"""The API for administration in a cluster: any node knows the work of all of them."""

from functools import partial
from pathlib import Path

from tests.cluster.test_http import Client, Json, clients
from tests.polling import until


async def test_every_node_lists_the_work_of_all_nodes(tmp_path: Path, database_url: str) -> None:
    async with clients(tmp_path, database_url) as client:
        sessions = {node: await _asks(client, node) for node in "abc"}
        for node in "abc":
            await until(partial(_lists, client, node, set(sessions.values())))
            overview = await client.call(node, "GET", "/api/overview")
            assert {turn["sessionId"] for turn in overview["turns"]} == set(sessions.values())
            assert {turn["activity"] for turn in overview["turns"]} == {"approval"}
            assert overview["openApprovals"] == 3
            assert {(each["name"], each["isThis"]) for each in overview["nodes"]} == {
                (name, name == node) for name in "abc"
            }
            local = await client.call(node, "GET", "/api/overview?local=true")
            assert {turn["node"] for turn in local["turns"]} <= {node}
        await _check_logs(client)
        approvals = (await client.call("a", "GET", "/api/approvals"))["approvals"]
        for asked in approvals:
            path = f"/api/sessions/{asked['sessionId']}/approvals/{asked['approvalId']}"
            await client.call("c", "POST", path, {"decision": "approve"})
        await until(partial(_lists, client, "b", set()))


async def _asks(client: Client, node: str) -> str:
    """Start a session whose agent asks a person, and return its id."""
    session: str = (await client.call(node, "POST", "/api/sessions", {"agent": "careful"}))["id"]
    await client.call(node, "POST", f"/api/sessions/{session}/prompt", {"text": "tool"})
    return session


async def _lists(client: Client, node: str, sessions: set[str]) -> bool:
    found: Json = await client.call(node, "GET", "/api/approvals")
    return {each["sessionId"] for each in found["approvals"]} == sessions


async def _check_logs(client: Client) -> None:
    """Every node has a log of its own, which can be read at all of them."""
    for node in "abc":
        lines = (await client.call("a", "GET", f"/api/logs?q=gateway_ready&node={node}"))["lines"]
        assert client.url(node) in lines[0]["fields"]
    await client.call("a", "GET", "/api/logs?node=nowhere", status=404)
