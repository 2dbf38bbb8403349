"""What the comparison needs to know of a gateway: how to install it, how to configure it and how to start it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers on loopback that a gateway talks to."""

    bot_api: str
    """The root of the Bot API. A method's URL has `/bot<token>/<method>` after it."""
    model: str
    """The base URL of an OpenAI-compatible API. Its only model is `m`."""
    proxy: str
    """An HTTP proxy that connects `api.telegram.org` to the same Bot API, with TLS."""
    certificate: Path
    """The certificate of the authority that the proxied Bot API's certificate is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Variables beyond `PATH`, `HOME` and the locale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    version: str
    install: Callable[[Path], None]
    """Install the pinned version into a folder that does not exist yet."""
    configure: Callable[[Path, Path, Servers], Launch]
    """Write the configuration. The arguments are the folder of the installation, an empty home, and the servers."""


def install_from_pypi(folder: Path, *requirements: str) -> None:
    """Install packages into a new virtual environment, with the Python that runs the comparison."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin/pip"), "install", "--quiet", *requirements], check=True)
