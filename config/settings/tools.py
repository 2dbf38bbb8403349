"""Tools, MCP servers, attachments and transcription."""

import re
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from config.errors import InvalidValue
from config.secrets import Secret
from config.settings.webhooks import Pointer
from config.types import (
    DAY,
    HEADER_VALUE,
    FilePath,
    FileSharing,
    Flag,
    Headers,
    Integer,
    Price,
    SearchEngine,
    Seconds,
    Slug,
    SpeechFormat,
    Table,
    Text,
    Url,
)

QUERY = "{query}"
"""Stands for the query in the URL of a template."""


class ShellSettings(Table):
    """The tool `shell`, which runs commands in a bubblewrap sandbox."""

    enabled: Flag = Field(default=False, description="Whether agents can use it.")
    network: Flag = Field(
        default=False,
        description="Whether commands can use the network, including every service on this machine.",
    )
    timeout: Seconds = Field(default=60.0, ge=1, le=3600, description="After how many seconds a command is killed.")
    memory_mb: Integer = Field(
        default=1024, ge=64, le=1024 * 1024, description="How much memory a command may use, in MB."
    )
    max_processes: Integer = Field(default=64, ge=4, le=4096, description="How many processes a command may have.")
    max_output_chars: Integer = Field(
        default=30_000,
        ge=1000,
        le=48_000,
        description="How many characters of the output the model sees, from its start and end.",
    )
    allow_unsandboxed: Flag = Field(
        default=False,
        description="Whether commands run with all rights of the gateway if no sandbox is available. Otherwise they "
        "are rejected.",
    )
    sandbox_socket: FilePath | None = Field(
        default=None,
        description="The socket of the service that runs the commands. Default: $GATEHOUSE_SANDBOX_SOCKET.",
    )


class FetchSettings(Table):
    """The tool `fetch_url`, which fetches pages from the public web."""

    timeout: Seconds = Field(
        default=20.0, ge=1, le=50, description="How many seconds a page may take, including redirects."
    )
    max_bytes: Integer = Field(
        default=2_000_000,
        ge=10_000,
        le=50_000_000,
        description="How many bytes of a page are read, after decompression.",
    )


_WITH_KEY = (SearchEngine.BRAVE, SearchEngine.TAVILY)


class SearchSettings(Table):
    """The tool `web_search`, which asks a search engine. Agents have it once there is an engine."""

    engine: SearchEngine | None = Field(
        default=None,
        description='"searxng", "brave", "tavily", or "template" for any engine that answers a GET request with JSON. '
        "Default: no search.",
    )
    url: Url | None = Field(
        default=None,
        validate_default=True,
        description="The URL of the engine; its host may be on a private network. Required for searxng, and for "
        "template: there with {query} in it. Default: the vendor's own.",
    )
    api_key: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The API key of brave or tavily; preferably a reference like env:BRAVE_API_KEY.",
    )
    headers: Headers = Field(
        default_factory=dict, description="Further headers of each request, such as the key of a template's engine."
    )
    max_results: Integer = Field(default=8, ge=1, le=20, description="How many results the model sees at most.")
    timeout: Seconds = Field(default=15.0, ge=1, le=50, description="How many seconds the engine may take.")
    results_at: Pointer = Field(
        default="/results", description="For template: the JSON Pointer of the list of results in the answer."
    )
    title_at: Pointer = Field(default="/title", description="For template: the JSON Pointer of the title in a result.")
    link_at: Pointer = Field(default="/url", description="For template: the JSON Pointer of the URL in a result.")
    snippet_at: Pointer = Field(
        default="/content", description="For template: the JSON Pointer of the text in a result."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        engine = info.data.get("engine")
        if engine is SearchEngine.SEARXNG and url is None:
            raise InvalidValue(
                'is required by engine "searxng"', 'set it to your instance, like "http://10.0.0.5:8080"'
            )
        # In the host, the query would choose which machine is called.
        if engine is SearchEngine.TEMPLATE and (url is None or QUERY not in url or "{" in urlsplit(url).netloc):
            hint = f'write it like "https://search.example.org/api?q={QUERY}"'
            raise InvalidValue(f'with {QUERY} in its path or after its "?" is required by engine "template"', hint)
        if url is not None and engine in {SearchEngine.SEARXNG, *_WITH_KEY} and ("?" in url or "{" in url):
            raise InvalidValue("must be the address of the engine alone", "remove the query, which Gatehouse adds")
        return url

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: Secret | None, info: ValidationInfo) -> Secret | None:
        engine = info.data.get("engine")
        if engine in _WITH_KEY and key is None:
            raise InvalidValue(
                f'is required by engine "{engine}"', f'set it, ideally to "env:{engine.upper()}_API_KEY"'
            )
        if engine in {SearchEngine.SEARXNG, SearchEngine.TEMPLATE} and key is not None:
            hint = 'use headers, like { Authorization = "env:SEARCH_AUTHORIZATION" }'
            raise InvalidValue(f'is not used by engine "{engine}"', hint)
        if key is not None and not HEADER_VALUE.fullmatch(key.reveal()):
            raise InvalidValue("contains a character that no API key has", "copy it again, without spaces around it")
        return key


class DocumentSettings(Table):
    """Documents that are read as text: attachments, files of the workspace and pages that are no HTML."""

    timeout: Seconds = Field(default=30.0, ge=1, le=40, description="How many seconds one document may take.")
    memory_mb: Integer = Field(
        default=1024, ge=256, le=1024 * 1024, description="How much memory one document may take, in MB."
    )
    max_bytes: Integer = Field(
        default=20_000_000, ge=10_000, le=500_000_000, description="The largest document that is read, in bytes."
    )


class ImageSettings(Table):
    """The tool `generate_image`, which has pictures made. Agents have it once there is a provider."""

    provider: Slug | None = Field(
        default=None, description="The table in [providers] whose endpoint makes pictures; its kind must be openai."
    )
    model: Text = Field(default="gpt-image-1", description="The endpoint's name for the model.")
    size: Text | None = Field(
        default=None, description='The size of the pictures, like "1024x1024". Default: the endpoint\'s own choice.'
    )
    quality: Text | None = Field(
        default=None, description='Their quality, like "low" or "high". Default: the endpoint\'s own choice.'
    )
    price: Price = Field(default=0.0, ge=0, description="The price of a picture, in the currency of the models.")
    timeout: Seconds = Field(default=120.0, ge=1, le=900, description="How many seconds a picture may take.")
    max_bytes: Integer = Field(
        default=20_000_000, ge=10_000, le=100_000_000, description="The largest picture that is accepted, in bytes."
    )


class SpeechSettings(Table):
    """The tool `speak`, which turns text into a recording. Agents have it once there is a provider."""

    provider: Slug | None = Field(
        default=None, description="The table in [providers] whose endpoint speaks; its kind must be openai."
    )
    model: Text = Field(default="gpt-4o-mini-tts", description="The endpoint's name for the model.")
    voice: Text = Field(default="alloy", description="The endpoint's name for the voice.")
    format: SpeechFormat = Field(
        default=SpeechFormat.OPUS,
        description='"opus" (which Telegram shows as a voice message), "mp3", "aac", "flac" or "wav".',
    )
    price: Price = Field(
        default=0.0, ge=0, description="The price of a million characters, in the currency of the models."
    )
    max_chars: Integer = Field(
        default=4096, ge=1, le=100_000, description="How many characters a recording may have at most."
    )
    timeout: Seconds = Field(default=60.0, ge=1, le=900, description="How many seconds a recording may take.")
    max_bytes: Integer = Field(
        default=20_000_000, ge=10_000, le=100_000_000, description="The largest recording that is accepted, in bytes."
    )


class ToolSettings(Table):
    """The built-in tools."""

    shell: ShellSettings = Field(default_factory=ShellSettings, description="The tool that runs commands.")
    fetch: FetchSettings = Field(default_factory=FetchSettings, description="The tool that fetches pages.")
    search: SearchSettings = Field(default_factory=SearchSettings, description="The tool that searches the web.")
    documents: DocumentSettings = Field(
        default_factory=DocumentSettings, description="Documents that are read as text."
    )
    images: ImageSettings = Field(default_factory=ImageSettings, description="The tool that has pictures made.")
    speech: SpeechSettings = Field(default_factory=SpeechSettings, description="The tool that speaks.")


class SkillSettings(Table):
    """Agent Skills: folders with a SKILL.md file, which agents load when they need them."""

    folders: tuple[FilePath, ...] = Field(
        default=(),
        description="Folders that contain the folders of skills, such as a git checkout. A change in them needs no "
        "reload.",
    )


class McpSettings(Table):
    """An MCP server whose tools the agents may use."""

    command: tuple[Text, ...] = Field(default=(), description="The program to start, with its arguments.")
    url: Url | None = Field(default=None, validate_default=True, description="The URL of a server that is running.")
    env: dict[Text, Secret] = Field(default_factory=dict, description="Environment variables for the program.")
    headers: dict[Text, Secret] = Field(default_factory=dict, description="Headers of each request to the url.")
    timeout: Seconds = Field(
        default=60.0, ge=0.1, le=DAY, description="How many seconds the server gets to start, and to answer a call."
    )
    max_result_bytes: Integer = Field(
        default=2_000_000,
        ge=10_000,
        le=100_000_000,
        description="The largest message that is read from the server. A larger result becomes an error.",
    )
    max_tools: Integer = Field(
        default=200, ge=1, le=2000, description="How many of its tools are used. Further ones are left out."
    )
    max_schema_bytes: Integer = Field(
        default=32_000,
        ge=100,
        le=1_000_000,
        description="The largest schema of a tool, which is part of every model request. Larger tools are left out.",
    )
    max_schemas_bytes: Integer = Field(
        default=400_000,
        ge=1000,
        le=10_000_000,
        description="The size of the schemas of all its tools together. Further tools are left out.",
    )

    @field_validator("url")
    @classmethod
    def _check_command_or_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        command = info.data.get("command")  # None if the command is invalid, which is reported already.
        if command is not None and bool(command) == bool(url):
            fault = "cannot be combined with command" if url else "or command is required"
            raise InvalidValue(fault, "set exactly one of command and url")
        return url


class FileSettings(Table):
    """Attachments of messages and answers."""

    max_bytes: Integer = Field(
        default=20_000_000, ge=1, le=2_000_000_000, description="The largest file that is accepted or sent, in bytes."
    )
    max_per_message: Integer = Field(
        default=10, ge=0, le=100, description="How many files of one message are accepted."
    )
    fetch_timeout: Seconds = Field(
        default=120.0, ge=1, le=3600, description="How many seconds the download of one file may take."
    )
    max_text_chars: Integer = Field(
        default=20_000,
        ge=0,
        description="Text files up to this many characters are included in the message; longer ones are saved.",
    )
    max_stored_bytes: Integer = Field(
        default=1_000_000_000,
        ge=1_000_000,
        description="The size of all stored files, in bytes; beyond it the oldest are deleted. Files that are shared "
        "stay in the shared storage, and are fetched again when they are needed.",
    )
    shared: FileSharing = Field(
        default=FileSharing.NONE,
        description='Where the nodes of a cluster share files: "none", "database" (the PostgreSQL database of '
        'storage.url) or "s3" (a bucket).',
    )
    max_database_bytes: Integer = Field(
        default=20_000_000,
        ge=1,
        le=1_000_000_000,
        description='The largest file that is stored if files.shared is "database", in bytes; larger ones are refused.',
    )
    s3_endpoint: Url | None = Field(
        default=None, description='The URL of the S3 service, like "https://s3.example.org". Default: that of AWS.'
    )
    s3_region: Text = Field(default="us-east-1", description="The region of the bucket.")
    s3_bucket: Text | None = Field(default=None, validate_default=True, description="The bucket. It must exist.")
    s3_access_key: Secret | None = Field(
        default=None, validate_default=True, description="The id of the access key; a reference like env:NAME works."
    )
    s3_secret_key: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The secret access key; preferably a reference like env:GATEHOUSE_S3_SECRET_KEY.",
    )
    s3_prefix: str = Field(
        default="", max_length=100, description='How the names of all objects begin, like "gatehouse/files".'
    )

    @field_validator("s3_bucket", "s3_access_key", "s3_secret_key")
    @classmethod
    def _check_bucket(cls, value: str | Secret | None, info: ValidationInfo) -> str | Secret | None:
        if value is None and info.data.get("shared") is FileSharing.S3:
            raise InvalidValue(
                'is required, because files.shared is "s3"', "set it, or set files.shared to another value"
            )
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
        if isinstance(value, str) and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", value):
            raise InvalidValue(
                "is not a name of a bucket", "use 3 to 63 lowercase letters, digits, dots and hyphens, without a URL"
            )
        return value

    @field_validator("s3_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        prefix = prefix.strip("/")
        if prefix and not all(re.fullmatch(r"(?!\.)[\w.-]+", part, re.ASCII) for part in prefix.split("/")):
            raise InvalidValue(
                "may only have ASCII letters, digits, dots, hyphens and slashes", 'write it like "gatehouse/files"'
            )
        return prefix


class TranscriptionSettings(Table):
    """Transcription of voice messages; off without a provider."""

    provider: Slug | None = Field(
        default=None, description="The table in [providers] whose endpoint transcribes; its kind must be openai."
    )
    model: Text = Field(default="whisper-1", description="The endpoint's name for the model.")
