"""The fixtures for tests with PostgreSQL: servers of a session, servers of one test, empty databases."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Literal

import pytest

from tests.postgres.pgbouncer import PgBouncer, find_pgbouncer
from tests.postgres.proxy import PostgresProxy
from tests.postgres.server import PostgresServer, PostgresTemplate, embedded_programs, system_programs

Edition = Literal["system", "embedded"]
"""The PostgreSQL of this system (if it has none: the other), or the one that tests/install_postgres18.sh installs."""

NewPostgres = Callable[..., PostgresServer]
"""`(edition="system", *, on_disk=False, **options)`, with settings of the server such as `max_connections="5"`.

With `primary=server`, it is a standby that streams the changes of that one. With `tls=True`, it has a certificate.

The files of a server are in memory if there is space, where `fsync` takes no time. Measurements want them on disk.
"""

NewProxy = Callable[[str], PostgresProxy]

NewPgBouncer = Callable[..., PgBouncer]
"""`(server, *, pool_size=2)`: `pool_size` is the number of connections to the server."""

EDITIONS: tuple[Edition, ...] = ("system", "embedded")


class PostgresServers:
    """The servers of a test session. Each is started when the first test asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._templates: dict[Edition, PostgresTemplate] = {}
        self._shared: dict[Edition, PostgresServer] = {}

    def shared(self, edition: Edition = "system") -> PostgresServer:
        """Return the server that all tests of the session share. They must not stop it."""
        if edition not in self._shared:
            self._shared[edition] = self._stack.enter_context(closing(self.new(edition)))
        return self._shared[edition]

    def new(
        self,
        edition: Edition,
        *,
        on_disk: bool = False,
        primary: PostgresServer | None = None,
        tls: bool = False,
        **settings: str,
    ) -> PostgresServer:
        """Start a server, or a standby of `primary`. The caller closes it. Skips the test if it is not installed."""
        if edition not in self._templates:
            programs = (system_programs() if edition == "system" else None) or embedded_programs()
            if programs is None:
                pytest.skip("PostgreSQL is not installed" if edition == "system" else "PostgreSQL 18 is not installed")
            self._templates[edition] = self._stack.enter_context(closing(PostgresTemplate(programs)))
        template = self._templates[edition]
        if primary is not None and not (template.programs.folder / "pg_basebackup").exists():
            pytest.skip("pg_basebackup is not installed, so there is no standby")
        return PostgresServer(template, settings, on_disk=on_disk, primary=primary, tls=tls)


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[PostgresServers]:
    with ExitStack() as stack:
        yield PostgresServers(stack)


@pytest.fixture(scope="session")
def postgres(postgres_servers: PostgresServers) -> PostgresServer:
    """Return a running server, which the tests of this session share."""
    return postgres_servers.shared()


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """Yield the URL of an empty database, on the shared server."""
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=EDITIONS)
def each_postgres(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> PostgresServer:
    """Run the test on the shared server of each version."""
    return postgres_servers.shared(request.param)


@pytest.fixture
def each_database_url(each_postgres: PostgresServer) -> Iterator[str]:
    """Run the test on each version of PostgreSQL, with an empty database."""
    url = each_postgres.new_database()
    yield url
    each_postgres.drop_database(url)


@pytest.fixture
def new_postgres(postgres_servers: PostgresServers) -> Iterator[NewPostgres]:
    """Yield a function that starts a server for this test alone, which may stop, pause and kill it."""
    with ExitStack() as stack:

        def start(edition: Edition = "system", **options: Any) -> PostgresServer:  # noqa: ANN401 - those of `new`
            return stack.enter_context(closing(postgres_servers.new(edition, **options)))

        yield start


@pytest.fixture
def new_proxy() -> Iterator[NewProxy]:
    """Yield a function that starts a proxy in front of the database with a URL."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(PostgresProxy(url)))


@pytest.fixture
def new_pgbouncer() -> Iterator[NewPgBouncer]:
    """Yield a function that starts PgBouncer in front of a server. Skips the test if it is not installed."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip("PgBouncer is not installed")
    with ExitStack() as stack:

        def start(server: PostgresServer, *, pool_size: int = 2) -> PgBouncer:
            return stack.enter_context(closing(PgBouncer(program, server, pool_size=pool_size)))

        yield start
