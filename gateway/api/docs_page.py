"""The page `/api/docs`: the OpenAPI document as HTML, rendered on the server, without scripts."""

from collections.abc import Iterable, Iterator
from html import escape
from http import HTTPStatus

from gateway.api.openapi import Schema

DOCS_CSS = """\
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #2b6cb0; }
@media (prefers-color-scheme: dark) { :root { --accent: #7db4f0; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem 1.25rem 4rem; }
code { background: var(--soft); border-radius: 3px; font: 0.9em ui-monospace, monospace; padding: 0.1em 0.3em; }
code { overflow-wrap: anywhere; }
a { color: var(--accent); }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; }
section.operation { border: 1px solid var(--line); border-radius: 8px; margin: 1rem 0; padding: 0.25rem 1rem 0.75rem; }
section.operation h3 { font-size: 1.05rem; margin: 0.6rem 0; }
.method { color: var(--accent); display: inline-block; font: bold 0.9em ui-monospace, monospace; min-width: 4em; }
table { border-collapse: collapse; margin: 0.5rem 0; width: 100%; }
th, td { border-top: 1px solid var(--line); padding: 0.3rem 0.6rem 0.3rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; }
.scroll { overflow-x: auto; }
"""


def docs_page(document: Schema) -> str:
    info = document["info"]
    body = [
        f"<h1>{escape(info['title'])} API</h1>",
        *(f"<p>{_inline(paragraph)}</p>" for paragraph in info["description"].split("\n\n")),
        '<p>The same as a document for programs: <a href="/api/openapi.json">openapi.json</a>, OpenAPI 3.1.</p>',
    ]
    for tag in document["tags"]:
        body.append(f"<h2>{escape(tag['name'])}</h2>")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    body += _operation(path, method, operation)
    body += _errors(document)
    body.append("<h2>Types</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        body += _type(name, schema)
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Gatehouse API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/api/docs.css"></head><body>'
    )
    return head + "\n".join(body) + "</body></html>"


def _operation(path: str, method: str, operation: Schema) -> Iterator[str]:
    yield f'<section class="operation" id="{operation["operationId"]}">'
    yield f'<h3><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h3>'
    yield f"<p>{_inline(operation['summary'])}. {_inline(operation.get('description', ''))}</p>"
    rows = [
        (f"<code>{escape(each['name'])}</code> in {each['in']}", _shape(each["schema"]), each.get("description", ""))
        for each in operation["parameters"]
    ]
    if (content := operation.get("requestBody", {}).get("content")) is not None:
        kind, about = next(iter(content.items()))
        rows.append(("body", f"{_shape(about['schema'])} ({escape(kind)})", ""))
    errors = []
    for status, response in operation["responses"].items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            errors.append(f'<a href="#error-{status}">{status}</a>')
            continue
        rows += [
            (f"response {status}", f"{_shape(about['schema'])} ({escape(kind)})", "")
            for kind, about in response["content"].items()
        ]
    yield from _table(rows)
    yield f"<p>Errors: {', '.join(errors)}</p></section>"


def _errors(document: Schema) -> Iterator[str]:
    """Say once what each error means: they mean the same in all operations."""
    found = {
        status: response["description"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if int(status) >= HTTPStatus.BAD_REQUEST
    }
    yield "<h2>Errors</h2>"
    yield '<p>Each error is a <a href="#type-Problem">problem document</a> (RFC 9457).</p>'
    yield from _table((f'<span id="error-{status}">{status}</span>', found[status]) for status in sorted(found))


def _type(name: str, schema: Schema) -> Iterator[str]:
    yield f'<section class="operation" id="type-{escape(name)}"><h3>{escape(name)}</h3>'
    if description := schema.get("description"):
        yield f"<p>{_inline(description)}</p>"
    if "enum" in schema:
        yield f"<p>{_shape(schema)}</p>"
    required = schema.get("required", [])
    yield from _table(
        (
            f"<code>{escape(field)}</code>{'' if field in required else ' (optional)'}",
            _shape(shape),
            shape.get("description", ""),
        )
        for field, shape in schema.get("properties", {}).items()
    )
    yield "</section>"


def _table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Return a table. The last cell of each row is plain text, the others are HTML."""
    yield '<div class="scroll"><table>'
    for *cells, description in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}<td>{_inline(description)}</td></tr>"
    yield "</table></div>"


def _shape(schema: Schema) -> str:
    """Return a schema in a few words, with links to the types that it refers to."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_shape(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    words = [escape(str(kind))]
    if "format" in schema:
        words.append(f"({escape(schema['format'])})")
    words += [f"{label} {schema[key]}" for key, label in _BOUNDS.items() if key in schema]
    if schema.get("default") not in (None, "", False):
        words.append(f"default <code>{escape(str(schema['default']))}</code>")
    return " ".join(words)


_BOUNDS = {"minimum": "from", "maximum": "to", "maxLength": "up to length", "maxItems": "up to"}


def _inline(text: str) -> str:
    """Escape a text, and show what is between backquotes as code."""
    pieces = escape(text.strip()).split("`")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))
