"""Line coverage by folder, of what `coverage json` says: `coverage_by_folder.py FILE`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(file: Path) -> None:
    lines: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, found in json.loads(file.read_text())["files"].items():
        for folder in (str(Path(name).parent), "all"):
            lines[folder] += found["summary"]["num_statements"]
            covered[folder] += found["summary"]["covered_lines"]
    for folder in sorted(lines, key=lambda name: (name == "all", name)):
        if lines[folder]:
            print(f"{folder:<32} {lines[folder]:>6} {100 * covered[folder] / lines[folder]:6.1f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
