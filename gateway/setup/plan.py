"""What was chosen, tried out before anything is written, and then written in one go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from config import ChannelSettings, ProviderSettings, Secret, Settings, set_values
from config.files import make_private_directory, write_atomically
from gateway.channels import Channels
from gateway.doctor.finding import Finding, wrong
from gateway.doctor.peers import DEADLINE, prove_channel, prove_model
from gateway.errors import CannotStart
from gateway.plugins import GROUP
from gateway.rehearsal import NoSessions
from gateway.setup.models import Preset

__all__ = ["Plan", "bots", "model_plan", "token_plan", "tried_model", "tried_token"]


@dataclass(slots=True, kw_only=True)
class Plan:
    """`values` are keys of the configuration, None for those to remove.

    `secrets` are files beside it, which only their owner reads.
    """

    values: dict[str, object] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)

    def add(self, other: "Plan") -> None:
        self.values.update(other.values)
        self.secrets.update(other.secrets)

    def write(self, path: Path, environ: Mapping[str, str]) -> None:
        """Write the secrets, then the configuration that names them; a `ConfigError` leaves that as it was."""
        folder = path.absolute().parent
        make_private_directory(folder)
        for name, secret in self.secrets.items():
            write_atomically(folder / name, f"{secret.reveal()}\n".encode())
        set_values(path, self.values, environ)


def model_plan(name: str, provider: ProviderSettings, model: str, reference: str | None) -> Plan:
    """Make `model` the one that the agent `main` asks. A `reference` stands for a key that is kept elsewhere.

    What the provider shall not have any more is removed.
    """
    is_typed = provider.api_key is not None and not reference
    values: dict[str, object] = {
        "agents.main.provider": name,
        "agents.main.model": model or None,
        f"providers.{name}.kind": provider.kind.value,
        f"providers.{name}.base_url": provider.base_url,
        f"providers.{name}.api_key": f"file:{name}.key" if is_typed else reference,
    }
    return Plan(values=values, secrets={f"{name}.key": provider.api_key} if provider.api_key and is_typed else {})


def token_plan(channel: str, token: Secret, reference: str | None) -> Plan:
    key = f"channels.{channel}"
    values: dict[str, object] = {f"{key}.enabled": True, f"{key}.token": reference or f"file:{channel}.token"}
    return Plan(values=values, secrets={} if reference else {f"{channel}.token": token})


async def tried_model(name: str, preset: Preset, provider: ProviderSettings, model: str) -> Finding:
    """Ask the model for a word, as the doctor does."""
    if preset.needs_key and provider.api_key is None:
        return wrong(f"providers.{name}", "There is no key.", "Give one.")
    return await prove_model(name, provider, model or None, DEADLINE)


async def tried_token(channel: str, settings: ChannelSettings) -> Finding:
    """Have the platform say whom it takes the bot for."""
    channels = Channels(NoSessions())
    try:
        channels.open(Settings.model_construct(channels={channel: settings}))
    except CannotStart as refusal:
        return wrong(f"channels.{channel}", str(refusal), "Give the token of a bot.")
    return await prove_channel(channels.by_identity[channel, "default"], DEADLINE)


def bots() -> dict[str, str]:
    """Return the channels that need a token, each with its own words about where to get one."""
    wanting: dict[str, str] = {}
    for name in sorted(point.name for point in entry_points(group=GROUP)):
        try:
            Channels(NoSessions()).open(Settings.model_construct(channels={name: ChannelSettings()}))
        except CannotStart as wish:
            wanting[name] = str(wish)
    return wanting
