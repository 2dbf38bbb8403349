"""Several gateways on one PostgreSQL database."""

from pydantic import Field, field_validator

from config.errors import InvalidValue
from config.settings.storage import postgresql_url, split_password
from config.types import Flag, Seconds, Slug, Table, check_url


class ClusterSettings(Table):
    """A cluster: several gateways (nodes) that serve the same conversations from one PostgreSQL database."""

    enabled: Flag = Field(
        default=False, description="Whether this gateway is a node of a cluster; needs PostgreSQL and http.token."
    )
    name: str = Field(
        default="", description="The name of this node, for people. Default: the host name.", max_length=100
    )
    address: str = Field(
        default="",
        description='The URL under which other nodes reach this one, like "http://10.0.0.2:8420". Default: http.host '
        "and http.port; if http.host is 0.0.0.0, the address of this machine in the network of the database.",
    )
    lease_seconds: Seconds = Field(
        default=8.0,
        ge=2,
        le=120,
        description="For how many seconds a node that is silent keeps its conversations. Then others take them over.",
    )
    labels: tuple[Slug, ...] = Field(
        default=(), description="What this node has that others lack. Repos and agents may need a label."
    )
    label_timeout: Seconds = Field(
        default=30.0,
        ge=0,
        le=600,
        description="For how many seconds messages wait for a node with a label. Then they are refused.",
    )
    listen_url: str = Field(
        default="",
        description="The database without PgBouncer in between, which lets no notifications through. The password is "
        "storage.password. Default: storage.url.",
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address and ("?" in check_url(address) or "#" in address):
            raise InvalidValue("must not contain a query or a fragment", 'write it like "http://10.0.0.2:8420"')
        return address.rstrip("/")

    @field_validator("listen_url")
    @classmethod
    def _check_listen_url(cls, url: str) -> str:
        # No message quotes the URL: it may have a password in an unusual place.
        if not url:
            return url
        scheme, _, rest = url.partition(":")
        if scheme not in {"postgresql", "postgres"}:
            raise InvalidValue("must start with postgresql:", 'write it like "postgresql://gatehouse@db1/gatehouse"')
        if split_password(url)[1] is not None:
            raise InvalidValue("must not contain a password", "remove it: storage.password is used")
        return postgresql_url(rest)
