"""The collector of traces: whether it takes a request of this gateway."""

from config import Settings
from gateway.doctor.finding import Finding, error, ok


async def check_tracing(settings: Settings) -> Finding:
    """Send a request without spans, as the gateway sends its own."""
    # It is a part that only gateways with tracing load.
    from gateway.observability.span_exporter import Collector, ExportFailed  # noqa: PLC0415 - see above.

    about, collector = "tracing.endpoint", Collector.of(settings)
    try:
        async with await collector.open_session() as session:
            await collector.post(session, [])
    except ExportFailed as failure:
        fix = f"Check {about}, tracing.headers and the network."
        return error(about, f"{failure} Its address is {collector.url}.", fix)
    return ok(about, f"The collector takes traces at {collector.url}.")
