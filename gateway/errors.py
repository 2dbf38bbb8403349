"""The error tree; classes differ only where the reaction differs.

ConfigError                 exit 78, naming file and key (lives in `config`)
GatehouseError
├── CannotStart             exit 78: what a restart cannot mend (directory taken, port in use)
├── Refused                 tell the person this sentence; nothing else happens
├── ChannelError
│   ├── Transient           try again, after `retry_after` if the peer asked
│   ├── AuthRejected        retire this channel, keep the others
│   └── Undeliverable       drop this message, tell the sender
└── ProviderFailed          end the turn with this sentence as its visible answer
"""

from config import ConfigError

__all__ = [
    "AuthRejected",
    "CannotStart",
    "ChannelError",
    "ConfigError",
    "GatehouseError",
    "ProviderFailed",
    "Refused",
    "Transient",
    "Undeliverable",
]


class GatehouseError(Exception):
    """Its text is a sentence for a person: what failed, and what to do."""


class CannotStart(GatehouseError):
    pass


class Refused(GatehouseError):
    pass


class ChannelError(GatehouseError):
    pass


class Transient(ChannelError):
    """`may_have_arrived`: a send whose outcome nobody knows (the answer was lost, not the request)."""

    def __init__(self, message: str, *, retry_after: float | None = None, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.may_have_arrived = may_have_arrived


class AuthRejected(ChannelError):
    pass


class Undeliverable(ChannelError):
    pass


class ProviderFailed(GatehouseError):
    pass
