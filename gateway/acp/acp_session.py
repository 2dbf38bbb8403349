"""The ACP session of a program: opened or loaded, in the mode and with the model that the settings say."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar

import structlog
from acp import PROTOCOL_VERSION, RequestError, schema
from acp.connection import Connection
from acp.meta import AGENT_METHODS
from acp.utils import serialize_params
from pydantic import BaseModel, ValidationError

from gateway.acp.launch import AgentLaunch
from gateway.errors import Refused
from gateway.text import clean, excerpt

log = structlog.get_logger()

_MODE_TIMEOUT = 5.0

_Model = TypeVar("_Model", bound=BaseModel)


class Start(StrEnum):
    """How a program knows the conversation so far."""

    NEW = "new"
    """It knows nothing of it."""
    LOADED = "loaded"
    """It has loaded its own record of it."""
    RUNNING = "running"
    """It is the same program that had the conversation."""


class InvalidAnswer(Exception):
    """The program has answered something that is not ACP."""


class AcpSession:
    def __init__(self, connection: Connection, launch: AgentLaunch) -> None:
        self._connection = connection
        self._launch = launch
        self.id = ""
        self.takes_images = False
        self._set_mode_to: Callable[[str], Awaitable[None]] | None = None
        self._has_other_mode = False

    async def open(self) -> Start:
        """Initialise the program, open its session, and set mode and model.

        Raises `Refused` if it lacks the mode or the model, and what `request` raises.
        """
        launch = self._launch
        settings, preset = launch.settings, launch.preset
        hello = await self.request(
            "initialize",
            schema.InitializeRequest(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=schema.ClientCapabilities(
                    fs=schema.FileSystemCapabilities(
                        read_text_file=settings.client_files, write_text_file=settings.client_files
                    ),
                    terminal=settings.client_terminal,
                ),
                client_info=schema.Implementation(name="gatehouse", title="Gatehouse", version="1"),
            ),
            schema.InitializeResponse,
        )
        if hello.protocol_version != PROTOCOL_VERSION:
            raise InvalidAnswer(f"it speaks version {hello.protocol_version} of ACP, not {PROTOCOL_VERSION}")
        abilities = hello.agent_capabilities or schema.AgentCapabilities()
        if abilities.prompt_capabilities is not None:
            self.takes_images = bool(abilities.prompt_capabilities.image)
        methods = {method.id for method in hello.auth_methods or ()}
        if preset.auth_method is not None and preset.auth_method in methods:
            login = schema.AuthenticateRequest(method_id=preset.auth_method)
            await self.request("authenticate", login, schema.AuthenticateResponse)
        start = Start.NEW
        opened: Any = None
        if launch.known_id is not None and not preset.is_load_lossy:
            opened = await self._reopen(launch.known_id, abilities)
            start = Start.LOADED if opened is not None else Start.NEW
        if opened is None:
            cwd, meta = str(launch.workspace.folder), dict(preset.session_meta) or None
            request = schema.NewSessionRequest(cwd=cwd, mcp_servers=[], field_meta=meta)
            opened = await self.request("session_new", request, schema.NewSessionResponse)
            self.id = opened.session_id
        await self._set_mode(opened)
        await self._set_model(opened)
        log.info("agent_ready", agent=launch.agent, session=launch.session, acp_session=self.id, start=start)
        return start

    async def _reopen(self, known_id: str, abilities: schema.AgentCapabilities) -> Any:  # noqa: ANN401 - either answer.
        """Let the program continue an ACP session of an earlier one. None if it cannot."""
        cwd, self.id = str(self._launch.workspace.folder), known_id
        meta = dict(self._launch.preset.session_meta) or None
        sessions = abilities.session_capabilities
        ways: list[tuple[str, BaseModel, type[BaseModel]]] = []
        if sessions is not None and sessions.resume is not None:
            resume = schema.ResumeSessionRequest(cwd=cwd, session_id=known_id, mcp_servers=[], field_meta=meta)
            ways.append(("session_resume", resume, schema.ResumeSessionResponse))
        if abilities.load_session:
            # It repeats the conversation as updates. They are dropped: the transcript has it.
            load = schema.LoadSessionRequest(cwd=cwd, session_id=known_id, mcp_servers=[], field_meta=meta)
            ways.append(("session_load", load, schema.LoadSessionResponse))
        for method, request, answer in ways:
            try:
                return await self.request(method, request, answer)
            except (RequestError, InvalidAnswer) as error:  # qwen-code offers to resume, and cannot.
                reason = error_text(error) if isinstance(error, RequestError) else str(error)
                log.info(
                    "agent_session_not_loaded", agent=self._launch.agent, session=self._launch.session, reason=reason
                )
        return None

    async def _set_mode(self, opened: Any) -> None:  # noqa: ANN401 - as above.
        """Set the configured mode. A program that does not have it is not used."""
        mode = self._launch.preset.mode
        if mode is None:
            return
        listed = [each.id for each in opened.modes.available_modes] if opened.modes is not None else []
        option = _find_option(opened, self._launch.preset.mode_option or "mode")
        values = _values(option) if option is not None else []
        if mode in listed:

            async def set_mode(mode: str) -> None:
                request = schema.SetSessionModeRequest(session_id=self.id, mode_id=mode)
                await self.request("session_set_mode", request, schema.SetSessionModeResponse)

        elif option is not None and mode in values:

            async def set_mode(mode: str) -> None:
                await self._set_option(option.id, mode)

        else:
            offered = _listed(listed or values)
            raise Refused(
                f"The agent {self._launch.agent} has no mode `{mode}`, so I didn't use it. It has: {offered}. "
                f"An owner can set agents.{self._launch.agent}.mode."
            )
        await set_mode(mode)
        self._set_mode_to = set_mode

    async def _set_model(self, opened: Any) -> None:  # noqa: ANN401 - as above.
        model, wanted = self._launch.settings.model, self._launch.preset.model_option
        if model is None or wanted is None:
            return
        option = _find_option(opened, wanted)
        if option is None or model not in _values(option):
            offered = _listed(_values(option) if option is not None else [])
            raise Refused(
                f"The agent {self._launch.agent} can't use the model `{model}`. It offers: {offered}. "
                f"/model default goes back to its own choice."
            )
        await self._set_option(option.id, model)

    async def _set_option(self, option: str, value: str) -> None:
        request = schema.SetSessionConfigOptionSelectRequest(config_id=option, session_id=self.id, value=value)
        await self.request("session_set_config_option", request, schema.SetSessionConfigOptionResponse)

    def note_mode(self, update: object) -> None:
        """Note in which mode the program is. Some report what was set, others switch by themselves."""
        mode: str | None = None
        if isinstance(update, schema.CurrentModeUpdate):
            mode = update.current_mode_id
        elif isinstance(update, schema.ConfigOptionUpdate):
            option = _find_option(update, self._launch.preset.mode_option or "mode")
            mode = option.current_value if option is not None else None
        if mode is None or self._set_mode_to is None:
            return
        had_other_mode, self._has_other_mode = self._has_other_mode, mode != self._launch.preset.mode
        if self._has_other_mode and not had_other_mode:
            agent, session = self._launch.agent, self._launch.session
            log.warning("agent_mode_changed", agent=agent, session=session, mode=excerpt(clean(mode), 60))

    async def restore_mode(self) -> None:
        """Set the configured mode again, if the program has switched to another one. Raises what `request` raises."""
        wanted = self._launch.preset.mode
        if self._has_other_mode and self._set_mode_to is not None and wanted is not None:
            try:
                async with asyncio.timeout(_MODE_TIMEOUT):
                    await self._set_mode_to(wanted)
            except TimeoutError:
                raise InvalidAnswer(f"it left its mode, and did not go back to {wanted}") from None
            self._has_other_mode = False

    async def request(self, method: str, params: BaseModel, answer: type[_Model]) -> _Model:
        """Send a request. Raises `RequestError` if the program refuses it, and `ConnectionError` if it is gone."""
        result = await self._connection.send_request(AGENT_METHODS[method], serialize_params(params))
        try:
            return answer.model_validate(result if isinstance(result, dict) else {})
        except ValidationError as error:
            where = ", ".join(".".join(map(str, each["loc"][:4])) for each in error.errors()[:3])
            raise InvalidAnswer(f"its answer to {AGENT_METHODS[method]} is invalid ({where})") from error


def error_text(error: RequestError) -> str:
    """Return the program's own words for an error, without its end mark."""
    data = error.data if isinstance(error.data, dict) else {}
    details = data.get("details") or data.get("message") or ""
    text = f"{error}: {details}" if details and str(details) not in str(error) else str(error)
    return excerpt(clean(text), 500).rstrip(".") + "."


def _listed(names: list[str]) -> str:
    """Return the names that a program offers, for a sentence. They are its own words, so there may be many."""
    return excerpt(clean(", ".join(f"`{name}`" for name in names[:20])), 500) or "none"


def _find_option(opened: Any, name: str) -> Any:  # noqa: ANN401 - types of the SDK.
    """Return the select option with this id or category, from the answer to session/new."""
    for option in opened.config_options or ():
        if option.type == "select" and name in {option.id, option.category}:
            return option
    return None


def _values(option: Any) -> list[str]:  # noqa: ANN401 - a type of the SDK.
    """Return the values of a select option, also those in groups."""
    values: list[str] = []
    for each in option.options:
        nested = getattr(each, "options", None)
        values += [inner.value for inner in nested] if nested is not None else [each.value]
    return values
