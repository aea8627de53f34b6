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
    **{
        f"benchmarks/results/{path.name}": f"results/{path.name}"
        for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    },
}
"""Documents outside of `docs/` that are pages of the site, and the names of these."""
HELP = "<!-- the help texts of all commands -->"
_FENCE, _CODE = r"^```.*?^```$", r"`[^`\n]*`"
_LABEL = r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]"
_LINK = rf"(?P<label>{_LABEL})\((?!\w+:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
_PARTS = re.compile(f"{_FENCE}|{_LINK}|{_CODE}", re.MULTILINE | re.DOTALL)
"""What must not be changed is found with the links, so that neither begins within the other."""


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

    def changed(found: re.Match[str]) -> str:
        if found["path"] is None:
            return found[0]
        label, anchor = found["label"], found["anchor"] or ""
        path = posixpath.normpath(posixpath.join(here, found["path"]))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {found['path']}, which does not exist")
        if path not in PAGES and not path.startswith("docs/"):
            text = label[1:-1]
            return text if path in text else f"{text} (`{path}`)"
        target = PAGES.get(path, path.removeprefix("docs/"))
        return f"{label}({posixpath.relpath(target, posixpath.dirname(page) or '.')}{anchor})"

    return _PARTS.sub(changed, markdown)


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
