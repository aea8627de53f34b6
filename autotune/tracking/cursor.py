"""The position in the journal up to which a tracking store is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.storage import atomic


class Cursor:
    """The position of one store and its runs: an entry for each store in a small JSON file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        entry = self._read()["stores"].get(key, {})
        self.lines: int = entry.get("lines", 0)
        self.runs = {int(number): str(run) for number, run in entry.get("runs", {}).items()}

    def save(self) -> None:
        """Write the position atomically; this also removes the reason of `behind`."""
        runs = {str(number): run for number, run in self.runs.items()}
        stores = {**self._read()["stores"], self._key: {"lines": self.lines, "runs": runs}}
        self._write({"stores": stores})

    def behind(self, reason: str) -> None:
        """Write the reason why the store is not up to date."""
        self._write({**self._read(), "behind": reason})

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self._path.read_bytes())
            return data if isinstance(data["stores"], dict) else {"stores": {}}
        except (OSError, ValueError, KeyError, TypeError):
            return {"stores": {}}

    def _write(self, data: Mapping[str, Any]) -> None:
        atomic.write(self._path, json.dumps(data, indent=1) + "\n")
