"""The audit fails for a known vulnerability, and never for want of somebody to ask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
SAFE = {"name": "safe", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def audited(tmp_path: Path, packages: list[Any] | None, code: int) -> tuple[int, str]:
    """What the audit says of a tool that answers so; None: it does not come to an answer."""
    tool = tmp_path / "pip-audit"
    answer = json.dumps({"dependencies": packages}) if packages is not None else ""
    script = (
        f"#!{sys.executable}\nimport sys\n"
        f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({answer!r})\n"
        f"sys.exit('connection refused' if {packages is None} else {code})\n"
    )
    tool.write_text(script)
    tool.chmod(0o755)
    done = subprocess.run(
        [AUDIT, sys.executable],
        env={"PATH": "/usr/bin:/bin", "AUDIT_TOOL": str(tool)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("packages", "code", "expected"),
    [
        ([SAFE, UNKNOWN], 0, "audit: 0 known vulnerabilities; 1 of 2 packages looked up\n"),
        ([UNKNOWN, UNKNOWN], 0, "audit skipped: the vulnerability service knows none of the 2"),
        (None, 0, "audit skipped: the vulnerability service gives no answer: connection refused"),
    ],
)
def test_no_server_to_ask_prints_a_line_and_passes(
    tmp_path: Path, packages: list[Any] | None, code: int, expected: str
) -> None:
    returned, said = audited(tmp_path, packages, code)
    assert (returned, said[: len(expected)]) == (0, expected)


def test_a_known_vulnerability_fails(tmp_path: Path) -> None:
    returned, said = audited(tmp_path, [SAFE, BAD], 1)
    assert returned == 1
    assert said.splitlines()[0] == "bad 2: CVE-1, fixed in 3"
