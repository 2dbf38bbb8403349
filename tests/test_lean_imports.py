"""`import_libraries` changes libraries while they are imported, so each test runs it in a new process."""

import subprocess
import sys
from pathlib import Path

from tests.certificate import write_certificate

CLIENT = """
import asyncio, ssl, sys
from gateway.lean_imports import import_libraries
import_libraries()
import aiohttp
from aiohttp import web

async def main(certificate, key):
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(certificate, key)
    runner = web.ServerRunner(web.Server(lambda _: asyncio.sleep(0, web.Response(text="hello"))))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=at_server)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as client:
        for _ in range(2):
            try:
                async with client.get(f"https://127.0.0.1:{port}/", headers={"Connection": "close"}) as answer:
                    print(await answer.text())
            except aiohttp.ClientConnectorCertificateError:
                print("refused")
    await runner.cleanup()

asyncio.run(main(*sys.argv[1:]))
"""


def run(program: str, *arguments: str, **environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_certificates_of_the_system_are_loaded_for_the_first_connection(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    assert run(CLIENT, certificate, key, SSL_CERT_FILE=certificate) == ["hello", "hello"]


def test_a_certificate_that_the_system_does_not_trust_is_refused(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    assert run(CLIENT, certificate, key) == ["refused", "refused"]


def test_no_certificate_and_no_part_of_rich_is_loaded_before_it_is_used() -> None:
    program = (
        "from gateway.lean_imports import import_libraries; import_libraries(); import sys, aiohttp.connector as c; "
        "print(len(c._SSL_CONTEXT_VERIFIED.get_ca_certs()), *(name for name in sys.modules if 'rich' in name)); "
        "import rich; print(rich.__name__)"
    )
    assert run(program) == ["0", "rich"]


def test_the_libraries_can_be_imported_before() -> None:
    program = (
        "import aiohttp, structlog; from gateway.lean_imports import import_libraries; import_libraries(); "
        "import rich, ssl; print(rich.__name__, 'set_default_verify_paths' in vars(ssl.SSLContext))"
    )
    assert run(program) == ["rich", "False"]
