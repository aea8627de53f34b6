"""An MLflow server that refuses at the start, answers late, and comes back: nobody waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heads import free_ports
from proxies import SlowProxy

from autotune.tracking.mirror import Mirror
from autotune.trial import State

from .test_mirror import Server, statuses, until


@pytest.mark.soak  # answers of a second are in test_mirror
@pytest.mark.timeout(1500)
def test_refusing_then_late_then_back(
    study: Any, tmp_path: Path, processes: Any, empty_store: Path
) -> None:
    """Answers of 30 s are within the patience of a request (45 s): slow, and not lost."""
    delay = 30.0
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "mlflow.db").write_bytes(empty_store.read_bytes())
    server, (port,) = Server(tmp_path / "server", processes), free_ports(1)
    study.trial(0, 2.0)
    mirror = Mirror(study.path, f"http://127.0.0.1:{port}", patience_seconds=900)
    until(lambda: "refused" in (study.path / "mlflow.log").read_text())
    server.start()
    proxy = SlowProxy(port, server.port, delay)
    try:
        until(lambda: proxy.answers >= 3, 40 * delay + 600)
        study.trial(1, 1.0)
        until(lambda: statuses(study, server.uri).get("trial-0000") == "FINISHED", 60 * delay + 600)
        study.begin(2)
        study.report(2, [0, 100])
        study.end(2, State.FAILED, "ValueError", 1.0, "boom")
        study.close()
        proxy.delay = 0.0
        assert mirror.close(600 + 5 * delay)
    finally:
        proxy.close()
    runs = study.runs(server.uri)
    shown = {name: run.info.status for name, run in runs.items()}
    ended = {"trial-0000": "FINISHED", "trial-0001": "FINISHED", "trial-0002": "FAILED"}
    assert shown == {"digits": "FINISHED", **ended}
    for name, steps in (("trial-0001", [0, 100, 200]), ("trial-0002", [0, 100])):
        assert [s for s, _ in study.history(runs[name], "acc", server.uri)] == steps
