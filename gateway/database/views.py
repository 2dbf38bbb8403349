"""The views for people who query the database: AgentSession and AgentMessage. The third one of them, Repo, is a table.

A view is made of the rows at the moment of the query, so it is never out of date. A message has the content that the
HTTP API shows (`gateway/api/message_mapping.py`), without the addresses of files. Names are unquoted, so that `psql`
and `sqlite3` accept them in any case. A released view never changes: a migration drops it, and creates another one.
"""

from collections.abc import Mapping
from typing import NamedTuple

MESSAGE_TYPES = ("user", "assistant", "system", "clear", "undo", "tool_use", "plan", "approval", "file")
"""The types of entries that are messages. The index of timestamps has only these."""

IS_MESSAGE = f"type IN ({', '.join(repr(each) for each in MESSAGE_TYPES)})"

_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_UUID_GLOB = "-".join("[0-9a-f]" * length for length in (8, 4, 4, 4, 12))
# PostgreSQL can't read U+0000 in JSON. The view shows the replacement character; the line itself stays as it is.
_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"


class _Dialect(NamedTuple):
    """What the two databases spell differently."""

    document: str
    """The line of an entry, as a value whose fields `->` returns. `{}` is the table."""
    field: str
    """A field of a document as JSON text, or NULL."""
    content: str
    has_empty_text: str
    seq_in_hex: str
    uuid: str
    event_id: str
    is_uuid: str
    attached: str
    attachment: str
    fence: str
    """Ends a subquery that the planner must not merge, since it would evaluate it once for each use."""

    def get(self, name: str, table: str = "e") -> str:
        return self.field.format(self.document.format(table), name)

    def of(self, document: str, name: str) -> str:
        """Return a field of a column that is a document already."""
        return self.field.format(document, name)

    def optional(self, key: str, value: str, default: str = "") -> str:
        """Return a field of the content that is left out if it has its default, as the API does."""
        value = f"nullif({value}, '{default}')" if default else value
        return f"""coalesce(',"{key}":' || {value}, '')"""


_POSTGRESQL = _Dialect(
    document=rf"(CASE WHEN position('\u0000' IN {{0}}.line) = 0 THEN {{0}}.line "
    rf"ELSE regexp_replace({{0}}.line, '{_NUL.replace('{', '{{').replace('}', '}}')}', '\1\ufffd', 'g') END)::json",
    field="({} -> '{}')::text",
    content="({})::json",
    has_empty_text="position('\"\"' IN e.line) > 0",
    seq_in_hex="lpad(to_hex(e.seq), 12, '0')",
    uuid="({})::uuid",
    event_id="({} ->> 'event_id')",
    is_uuid=f"{{}} ~ '{_UUID.replace('{', '{{').replace('}', '}}')}'",
    attached="string_agg({}, ',') FROM json_array_elements({} -> 'attachments') AS a(attachment)",
    attachment="a.attachment",
    fence="OFFSET 0",
)

_SQLITE = _Dialect(
    document="CAST({}.line AS TEXT)",
    field="({} -> '{}')",
    content="{}",
    has_empty_text="instr(e.line, '\"\"') > 0",
    seq_in_hex="printf('%012x', e.seq)",
    uuid="{}",
    event_id="({} ->> 'event_id')",
    is_uuid=f"{{}} GLOB '{_UUID_GLOB}'",
    attached="group_concat({}, ',') FROM json_each({}, '$.attachments') AS a",
    attachment="a.value",
    fence="LIMIT 1",
)


def moment(dialect: str, column: str) -> str:
    """Return the SQL for a time in microseconds as a timestamp. In SQLite, that is a text which sorts by time."""
    if dialect == "postgresql":
        return f"to_timestamp({column}::float8 / 1000000)"
    return f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000)"


def _session_view(dialect: str) -> str:
    return f"""
CREATE VIEW AgentSession AS
SELECT
    id,
    repo AS repoId,
    status,
    {moment(dialect, "created_us")} AS createdAt,
    {moment(dialect, "updated_us")} AS updatedAt,
    {moment(dialect, "archived_us")} AS archivedAt
FROM session
"""


def _message_view(dialect: str) -> str:
    d = _POSTGRESQL if dialect == "postgresql" else _SQLITE
    document = d.document.format("e")
    # An API message is changed by later entries of its turn. This is where the turn ends.
    end = (
        "coalesce((SELECT t.seq FROM entry t WHERE t.session = e.session AND t.seq > e.seq AND t.type = 'turn_end' "
        "ORDER BY t.seq LIMIT 1), 9223372036854775807)"
    )
    later = "x.session = e.session AND x.seq > e.seq"
    same_call = f"{d.get('tool_use_id', 'x')} = {d.get('tool_use_id')}"
    same_question = f"{d.get('approval_id', 'x')} = {d.get('approval_id')}"
    attachment = (
        f"""'{{"name":' || {d.of(d.attachment, "name")} || ',"kind":' || {d.of(d.attachment, "kind")}"""
        f""" || {d.optional("mediaType", d.of(d.attachment, "media_type"), '""')}"""
        f""" || {d.optional("size", d.of(d.attachment, "size"), "0")} || '}}'"""
    )
    attachments = d.optional("attachments", f"'[' || (SELECT {d.attached.format(attachment, document)}) || ']'")
    message_id = f"""CASE
        WHEN e.type = 'user' AND {d.is_uuid.format(d.event_id.format(document))} THEN {d.event_id.format(document)}
        ELSE substr(CAST(s.id AS TEXT), 1, 14) || '8' || substr(CAST(s.id AS TEXT), 16, 9) || {d.seq_in_hex}
    END"""
    content = f"""CASE e.type
        WHEN 'user' THEN '{{"type":"text","text":' || {d.get("content")} || ',"partial":false' || {attachments} || '}}'
        WHEN 'assistant' THEN '{{"type":"text","text":' || {d.get("content")} || ',"partial":' || coalesce((
            SELECT CASE
                WHEN {d.get("outcome", "t")} <> '"answered"'
                    AND coalesce({d.get("turn", "t")}, 'null') = coalesce({d.get("turn")}, 'null')
                    AND NOT EXISTS (
                        SELECT 1 FROM entry x
                        WHERE {later} AND x.seq < t.seq AND x.type = 'assistant' AND {d.get("content", "x")} <> '""'
                    )
                THEN 'true'
            END
            FROM entry t
            WHERE t.session = e.session AND t.seq > e.seq AND t.type = 'turn_end'
            ORDER BY t.seq LIMIT 1
        ), 'false') || '}}'
        WHEN 'system' THEN '{{"type":"text","text":' || {d.get("content")} || ',"partial":false'
            || {d.optional("isFailure", d.get("is_failure"), "false")} || '}}'
        WHEN 'clear' THEN
            '{{"type":"text","text":"The agent has forgotten the conversation up to here.","partial":false}}'
        WHEN 'undo' THEN '{{"type":"text","text":"The last turn was undone.","partial":false}}'
        WHEN 'tool_use' THEN (
            SELECT '{{"type":"tool","tool":' || {d.of("c.call", "name")} || ',"args":' || {d.of("c.call", "input")}
                || ',"result":' || coalesce({d.of("c.result", "output")}, 'null')
                || {d.optional("isError", d.of("c.result", "is_error"), "false")}
                || {d.optional("title", d.of("c.call", "title"), '""')}
                || {d.optional("diffs", d.of("c.result", "diffs"), "[]")} || '}}'
            FROM (
                SELECT
                    coalesce((
                        SELECT {d.document.format("x")} FROM entry x
                        WHERE {later} AND x.seq < {end} AND x.type = 'tool_update' AND {same_call}
                        ORDER BY x.seq DESC LIMIT 1
                    ), {document}) AS call,
                    (
                        SELECT {d.document.format("x")} FROM entry x
                        WHERE {later} AND x.seq < {end} AND x.type = 'tool_result' AND {same_call}
                        ORDER BY x.seq LIMIT 1
                    ) AS result
                {d.fence}
            ) c
        )
        WHEN 'plan' THEN '{{"type":"plan","steps":' || {d.get("steps")} || '}}'
        WHEN 'approval' THEN '{{"type":"approval","approvalId":' || {d.get("approval_id")}
            || ',"question":' || coalesce({d.get("question")}, '""') || ',"decision":' || coalesce((
                SELECT {d.get("decision", "x")} FROM entry x
                WHERE {later} AND x.seq < {end} AND x.type = 'approval' AND {same_question}
                ORDER BY x.seq DESC LIMIT 1
            ), 'null') || '}}'
        WHEN 'file' THEN '{{"type":"file","file":{{"name":' || {d.get("name")} || ',"kind":"file"'
            || {d.optional("mediaType", d.get("media_type"), '""')}
            || {d.optional("size", d.get("size"), "0")} || '}}}}'
    END"""
    return f"""
CREATE VIEW AgentMessage AS
SELECT
    {d.uuid.format(message_id)} AS id,
    s.id AS sessionId,
    CASE WHEN e.type = 'user' THEN 'user' WHEN e.type IN ('assistant', 'file') THEN 'agent' ELSE 'system' END AS role,
    {d.content.format(content)} AS content,
    {moment(dialect, "e.at_us")} AS timestamp,
    e.seq AS seq
FROM entry e
JOIN session s ON s.key = e.session
WHERE e.{IS_MESSAGE}
    AND CASE e.type
        WHEN 'assistant' THEN NOT ({d.has_empty_text}) OR {d.get("content")} <> '""'
        WHEN 'approval' THEN coalesce({d.get("decision")}, 'null') = 'null'
        ELSE true
    END
"""


def _views(dialect: str) -> Mapping[str, str]:
    return {"AgentSession": _session_view(dialect), "AgentMessage": _message_view(dialect)}


VIEWS_0001: Mapping[str, Mapping[str, str]] = {dialect: _views(dialect) for dialect in ("sqlite", "postgresql")}
"""The statements by dialect and name, as migration 0001 creates them."""

VIEWS = VIEWS_0001
"""The views of the newest schema."""
