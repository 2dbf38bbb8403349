"""The agents with their tools, the MCP servers, and a trial of a tool."""

from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic
from uuid import uuid4

from config.types import API_CHANNEL
from gateway.access.rules import Live
from gateway.admin_api import types as t
from gateway.agent.tools import ToolContext
from gateway.agent.workspace_lock import WorkspaceLocks
from gateway.api.operation import ApiCall
from gateway.conversation import ToolCall
from gateway.documents.conversion import DocumentConverter
from gateway.http.responses import HttpError
from gateway.mcp.server import McpServers, server_of
from gateway.metrics import Metrics
from gateway.routing import program_scope
from gateway.turns.agents import AgentRegistry, ConfiguredAgent
from gateway.turns.context import TurnContext

TRIAL = "trial"
"""The chat that tools are tried in. Its workspace and its memory belong to no conversation."""


class AgentTools:
    """Handles the routes of agents, tools and MCP servers."""

    def __init__(
        self,
        *,
        live: Live,
        agents: AgentRegistry,
        mcp: McpServers,
        context: TurnContext,
        locks: WorkspaceLocks,
        documents: DocumentConverter,
        metrics: Metrics,
    ) -> None:
        self._live = live
        self._agents = agents
        self._mcp = mcp
        self._context = context
        self._locks = locks
        self._documents = documents
        self._metrics = metrics

    async def agents(self, call: ApiCall) -> t.AgentDetails:
        del call
        return t.AgentDetails(agents=[self._detail(agent) for agent in self._agents])

    def _detail(self, agent: ConfiguredAgent) -> t.AgentDetail:
        settings = self._live.settings.agents[agent.name]
        model = agent.info.name
        failed_at, last_error = self._metrics.last_failures.get(model, (None, ""))
        return t.AgentDetail(
            id=agent.name,
            backend=settings.backend.value,
            provider=settings.provider,
            model=agent.model,
            fallbacks=list(settings.fallbacks),
            models=list(agent.models),
            is_choosable=agent.is_choosable,
            workspace=settings.workspace.value,
            max_iterations=agent.max_iterations,
            ask=list(settings.ask),
            always_allow=list(settings.always_allow),
            skills=sorted(self._agents.in_scope(agent.name, _scope(agent.name)).skills().folders),
            tools=[
                t.ToolInfo(
                    name=spec.name,
                    description=spec.description,
                    schema=dict(spec.schema),
                    needs_approval=agent.toolbox.needs_approval(ToolCall(id="", name=spec.name, input={})),
                    server=server_of(spec.name) or "",
                )
                for spec in sorted(agent.toolbox.specs(), key=lambda spec: spec.name)
            ],
            trouble=self._trouble(model),
            last_error=last_error,
            last_error_at=None if failed_at is None else datetime.fromtimestamp(failed_at, UTC),
        )

    def _trouble(self, model: str) -> str:
        if model in self._agents.skipped_models():
            return f"The model {model} failed recently, so its fallback is used."
        failures = self._metrics.failing[model]
        if failures < 2:  # noqa: PLR2004 - a row begins with two.
            return f"The last request to the model {model} failed." if failures else ""
        return f"The model {model} failed {failures} times in a row."

    async def mcp_servers(self, call: ApiCall) -> t.McpServerList:
        del call
        return t.McpServerList(
            servers=[
                t.McpServerInfo(
                    name=server.name,
                    trouble=server.trouble,
                    tools=[tool.spec.name for tool in server.tools],
                    left_out=[t.LeftOutToolInfo(name=each.name, reason=each.reason) for each in server.left_out],
                )
                for server in self._mcp
            ]
        )

    async def try_tool(self, call: ApiCall) -> t.ToolTrial:
        """Run a tool as an agent would, in a workspace of its own. The caller has approved it by this request."""
        name, wanted = call.path("id"), call.path("tool")
        agent = next((each for each in self._agents if each.name == name), None)
        if agent is None or all(spec.name != wanted for spec in agent.toolbox.specs()):
            detail = "There is no such agent, or it has no such tool. GET /api/agents/details lists both."
            raise HttpError(HTTPStatus.NOT_FOUND, detail)
        scope = _scope(name)
        scoped = self._agents.in_scope(name, scope)
        context = ToolContext(
            workspace=scoped.workspace.path,
            is_private=scoped.workspace.is_private,
            find_skills=lambda: scoped.skills().folders,
            locks=self._locks,
            memory=self._context.memory_folder(scope),
            now=self._context.now,
            documents=self._documents,
        )
        started = monotonic()
        trial = ToolCall(id=uuid4().hex, name=wanted, input=call.body_as(t.TryToolBody).args)
        outcome = scoped.toolbox.find_fault(trial) or await scoped.toolbox.run(trial, context)
        await self._context.memory_may_have_changed(scope)
        return t.ToolTrial(output=outcome.output, is_error=outcome.is_error, seconds=round(monotonic() - started, 3))


def _scope(agent: str) -> str:
    return program_scope(agent, API_CHANNEL, TRIAL).scope
