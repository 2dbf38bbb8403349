"""Traces: the way of each message as spans, for an OpenTelemetry collector."""

from pydantic import Field

from config.types import Headers, Share, Table, Text, Url


class TracingSettings(Table):
    """Traces for an OpenTelemetry collector (OTLP over HTTP). They have no texts, no people and no chats."""

    endpoint: Url | None = Field(
        default=None, description='The collector, like "http://127.0.0.1:4318". Default: nothing is traced.'
    )
    headers: Headers = Field(
        default_factory=dict, description="Headers of each request to the collector, such as its API key."
    )
    sample_ratio: Share = Field(
        default=1.0, ge=0, le=1, description="The share of messages that are traced, from 0 to 1."
    )
    service_name: Text = Field(default="gatehouse", description="The name under which the traces are found.")
