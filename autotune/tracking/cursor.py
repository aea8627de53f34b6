"""The position in the journal up to which a tracking store is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.storage import atomic

_VIEW = 2  # the version of what runs show: those of an earlier one are written again


class Cursor:
    """The position of one store and its runs: an entry for each store in a small JSON file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self.lines, self.runs = self._position()

    def save(self) -> None:
        """Write the position atomically; this also removes the reason of `behind`."""
        runs = {str(number): run for number, run in self.runs.items()}
        own = {"view": _VIEW, "lines": self.lines, "runs": runs}
        stores = {**self._read()["stores"], self._key: own}
        self._write({"stores": stores})

    def behind(self, reason: str) -> None:
        """Write the reason why the store is not up to date."""
        self._write({**self._read(), "behind": reason})

    def _position(self) -> tuple[int, dict[int, str]]:
        """The position in the file; the start where there is none, or none that can be read."""
        try:
            entry = self._read()["stores"][self._key]
            lines = int(entry["lines"]) if entry.get("view") == _VIEW else 0
            return lines, {int(n): str(run) for n, run in entry["runs"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            return 0, {}

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self._path.read_bytes())
            return data if isinstance(data["stores"], dict) else {"stores": {}}
        except (OSError, ValueError, KeyError, TypeError):
            return {"stores": {}}

    def _write(self, data: Mapping[str, Any]) -> None:
        atomic.write(self._path, json.dumps(data, indent=1) + "\n")
