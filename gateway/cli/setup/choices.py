"""The choices of `gatehouse setup`: tests each one, and adds it to the plan that is written at the end."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import ValidationError

from config import ChannelSettings, GatewaySettings, ProviderSettings, Secret, Settings
from config.errors import explain
from config.secrets import LoadContext, is_reference, resolve
from gateway.adapters.registry import ENTRY_POINT_GROUP
from gateway.doctor.configuration import open_channels
from gateway.doctor.finding import Finding, Level
from gateway.doctor.peers import DEADLINE, check_channel, check_model
from gateway.errors import CannotStart, Refused
from gateway.install.setup import PRESETS, CurrentSetup, SetupPlan, default_base_url, default_model


class Choices:
    """Methods that add a choice raise `Refused` if it does not work. The plan then stays as it was.

    `path` is the configuration to change, and `environ` the environment in which its references are resolved. Without
    `tests`, no model and no platform is called. `say` tells the person what a test has found.
    """

    def __init__(self, path: Path, environ: Mapping[str, str], *, tests: bool, say: Callable[[str], None]) -> None:
        self.path = path
        self.environ = environ
        self.plan = SetupPlan()
        self.current = CurrentSetup.read(path)
        self._tests = tests
        self._say = say

    async def add_model(self, provider: str, *, base_url: str | None, model: str | None, key: str | None) -> None:
        """Make a model the one of the agent `main`. None keeps the present value, or takes the provider's default.

        An empty `base_url` resets the endpoint to the provider's own.
        """
        preset, current = PRESETS[provider], self.current
        given = base_url if base_url is not None else current.base_url(provider)
        url = (given if given is not None else default_base_url(provider, self.environ)) or None
        if provider == "custom" and not url:
            raise Refused("A custom endpoint needs --base-url.")
        check_url(url)
        text = key or current.key(provider, url)
        secret, reference = self.resolve_secret(text) if text else (None, None)
        model = model or current.model(provider) or await default_model(provider, url)
        if provider != "offline" and not model:
            raise Refused("No model was chosen. Add --model NAME.")
        if preset.needs_key and secret is None:
            raise Refused(f"{provider} needs a key. Add --key env:NAME or --key file:PATH.")
        settings = ProviderSettings(kind=preset.kind, base_url=url, api_key=secret)
        if self._tests:
            self._require_ok(await check_model(provider, settings, model or None, DEADLINE))
        self.plan.add_model(provider, settings, model, reference)

    async def add_bot(self, channel: str, text: str) -> None:
        """Enable a channel with a token, or with a reference to one."""
        token, reference = self.resolve_secret(text)
        settings = self.current.settings.channels.get(channel, ChannelSettings())
        # Without its other accounts, which have their own tokens.
        settings = settings.model_copy(update={"token": token, "enabled": True, "accounts": {}})
        try:
            channels = open_channels(Settings.model_construct(channels={channel: settings}))
        except CannotStart as error:
            raise Refused(str(error)) from error
        if self._tests:
            self._require_ok(await check_channel(channels[channel, "default"], DEADLINE))
        self.plan.add_token(channel, token, reference)

    def add_owners(self, ids: Sequence[str]) -> None:
        present = self.current.settings.gateway.owners
        owners = [*present, *(each for each in ids if each not in present)]
        try:
            GatewaySettings(owners=tuple(owners))
        except ValidationError as error:
            raise Refused("--owner takes CHANNEL:ID, such as the name of a channel and a number.") from error
        self.plan.values["gateway.owners"] = owners

    def resolve_secret(self, text: str) -> tuple[Secret, str | None]:
        """Return the secret, and the reference to write to the configuration; None if the secret needs a file.

        A system service (`environ` has a credentials directory) cannot read the variables and files of this shell, so
        their contents are stored as credentials.
        """
        if not is_reference(text):
            return Secret(text), None
        is_own = text.startswith("credential:") or "CREDENTIALS_DIRECTORY" not in self.environ
        context = LoadContext(environ=self.environ, folder=self.path.absolute().parent)
        try:
            return resolve(text, context), text if is_own else None
        except ValueError as error:
            raise Refused(f"{error}.") from error

    def _require_ok(self, finding: Finding) -> None:
        if finding.level is not Level.OK:
            raise Refused(f"{finding.message} {finding.fix}")
        self._say(finding.message)


def check_url(url: str | None) -> None:
    """Raise `Refused` if `url` cannot be the address of an endpoint."""
    try:
        ProviderSettings(kind=PRESETS["offline"].kind, base_url=url)
    except ValidationError as error:
        raise Refused(" ".join(f"The address {each.message}." for each in explain(error, ProviderSettings))) from error


def bot_channels() -> dict[str, str]:
    """Return the channels that need a token, each with its own instructions for getting one. The easiest comes first.

    The instructions are the channel's own sentences about a missing token: fewer words mean fewer steps.
    """
    instructions: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            open_channels(Settings.model_construct(channels={point.name: ChannelSettings()}))
        except CannotStart as error:
            # The first sentence says that the token is missing.
            instructions[point.name] = str(error).partition(". ")[2] or str(error)
    return dict(sorted(instructions.items(), key=lambda item: (len(item[1]), item[0])))
