"""Real disks that are full, read-only or slow: a clear line, nothing half-written, a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disks import Disk, disk
from sims import racing, simulate
from toys import METRIC, toy

import autotune as at
from autotune.backends.local.pool import LocalPool
from autotune.storage import journal
from autotune.trial import Ended, State

RATES = [2.0, 3.0, 4.0, 0.5, 5.0, 1.0]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Disk]:
    with disk(tmp_path) as made:
        yield made


def outcomes(result: at.StudyResult) -> list[Any]:
    return [(t.number, t.config, t.seed, t.state, t.reason, t.seconds) for t in result.trials]


def nothing_is_half_written(folder: Path) -> None:
    journal.read(folder)
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("how", ["full", "failed"])
def test_a_disk_that_takes_no_more_ends_the_study_and_a_sound_one_resumes_it(
    small: Disk, fast_path: Path, how: str
) -> None:
    folder, events = small.place / "study", [0]

    def watch(event: Any, trials: Any) -> None:
        events[0] += 1
        if events[0] == 20:
            small.fill() if how == "full" else small.fail()

    with pytest.raises(at.StudyError) as error:
        simulate(racing(RATES), folder, 6, watch=watch)
    what = "No space left on device" if how == "full" else "Read-only file system"
    assert str(error.value) == f"cannot write {folder / 'journal.jsonl'}: {what}"
    nothing_is_half_written(folder)
    if how == "full":
        small.free()
    else:
        small.unmount()
        small.mount()
    result = simulate(racing(RATES), folder, 6)
    assert outcomes(result) == outcomes(simulate(racing(RATES), fast_path / "sound", 6))
    assert result.ended == "done"


def test_a_study_that_begins_on_a_full_disk_is_one_line_and_begins_when_there_is_room(
    small: Disk,
) -> None:
    small.fill()
    folder = small.place / "study"
    with pytest.raises((at.StudyError, at.UserError), match="No space left on device") as error:
        simulate(racing(RATES), folder, 6)
    assert "\n" not in str(error.value)
    assert not list(small.place.rglob("*.part"))
    small.free()
    assert simulate(racing(RATES), folder, 6).ended == "done"


def test_a_record_that_cannot_be_written_again_leaves_the_one_there_is(small: Disk) -> None:
    """A finished study that is opened on a full disk is still one that can be read."""
    folder = small.place / "study"
    done = simulate(racing(RATES), folder, 6)
    before = (folder / "experiment.json").read_bytes()
    small.fill()
    with pytest.raises(at.StudyError, match="No space left on device"):
        simulate(racing(RATES), folder, 6)
    assert (folder / "experiment.json").read_bytes() == before
    nothing_is_half_written(folder)
    small.free()
    assert outcomes(simulate(racing(RATES), folder, 6)) == outcomes(done)


def test_a_read_only_folder_is_the_users_mistake(small: Disk) -> None:
    small.unmount()
    small.mount("loop,ro")
    folder = small.place / "study"
    with pytest.raises(at.UserError) as error:
        simulate(racing(RATES), folder, 6)
    assert str(error.value) == f"cannot write the study folder {folder}: Read-only file system"
    assert not folder.exists()


# --- with real workers ---------------------------------------------------------------------------


def real(folder: Path, *, nap: float = 0.01, watch: Any = None, hang: float = 600.0) -> Any:
    space = at.SearchSpace({"rate": at.Float(0.1, 10), "nap": at.Fixed(nap)})
    experiment = at.Experiment(
        "toy",
        toy,
        space,
        at.Target(METRIC, 0.95, limit=6000),
        baseline={"rate": 1.0},
        configs=[{"rate": 0.7}],
        failure=at.FailurePolicy(checkpoint_interval=0, hang_timeout=hang),
        scaling=at.Scaling(max_concurrent_trials=1),
    )
    pool = LocalPool(toy, experiment.scaling, hang_timeout=hang)
    options = {"sampler": "random", "pruner": "none", "tracking_uri": "off", "pool": pool}
    return at.run(experiment, trials=2, out=folder, watch=watch, **options)


@pytest.mark.slow
def test_workers_on_a_full_disk_go_on_without_checkpoints_and_then_from_the_last(
    small: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, saved = small.place / "study", [0]

    def watch(event: Any, trials: Any) -> None:
        checkpoint = trials[0].checkpoint
        if checkpoint is not None and checkpoint.step >= 200 and not saved[0]:
            saved[0] = checkpoint.step
            small.reserve(folder / "journal.jsonl", 1024)  # until the workers have met the disk
            small.fill()

    with pytest.raises(at.StudyError, match=r"journal\.jsonl: No space left on device"):
        real(folder, watch=watch)
    said = capfd.readouterr().err
    assert "warning: trial 0: no checkpoint: No space left on device" in said
    nothing_is_half_written(folder)
    small.free()
    result = real(folder)
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    assert [t.reports[-1].metrics["summed"] for t in result.trials] == [1000.0, 1400.0]
    assert saved[0] > 0
    assert result.trials[0].attempts == 2


@pytest.mark.slow
def test_a_slow_disk_costs_the_trials_clock_nothing(small: Disk) -> None:
    """What is written waits for half a second: the driver is late, and no worker hangs."""
    folder = small.place / "study"
    with small.slow(0.5):
        result = real(folder, nap=0.02, hang=60.0)
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    ended = [e for e in journal.read(folder) if isinstance(e, Ended)]
    for trial, end in zip(result.trials, ended, strict=True):
        steps, clock = len(trial.reports) - 1, trial.clock
        waited = clock.decide + clock.checkpoint
        assert waited > 0.1 * steps, "it was slow"
        assert 0.02 * steps <= trial.seconds < waited
        assert trial.seconds + waited < end.at
        assert trial.attempts == 1
