"""A proxy and a certificate for the Bot API at its public name, for a gateway that knows no other address."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "api.telegram.org"


def certified(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the certificate of a new authority, and a server's TLS context with a certificate that it issued."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gatehouse bench")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)

    def issued(subject: x509.Name, public: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(authority_name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        signed = builder.add_extension(extension, critical=True).sign(authority_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    authority, chain = folder / "authority.pem", folder / "server.pem"
    authority.write_bytes(
        issued(authority_name, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    alternative = x509.SubjectAlternativeName([x509.DNSName(HOST)])
    chain.write_bytes(private + issued(name, key.public_key(), alternative))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return authority, context


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[str]:
    """Run a proxy that connects the name of the Bot API to a port of loopback, and refuses all other names."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # A client checks whether the proxy listens.
            writer.close()
            return
        if not head.startswith(f"CONNECT {HOST}:443 "):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_copy(reader, upstream_writer), name="proxy:request")
            ways.create_task(_copy(upstream_reader, writer), name="proxy:response")

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either side closes. A gateway that is killed resets its connections."""
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
