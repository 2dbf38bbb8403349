"""What agents can use: tools, MCP servers, files."""

from pydantic import Field, ValidationInfo, field_validator

from config.errors import Mistake
from config.secrets import Secret
from config.types import DAY, Flag, Location, Seconds, Slug, Table, Text, Url, Whole


class ShellSettings(Table):
    """The tool that runs commands, in a sandbox of bubblewrap."""

    enabled: Flag = Field(default=False, description="Whether agents have it.")
    network: Flag = Field(
        default=False,
        description="Whether commands reach the network, and with it every service of this machine, ours too.",
    )
    timeout: Seconds = Field(default=60.0, ge=1, le=3600, description="Seconds after which a command is ended.")
    memory_mb: Whole = Field(default=1024, ge=64, le=1024 * 1024, description="The memory that a command may take.")
    max_processes: Whole = Field(default=64, ge=4, le=4096, description="How many processes a command may have.")
    max_output_chars: Whole = Field(
        default=30_000, ge=1000, le=48_000, description="How much of its output the model sees: beginning and end."
    )
    allow_unsandboxed: Flag = Field(
        default=False,
        description="Whether commands run with all rights of the daemon where there is no sandbox; otherwise refused.",
    )
    sandbox_socket: Location | None = Field(
        default=None,
        description="The socket of the service that runs the commands. Default: $GATEHOUSE_SANDBOX_SOCKET.",
    )


class FetchSettings(Table):
    """The tool that fetches pages from the public web."""

    timeout: Seconds = Field(default=20.0, ge=1, le=50, description="Seconds that a page may take, redirects included.")
    max_bytes: Whole = Field(
        default=2_000_000, ge=10_000, le=50_000_000, description="How much of a page is read, after decompression."
    )


class ToolSettings(Table):
    """What tools may do."""

    shell: ShellSettings = Field(default_factory=ShellSettings, description="Running commands.")
    fetch: FetchSettings = Field(default_factory=FetchSettings, description="Fetching pages.")


class McpSettings(Table):
    """An MCP server whose tools the agents may use."""

    command: tuple[Text, ...] = Field(default=(), description="The program to start, with its arguments.")
    url: Url | None = Field(
        default=None, validate_default=True, description="The address of a server that runs already."
    )
    env: dict[Text, Secret] = Field(default_factory=dict, description="The environment of the program.")
    headers: dict[Text, Secret] = Field(default_factory=dict, description="Sent with each request to the url.")
    timeout: Seconds = Field(
        default=60.0, ge=0.1, le=DAY, description="Seconds that it gets to start, and to answer a call of a tool."
    )

    @field_validator("url")
    @classmethod
    def _is_the_only_way(cls, url: str | None, info: ValidationInfo) -> str | None:
        command = info.data.get("command")
        if command is not None and bool(command) == bool(url):
            fault = "cannot be given together with command" if url else "or command is needed"
            raise Mistake(fault, "give exactly one of command and url")
        return url


class FileSettings(Table):
    """Files that come with messages or go with answers."""

    max_bytes: Whole = Field(
        default=20_000_000, ge=1, le=2_000_000_000, description="The largest file that is taken or sent."
    )
    max_per_message: Whole = Field(default=10, ge=0, le=100, description="How many files of one message are taken.")
    fetch_timeout: Seconds = Field(
        default=120.0, ge=1, le=3600, description="Seconds that a platform gets to hand over one file."
    )
    max_text_chars: Whole = Field(
        default=20_000,
        ge=0,
        description="Up to how many characters a text file stands in the message itself; longer ones are saved.",
    )
    max_stored_bytes: Whole = Field(
        default=1_000_000_000, ge=1_000_000, description="What all kept files may take; the oldest go first."
    )


class TranscriptionSettings(Table):
    """What makes text of voice messages; off without a provider."""

    provider: Slug | None = Field(
        default=None, description="The table in [providers] whose endpoint does it; its kind must be openai."
    )
    model: Text = Field(default="whisper-1", description="The endpoint's name of the model.")
