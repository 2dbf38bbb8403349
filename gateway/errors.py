"""The error tree. Classes differ only where the reaction differs.

ConfigError                 exit 78, naming file and key (lives in `config`)
GatehouseError
├── CannotStart             exit 78: a restart cannot fix it (directory in use, port in use)
├── Refused                 tell the person this sentence; nothing else has happened
│   ├── RefusedForNow       the same may succeed in a moment, so a program may repeat it
│   └── SessionDamaged      answer the message in a new session
├── MustStop                end the gateway: only its next start can tell whether the last change was stored
├── HeldElsewhere           another node of the cluster owns this conversation: forward the request to that node
│   └── NeedsLabel          another node has to own it before it goes on
├── ClientRefused           answer the request of a coding agent with this sentence
├── ChannelError
│   ├── Transient           the platform failed: try again, after `retry_after` if it asked for that
│   │   └── NotAccepted     the core cannot take this now: do not acknowledge it, offer it again later
│   │       └── RateLimited tell the program that it is too fast
│   ├── AuthRejected        retire this channel and keep the others
│   └── Undeliverable       drop this message and tell the sender
├── AgentFailed             end the turn with this sentence, and its session: the program of a coding agent is broken
└── ProviderFailed          end the turn with this sentence as its visible answer
    ├── ContextTooLong      shorten the conversation and retry once
    ├── ProviderBusy        retry, after `retry_after` if it asked for that; then as below
    └── ModelUnavailable    try the next fallback model, if the agent has one
"""

from config import ConfigError

__all__ = [
    "OUR_FAULT",
    "AgentFailed",
    "AuthRejected",
    "CannotStart",
    "ChannelError",
    "ClientRefused",
    "ConfigError",
    "ContextTooLong",
    "GatehouseError",
    "HeldElsewhere",
    "ModelUnavailable",
    "MustStop",
    "NeedsLabel",
    "NotAccepted",
    "ProviderBusy",
    "ProviderFailed",
    "RateLimited",
    "Refused",
    "RefusedForNow",
    "SessionDamaged",
    "Transient",
    "Undeliverable",
]


OUR_FAULT = "Something went wrong on my side. The bot's operator can find the details in the log."
"""The answer to a message that hit a bug."""


class GatehouseError(Exception):
    """Its text is a sentence for a person, with what failed and what to do."""


class CannotStart(GatehouseError):
    pass


class MustStop(GatehouseError):
    pass


class Refused(GatehouseError):
    pass


class RefusedForNow(Refused):
    pass


class SessionDamaged(Refused):
    """The transcript of a session cannot be used. `problem` is the part of the sentence that says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Your next message starts a new session.")
        self.problem = problem


class HeldElsewhere(GatehouseError):
    """Another node of the cluster owns the conversation with the key `scope`, or none does at the moment."""

    def __init__(self, scope: str) -> None:
        super().__init__("Another node of the cluster serves this conversation. Please try again.")
        self.scope = scope


class NeedsLabel(HeldElsewhere):
    """This node owns the conversation, but lacks `labels` that work on it needs. It gives the conversation away."""

    def __init__(self, scope: str, labels: frozenset[str]) -> None:
        super().__init__(scope)
        self.labels = labels


class ClientRefused(GatehouseError):
    """A coding agent asked for a file or a command that it does not get."""


class ChannelError(GatehouseError):
    pass


class Transient(ChannelError):
    """`may_have_arrived` marks a send with an unknown outcome: the response was lost, not the request."""

    def __init__(self, message: str, *, retry_after: float | None = None, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.may_have_arrived = may_have_arrived


class NotAccepted(Transient):
    """The core cannot take a message or a fact now: its storage is unavailable, or the gateway is shutting down.

    The platform has not failed, so a channel does not report itself as down. It derives from `Transient` for channels
    that know only that class: they retry as well.
    """


class RateLimited(NotAccepted):
    """A program sends more messages than it may. It can send this one again after `retry_after`."""


class AuthRejected(ChannelError):
    pass


class Undeliverable(ChannelError):
    pass


class AgentFailed(GatehouseError):
    """The program of a coding agent has died or broken the protocol. `details` has its last words, for owners."""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class ProviderFailed(GatehouseError):
    """`details` are the provider's own words, for the operator."""

    details: str = ""


class ContextTooLong(ProviderFailed):
    """The conversation does not fit into the model's context window. No text of the step was shown yet."""


class ProviderBusy(ProviderFailed):
    """The provider is overloaded, unreachable, or cut the answer off. It is likely to work later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelUnavailable(ProviderFailed):
    """The model will not answer until a person fixes its key, its name or its billing."""
