"""Metrics for Prometheus at `/metrics`. Alert rules and dashboards rely on these names."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import product

from aiohttp import web
from msgspec import Struct

from gateway import __version__
from gateway.contract import Access, Caller, Route, Verdict
from gateway.http.guard import IS_PROXIED
from gateway.http.responses import HttpError
from gateway.metrics import DEAD, DELIVERED, Histogram, Metrics
from gateway.observability.status import GatewayStatus, StatusReport
from gateway.sessions import TurnOutcome
from gateway.spool import InboxState, OutboxState, RunState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OUTCOMES = (*TurnOutcome, InboxState.ABANDONED, InboxState.DEAD)
UNFINISHED_MESSAGES = sorted(set(InboxState) - {InboxState.ANSWERED, InboxState.ABANDONED})
UNFINISHED_REPLIES = sorted(set(OutboxState) - {OutboxState.DELIVERED})

Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family(Struct, frozen=True, kw_only=True):
    """One metric. `lines` are its samples without the name in front."""

    name: str
    kind: str
    help: str
    lines: tuple[str, ...]


def gauge(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    """Make a gauge. `values` maps the values of `labels` to numbers, or is a number if there are no labels."""
    return Family(name=name, kind="gauge", help=help_, lines=_samples(values, labels))


def counter(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    return Family(name=name, kind="counter", help=help_, lines=_samples(values, labels))


def histogram(name: str, help_: str, values: Mapping[Labels, Histogram], labels: Labels = ()) -> Family:
    lines: list[str] = []
    for key, each in values.items():
        pairs = tuple(zip(labels, key, strict=True))
        for bound, total in each.cumulative():
            lines.append(f"_bucket{_braces((*pairs, ('le', _number(bound))))} {total}")
        lines.append(f"_sum{_braces(pairs)} {_number(each.total)}")
        lines.append(f"_count{_braces(pairs)} {each.count}")
    return Family(name=name, kind="histogram", help=help_, lines=tuple(lines))


def render(families: Iterable[Family]) -> str:
    """Return the text exposition format: https://prometheus.io/docs/instrumenting/exposition_formats/."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n")
        lines.append(f"# TYPE {family.name} {family.kind}\n")
        lines.extend(f"{family.name}{line}\n" for line in family.lines)
    return "".join(lines)


def _samples(values: Mapping[Labels, float] | float, labels: Labels) -> tuple[str, ...]:
    if not isinstance(values, Mapping):
        values = {(): values}
    return tuple(f"{_braces(tuple(zip(labels, key, strict=True)))} {_number(value)}" for key, value in values.items())


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))


def families(metrics: Metrics, report: StatusReport) -> Iterator[Family]:
    channels = sorted({channel.name for channel in report.channels})
    by_account = ("channel", "account")
    up: dict[Labels, float] = {(each.name, each.account): int(each.state == "up") for each in report.channels}

    def with_zeros(counted: Counter[Labels], outcomes: Iterable[str]) -> Mapping[Labels, float]:
        # A counter that starts at 1 shows no increase, so every combination starts at 0.
        return {**dict.fromkeys(product(channels, outcomes), 0), **counted}

    yield gauge("gatehouse_build_info", "The running version.", {(__version__,): 1}, ("version",))
    yield gauge("gatehouse_start_time_seconds", "Start time of the gateway.", report.started_at.timestamp())
    yield gauge("gatehouse_ready", "1 if every channel is up and messages can be accepted.", int(report.ready))
    yield gauge("gatehouse_degraded", "1 if there are warnings.", int(bool(report.warnings)))
    yield gauge("gatehouse_channel_up", "1 if the channel is connected to its platform.", up, by_account)
    yield gauge(
        "gatehouse_channel_last_event_timestamp_seconds",
        "Time of the last event from the channel.",
        {key: at for key, at in metrics.last_events.items() if key in up},
        by_account,
    )

    yield counter(
        "gatehouse_messages_received_total",
        "Received messages by verdict.",
        with_zeros(metrics.received, Verdict),
        ("channel", "verdict"),
    )
    yield counter(
        "gatehouse_messages_settled_total",
        "Accepted messages by outcome, without commands.",
        with_zeros(metrics.settled, OUTCOMES),
        ("channel", "outcome"),
    )
    yield counter("gatehouse_commands_total", "Commands that ran.", metrics.commands, ("channel", "command"))
    ended = [state for state in RunState if state is not RunState.RUNNING]
    yield counter(
        "gatehouse_schedule_runs_total",
        "Runs of schedules by how they went.",
        {**{(state,): 0 for state in ended}, **metrics.schedule_runs},
        ("outcome",),
    )
    yield gauge(
        "gatehouse_schedules",
        "Schedules by state. Failing ones are active.",
        {(state,): number for state, number in sorted(report.schedules.items())},
        ("state",),
    )
    yield counter(
        "gatehouse_replies_total",
        "Parts of replies that were delivered or given up.",
        with_zeros(metrics.replies, (DELIVERED, DEAD)),
        ("channel", "outcome"),
    )
    yield counter(
        "gatehouse_send_failures_total",
        "Sends that failed and are tried again.",
        {**dict.fromkeys(product(channels), 0), **metrics.send_failures},
        ("channel",),
    )
    outages: dict[Labels, float] = {(each.channel, each.account): each.seconds for each in report.outages}
    yield gauge(
        "gatehouse_delivery_outage_seconds",
        "How long the channel has not been able to send; 0 if it can.",
        {key: outages.get(key, 0.0) for key in up},
        by_account,
    )
    yield histogram(
        "gatehouse_turn_seconds", "From the start of a turn until its answer is committed.", metrics.turns, ("channel",)
    )

    yield counter(
        "gatehouse_model_requests_total", "Requests to models by outcome.", metrics.requests, ("model", "outcome")
    )
    yield histogram(
        "gatehouse_model_request_seconds",
        "Until a model's answer was complete, including retries.",
        metrics.answers,
        ("model",),
    )
    yield histogram(
        "gatehouse_model_first_token_seconds", "Until a model's first token.", metrics.first_words, ("model",)
    )
    yield counter(
        "gatehouse_tokens_total", "Tokens by kind. Cached tokens count as input.", metrics.tokens, ("model", "kind")
    )
    cost = {key: micros / 1_000_000 for key, micros in metrics.cost_micros.items()}
    yield counter("gatehouse_cost_total", "Cost of models, in the currency of their prices.", cost, ("model",))

    yield from _resource_families(metrics, report)


def _resource_families(metrics: Metrics, report: StatusReport) -> Iterator[Family]:
    """Yield the metrics of queues, storage and the process."""
    yield gauge("gatehouse_queue_messages", "Messages waiting for their turn.", report.messages_waiting)
    yield gauge("gatehouse_queue_limit", "Messages that may wait before more are refused.", report.queue_limit)
    yield gauge("gatehouse_turns_running", "Running turns and commands.", report.turns_running)
    yield gauge("gatehouse_turns_awaiting_approval", "Turns waiting for approval.", report.turns_awaiting_approval)
    oldest = report.turns[0].seconds if report.turns else 0.0
    yield gauge("gatehouse_turn_oldest_seconds", "Running time of the oldest turn.", oldest)
    programs = sum(report.coding_agents.values())
    yield gauge("gatehouse_coding_agents", "Running programs of coding agents.", programs)
    yield gauge("gatehouse_replies_waiting", "Parts of replies waiting for delivery.", report.replies_waiting)
    yield histogram("gatehouse_event_loop_lag_seconds", "Lag of the event loop, sampled.", {(): metrics.lag})

    yield gauge("gatehouse_sessions", "Stored sessions.", report.sessions)
    yield gauge("gatehouse_scopes", "Scopes with sessions.", report.scopes)
    yield counter(
        "gatehouse_memory_archived_total",
        "Sessions, or parts of long ones, that were archived into memory, by outcome.",
        {**dict.fromkeys(product(("archived", "outlined", "failed")), 0), **metrics.archived},
        ("outcome",),
    )
    if report.archiving is not None:
        yield gauge("gatehouse_memory_queue", "Sessions waiting to be archived into memory.", report.archiving.waiting)
        yield gauge("gatehouse_memory_failures", "Failures of archiving in a row.", report.archiving.failures)
    if metrics.spans:
        yield counter("gatehouse_trace_spans_total", "Spans for the collector.", metrics.spans, ("outcome",))
    yield histogram("gatehouse_flush_seconds", "Duration of session flushes.", {(): metrics.flushes})
    yield gauge("gatehouse_flush_age_seconds", "Time since the last successful flush.", report.flush.age_seconds)
    yield counter("gatehouse_flush_failures_total", "Failed flushes.", report.flush.failures)
    yield gauge("gatehouse_spool_busy_seconds", "Duration of the running commit.", report.spool_busy_seconds)
    yield gauge("gatehouse_spool_lost", "1 if the spool was lost before this start.", int(report.spool_lost))
    yield counter("gatehouse_spool_transactions_total", "Commits to the spool.", report.spool_transactions)
    if report.storage is not None:
        engine: dict[Labels, float] = {(report.storage.engine,): 1}
        yield gauge("gatehouse_storage_info", "The storage engine.", engine, ("engine",))
        yield counter("gatehouse_commit_seconds_total", "Time of all commits.", report.storage.commit_seconds)
        yield counter("gatehouse_slow_commits_total", "Commits of more than 250 ms.", report.storage.slow_commits)
    if report.cluster is not None:
        cluster = report.cluster
        yield gauge("gatehouse_cluster_nodes", "Nodes of the cluster that are alive.", cluster.nodes)
        yield gauge("gatehouse_cluster_shards", "Shards that this node owns.", cluster.shards)
        yield gauge("gatehouse_cluster_free_shards", "Shards that no node owns.", cluster.free_shards)
        yield gauge("gatehouse_cluster_posts", "Bots for which this node receives messages.", cluster.posts)
        yield gauge("gatehouse_cluster_arrivals", "Messages of other nodes that wait at this one.", cluster.arrivals)
        yield counter("gatehouse_cluster_takeovers_total", "Takeovers from dead nodes by this one.", cluster.takeovers)
        yield gauge(
            "gatehouse_cluster_lease_seconds", "Until the lease of this node expires.", cluster.lease_left_seconds
        )
        waiting: dict[Labels, float] = {(str(shard),): count for shard, count in cluster.waiting.items()}
        commits: dict[Labels, float] = {(str(shard),): count for shard, count in cluster.commits.items()}
        takeover = cluster.last_takeover_at
        yield gauge(
            "gatehouse_cluster_shard_arrivals", "Messages of other nodes that wait for this one.", waiting, ("shard",)
        )
        yield gauge(
            "gatehouse_cluster_oldest_arrival_seconds", "Waiting time of the oldest of them.", cluster.oldest_seconds
        )
        yield counter("gatehouse_cluster_shard_commits_total", "Stored changes of conversations.", commits, ("shard",))
        yield gauge(
            "gatehouse_cluster_last_takeover_timestamp_seconds",
            "Time of the last takeover by this node; 0 if there was none.",
            0.0 if takeover is None else takeover.timestamp(),
        )
        yield gauge(
            "gatehouse_cluster_last_takeover_seconds",
            "From the last sign of life of the dead node until this one served its shards.",
            cluster.last_takeover_seconds,
        )
        yield gauge(
            "gatehouse_cluster_absent_labels",
            "Labels that repositories or agents need, and no node has.",
            len(cluster.absent_labels),
        )
        yield gauge(
            "gatehouse_cluster_settings_differ",
            "1 if another node has other settings than this one.",
            int(cluster.has_other_settings),
        )
    if report.spool is not None:
        inbox: dict[Labels, float] = {(state,): report.spool.messages.get(state, 0) for state in UNFINISHED_MESSAGES}
        outbox: dict[Labels, float] = {(state,): report.spool.replies.get(state, 0) for state in UNFINISHED_REPLIES}
        yield gauge("gatehouse_spool_messages", "Unfinished and dead messages.", inbox, ("state",))
        yield gauge("gatehouse_spool_replies", "Undelivered and dead replies.", outbox, ("state",))
        yield gauge("gatehouse_spool_bytes", "Size of the spool without its preallocated log.", report.spool.bytes)
    if report.disk_free_bytes is not None:
        yield gauge("gatehouse_disk_free_bytes", "Free space where the data directory is.", report.disk_free_bytes)

    # The official clients use these names, so generic dashboards know them.
    yield gauge("process_resident_memory_bytes", "Resident memory size in bytes.", report.memory_bytes)
    yield gauge("process_open_fds", "Number of open file descriptors.", report.open_files)
    yield counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", report.cpu_seconds)


def metrics_routes(status: GatewayStatus, metrics: Metrics, *, is_open: bool) -> list[Route]:
    """Return the route of `/metrics`. If `is_open`, it needs no token, except through a proxy."""

    async def answer(request: web.Request, caller: Caller) -> web.StreamResponse:
        if request[IS_PROXIED] and not caller.is_owner:
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                "Through a proxy this needs the token: send the header `Authorization: Bearer <token>`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        text = render(families(metrics, await status.report()))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    access = Access.PUBLIC if is_open else Access.OWNER
    return [Route(method="GET", path="/metrics", access=access, handle=answer)]
