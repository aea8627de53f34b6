"""What `mkdocs build` does to the pages: documents of other folders, links to files, help texts.

The documents link to each other and to files of the repository by relative paths, as they are read
there. On the site, some documents of other folders are pages too, and a link to any other file
becomes its path.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "benchmarks/README.md": "benchmark-scripts.md",
}
"""Documents outside of `docs/` that are pages of the site, and the names of these."""
HELP = "<!-- the help texts of all commands -->"
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*\]\([^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose documents are elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Write the help texts, and make the repository's links the site's."""
    uri = page.file.src_uri
    if HELP in markdown:
        markdown = markdown.replace(HELP, help_texts())
    source = next((path for path, name in PAGES.items() if name == uri), f"docs/{uri}")
    return site_links(markdown, source)


def site_links(markdown: str, source: str) -> str:
    """The text of the repository's document `source`, with links as the site needs them.

    Raises:
        PluginError: a link to a file that does not exist.
    """
    here = posixpath.dirname(source)
    page = PAGES.get(source, source.removeprefix("docs/"))

    def changed(link: re.Match[str]) -> str:
        label, path, anchor = link[1], posixpath.normpath(posixpath.join(here, link[2])), link[3]
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {link[2]}, which does not exist")
        target = PAGES.get(path, path.removeprefix("docs/"))
        if path not in PAGES and not path.startswith("docs/"):
            text = label[1:-1]
            return text if path in text else f"{text} (`{path}`)"
        to = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{label}({to}{anchor or ''})"

    parts = _CODE.split(markdown)  # every second one is code
    return "".join(p if i % 2 else _LINK.sub(changed, p) for i, p in enumerate(parts))


def help_texts() -> str:
    """`autotune COMMAND --help` of every command, each below a heading."""
    commands = re.findall(r"^    ([a-z][a-z-]*)\s", _help(), re.MULTILINE)
    texts = (f"### {name}\n```text\n{_help(name)}\n```\n" for name in commands)
    return "\n".join(texts)


def _help(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "96", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603 (our own command)
        [sys.executable, "-m", "autotune", *command, "--help"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()
