"""A report as one HTML file that needs nothing else: no network, no server, no other file.

plotly.js (4.8 MB) is embedded compressed (1.9 MB) and unpacked by the browser; without scripts the
tables are still shown. The page's own policy forbids it to load or to send anything, and only its
own two scripts, known by their hashes, may run: whatever a trial is called is text.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.errors import UserError
from autotune.storage import atomic
from autotune.trial.plain_text import plain_text
from dashboards.tables import Row, brief

MOST_ROWS = 300


@dataclass(frozen=True)
class Section:
    """A plot with what it says and how to read it, and the table that says the same.

    Args:
        key: its anchor; letters and dashes.
        text: one or two plain sentences; `thinned` says what was left out.
        figure: plotly's JSON, or None for a table alone.
        rows: the table; `columns` gives its columns and their headings.
        missing: why there is nothing to show; then neither figure nor table are there.
    """

    key: str
    title: str
    text: str
    figure: Mapping[str, Any] | None = None
    rows: Sequence[Row] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    thinned: str = ""
    missing: str = ""
    open: bool = False


@dataclass(frozen=True)
class Page:
    """A report: its title, a line below it, a few figures in large type, and its sections.

    Args:
        config: the best configuration as JSON, for a button that copies it.
        refresh: seconds after which the page reads its file again; 0: never.
    """

    title: str
    line: str
    cards: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    foot: str = ""
    config: str = ""
    refresh: int = 0


def write(page: Page, path: Path) -> None:
    """Write the page whole or not at all.

    Raises:
        UserError: it cannot be written there, or plotly is not installed.
    """
    try:
        content = render(page).encode(errors="backslashreplace")
        atomic.write(path, content, concurrent=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def render(page: Page) -> str:
    """The page as text."""
    library, own = _library(), asset("page.js")
    allowed = " ".join(f"'sha256-{h}'" for h in (library.digest, digest(own.encode())))
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    figures = {s.key: s.figure for s in page.sections if s.figure is not None}
    body = "\n".join(_section(s) for s in page.sections)
    links = "\n".join(f'<a href="#{s.key}">{text(s.title)}</a>' for s in page.sections)
    cards = "\n".join(_card(*card) for card in page.cards)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}</style>
</head>
<body data-refresh="{page.refresh}">
<a class="skip" href="#content">Skip to the results</a>
<header>
<div><h1>{text(page.title)}</h1><p>{text(page.line)}</p></div>
<button id="theme" type="button" aria-pressed="false">Dark</button>
</header>
<nav aria-label="Sections">
{links}
</nav>
<main id="content" tabindex="-1">
<dl class="cards">
{cards}
</dl>
{_copy(page.config)}
<noscript><p class="note">Without scripts there are only the tables.</p></noscript>
{body}
</main>
<footer>{text(page.foot)}</footer>
<script type="application/json" id="figures">{_json(figures)}</script>
<script type="text/plain" id="plotly">{library.packed}</script>
<script>{own}</script>
</body>
</html>
"""


def _card(label: str, value: str, detail: str) -> str:
    more = f"<dd class='detail'>{text(detail)}</dd>" if detail else ""
    return f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd>{more}</div>"


def _copy(config: str) -> str:
    """A button that copies the best configuration."""
    if not config:
        return ""
    return (
        '<p class="copy"><button id="copy" type="button">Copy the best configuration</button> '
        '<span id="copied" role="status"></span></p>\n'
        f'<pre id="config" hidden>{html.escape(config)}</pre>'
    )


def _section(section: Section) -> str:
    head = f'<h2 id="{section.key}-title">{text(section.title)}</h2>\n'
    start = f'<section id="{section.key}" aria-labelledby="{section.key}-title">\n{head}'
    if section.missing:
        return f'{start}<p class="note">{text(section.missing)}</p>\n</section>'
    parts = [f"<p>{text(section.text)}</p>"]
    if section.thinned:
        parts.append(f'<p class="note">{text(section.thinned)}</p>')
    if section.figure is not None:
        height = section.figure["layout"]["height"]
        label = f"Plot: {section.title}. {section.text} The table below it says the same."
        parts.append(
            f'<div class="scroll" tabindex="0" role="group" aria-label="{text(label)}">'
            f'<div class="plot" data-figure="{section.key}" style="height:{height}px"></div>'
            "</div>"
        )
    if section.columns:
        parts.append(_table(section))
    return start + "\n".join(parts) + "\n</section>"


def _table(section: Section) -> str:
    rows = section.rows[:MOST_ROWS]
    left = len(section.rows) - len(rows)
    more = f", the first {len(rows)} of {len(section.rows):,}" if left else ""
    heads = "".join(f'<th scope="col">{text(h)}</th>' for h in section.columns.values())
    body = "\n".join(_row(row, section.columns) for row in rows)
    is_open = " open" if section.open else ""
    return (
        f"<details{is_open}><summary>Table: {text(section.title.lower())} "
        f"({len(section.rows):,} rows{more})</summary>\n"
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table">'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></details>"
    )


def _row(row: Row, columns: Mapping[str, str]) -> str:
    cells = []
    for name in columns:
        value = row.get(name)
        cell = brief(value)
        kind = "" if isinstance(value, str) else ' class="number"'
        kind = ' class="long"' if len(cell) > 40 else kind
        cells.append(f"<td{kind}>{text(cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def text(value: object) -> str:
    """A value as text within HTML."""
    return html.escape(plain_text(str(value)))


def _json(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    encoded = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True)
class _Packed:
    packed: str
    digest: str


@functools.cache
def _library() -> _Packed:
    """plotly.js of the installed plotly, compressed, and the hash by which it may run."""
    found = find_spec("plotly")  # not imported: only its file is needed
    places = list(found.submodule_search_locations or ()) if found else []
    file = Path(places[0]) / "package_data" / "plotly.min.js" if places else None
    if file is None or not file.is_file():
        raise UserError("the report needs plotly, which is not installed: pip install plotly")
    script = file.read_bytes().replace(b"\r\n", b"\n")
    packed = base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()
    return _Packed(packed, digest(script))


def digest(script: bytes) -> str:
    """The hash by which a policy lets a script run."""
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


@functools.cache
def asset(name: str) -> str:
    """A file of the folder `assets`."""
    return resources.files("dashboards").joinpath("assets", name).read_text(encoding="utf-8")
