"""Trainers that behave badly on real pools, and trials that end in the same instant."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from misbehaving import misbehaving, study, together
from sims import racing, simulate

import autotune as at
from autotune.backends.local.pool import LocalPool
from autotune.storage.journal import JOURNAL
from autotune.trial import State

LOG_BYTES = 2**20


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    """Those that may cost the process, each followed by a trial that behaves."""
    configs = in_order("", "leave", "", "thread", "", "leak", "")
    pool = LocalPool(misbehaving, at.Scaling(max_concurrent_trials=1), hang_timeout=600)
    return study(misbehaving, tmp_path_factory.mktemp("bad") / "study", configs, pool=pool)


def in_order(*whats: str) -> list[dict[str, Any]]:
    return [{"what": what, "n": n} for n, what in enumerate(whats)]


def pids(result: at.StudyResult) -> list[int | None]:
    return [int(t.reports[-1].metrics.get("pid", 0)) for t in result.trials]


@pytest.mark.slow
def test_every_trial_that_behaves_reaches_the_target(bad: at.StudyResult) -> None:
    states = {t.config["what"]: [] for t in bad.trials}
    for trial in bad.trials:
        states[trial.config["what"]].append(trial.state)
    assert states.pop("leave") == [State.FAILED]
    assert all(state is State.REACHED for found in states.values() for state in found)


@pytest.mark.slow
def test_a_trainer_that_leaves_at_once_is_a_dead_worker(bad: at.StudyResult) -> None:
    """`os._exit` asks nobody: it is tried again, as the machine may have been at fault."""
    trial = bad.trials[1]
    assert trial.reason.startswith("worker died: rank 0 (pid ")
    assert trial.attempts == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 5], ids=["leave", "thread", "leak"])
def test_the_next_trial_has_a_process_of_its_own(bad: at.StudyResult, number: int) -> None:
    before, after = pids(bad)[number - 1], pids(bad)[number + 1]
    assert before != after


@pytest.mark.slow
def test_what_a_trainer_writes_without_end_is_kept_within_bounds(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote 12 MiB to each stream; Ray keeps two files of a stream."""
    import ray

    monkeypatch.setenv("RAY_ROTATION_MAX_BYTES", str(LOG_BYTES))
    result = study(misbehaving, tmp_path / "study", in_order("talk", ""))
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    wrote, after = pids(result)
    assert wrote == after, "writing wears no process out"
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    for kind in ("out", "err"):
        files = list(logs.glob(f"worker-*-{wrote}.{kind}*"))
        end = time.monotonic() + 600
        while (size := sum(f.stat().st_size for f in files)) < LOG_BYTES // 2:
            assert time.monotonic() < end, "nothing is written"
            time.sleep(0.1)
        assert size < 3 * LOG_BYTES, kind


# --- the same instant ---------------------------------------------------------------------------


def test_trials_that_end_in_the_same_instant_all_count(fast_path: Path) -> None:
    """At 5.0 s of the virtual clock four trials reach the target; the first to be tried leads."""
    rates = [2.0, 2.0, 2.0, 2.0, 1.0]
    first = simulate(racing(rates), fast_path / "a", 5, workers=4)
    assert [(t.state, t.seconds) for t in first.trials[:4]] == [(State.REACHED, 5.0)] * 4
    assert [(t.state, t.reason) for t in first.trials[4:]] == [(State.CENSORED, "capped")]
    assert len({t.ended_at for t in first.trials[:4]}) == 1
    assert first.best is not None
    assert first.best.number == 0
    lines = (fast_path / "a" / JOURNAL).read_bytes().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if b'"event":"ended"' in line]
    for cut in ends[:4]:  # killed between two ends of one instant
        folder = fast_path / str(cut)
        folder.mkdir()
        for name in ("experiment.json", JOURNAL):
            (folder / name).write_bytes((fast_path / "a" / name).read_bytes())
        (folder / JOURNAL).write_bytes(b"".join(lines[: cut + 1]))
        again = simulate(racing(rates), folder, 5, workers=4)
        outcomes = [(t.number, t.state, t.seconds) for t in again.trials]
        assert outcomes == [(t.number, t.state, t.seconds) for t in first.trials]


@pytest.mark.slow
def test_workers_that_end_in_the_same_instant(tmp_path: Path) -> None:
    """Two processes wait for one moment of the machine's clock, ten times, and end at the last."""
    configs = [{"n": n, "meet": str(tmp_path)} for n in range(2)]
    pool = LocalPool(together, at.Scaling(max_concurrent_trials=2), hang_timeout=600)
    result = study(together, tmp_path / "study", configs, pool, max_concurrent_trials=2)
    moments = [[r.metrics["moment"] for r in t.reports if r.metrics] for t in result.trials]
    assert moments[0] == moments[1], "they met at every milestone"
    for trial in result.trials:
        assert (trial.state, trial.attempts, len(trial.reports)) == (State.REACHED, 1, 11)
