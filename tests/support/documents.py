"""The documents of the repository, taken apart: their pages, blocks of code, links and tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = "<!-- not run by the tests -->"
"""The line before a block that no test runs, which readers do not see."""
LANGUAGES = {"bash", "dockerfile", "mermaid", "python", "sh", "text", "yaml"}
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_SAVED = re.compile(r"[Ss]ave this as `([\w.]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the text between it and the block before."""

    language: str
    text: str
    before: str

    @property
    def is_run(self) -> bool:
        """Whether the line before it does not say that no test runs it."""
        return self.before.splitlines()[-1:] != [NOT_RUN]

    @property
    def file(self) -> str | None:
        """The file that the page has the reader save it as."""
        saved = _SAVED.search(self.before)
        return saved[1] if saved else None


def pages() -> dict[str, Path]:
    """Every document that a reader is led to, by its path in the repository."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return {str(path.relative_to(ROOT)): path for path in found}


def blocks(page: str, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages; of all if none is named."""
    text, end, found = (ROOT / page).read_text(), 0, []
    for fence in _FENCE.finditer(text):
        found.append(Block(fence[1], fence[2], text[end : fence.start()]))
        end = fence.end()
    return [block for block in found if not languages or block.language in languages]


def prose(page: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", (ROOT / page).read_text())


def commands(shell: str) -> Iterator[list[str]]:
    """The words of each command line of a script that calls `autotune`."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "autotune":
            end = next((i for i, word in enumerate(words) if word in "|&;>"), len(words))
            yield words[1:end]


def links(page: str) -> list[str]:
    """Where the relative links and pictures of a page lead."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"\w+:|#", link)]


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the rows of a page's table, the head of whose first column is `first`."""
    table = (ROOT / page).read_text().partition(f"\n| {first} |")[2]
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


@dataclass(frozen=True)
class Card:
    """A method's card: what it is, and its points by the bold words with which they begin."""

    what: str
    points: dict[str, str]


def cards(page: str) -> dict[str, Card]:
    """The cards of a page by the method's name, which is their heading."""
    found = {}
    parts = re.split(r"^### `(.+?)`\n", (ROOT / page).read_text(), flags=re.MULTILINE)[1:]
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        text = re.split(r"^##", part, flags=re.MULTILINE)[0]
        points = re.findall(
            r"^- \*\*(.+?)\*\* (.+?)(?=^- |\n\n|\Z)", text, re.MULTILINE | re.DOTALL
        )
        assert name not in found, f"{name} has two cards"
        found[name] = Card(text.partition("\n- ")[0].strip(), dict(points))
    return found
