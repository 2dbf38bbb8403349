"""Serves the requests of a coding agent for files and commands of its workspace, where the settings allow that."""

from typing import Any

from acp import RequestError, schema
from acp.meta import CLIENT_METHODS

from gateway.acp.client_files import ClientFiles
from gateway.acp.client_terminals import ClientTerminals, TerminalExit
from gateway.acp.launch import AgentLaunch


class ClientRequests:
    """Answers the requests of one program for files and terminals. Those that are not allowed do not exist for it."""

    def __init__(self, launch: AgentLaunch) -> None:
        self._launch = launch
        self._files = ClientFiles(launch.workspace.folder, launch.attachments) if launch.settings.client_files else None
        self._terminals: ClientTerminals | None = None

    async def answer(self, method: str, params: Any) -> Any:  # noqa: ANN401 - JSON.
        """Answer a request of the program. Raises `RequestError`, `ValidationError` and `ClientRefused`."""
        if self._files is not None and method == CLIENT_METHODS["fs_read_text_file"]:
            read = schema.ReadTextFileRequest.model_validate(params)
            return {"content": await self._files.read_text_file(read.path, line=read.line, limit=read.limit)}
        if self._files is not None and method == CLIENT_METHODS["fs_write_text_file"]:
            write = schema.WriteTextFileRequest.model_validate(params)
            await self._files.write_text_file(write.path, write.content)
            return {}
        if self._launch.settings.client_terminal and method.startswith("terminal/"):
            return await self._answer_terminal(method, params)
        raise RequestError.method_not_found(method)

    async def _answer_terminal(self, method: str, params: Any) -> Any:  # noqa: ANN401 - JSON.
        if self._terminals is None:
            workspace = self._launch.workspace
            self._terminals = ClientTerminals(
                self._launch.sandboxed(), workspace.folder, self._launch.service, env=workspace.env
            )
        terminals = self._terminals
        if method == CLIENT_METHODS["terminal_create"]:
            wanted = schema.CreateTerminalRequest.model_validate(params)
            name = await terminals.create(
                wanted.command,
                args=wanted.args or [],
                env={each.name: each.value for each in wanted.env or ()},
                cwd=wanted.cwd,
                output_byte_limit=wanted.output_byte_limit,
            )
            return {"terminalId": name}
        name = schema.TerminalOutputRequest.model_validate(params).terminal_id
        if method == CLIENT_METHODS["terminal_output"]:
            shown = terminals.output(name)
            ended = {"exitStatus": _exit_status(shown.exit)} if shown.exit is not None else {}
            return {"output": shown.text, "truncated": shown.is_truncated, **ended}
        if method == CLIENT_METHODS["terminal_wait_for_exit"]:
            return _exit_status(await terminals.wait_for_exit(name))
        if method == CLIENT_METHODS["terminal_kill"]:
            await terminals.kill(name)
            return {}
        if method == CLIENT_METHODS["terminal_release"]:
            await terminals.release(name)
            return {}
        raise RequestError.method_not_found(method)

    async def aclose(self) -> None:
        """End the commands that are still running."""
        if self._terminals is not None:
            await self._terminals.aclose()


def _exit_status(ended: TerminalExit) -> dict[str, Any]:
    return {"exitCode": ended.exit_code, "signal": ended.signal}
