"""Study folders that an earlier version wrote are read, folded and resumed as that version did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from older_studies import STUDIES, searched

from autotune.algorithms.names import REMOVED_POLICIES
from autotune.algorithms.samplers.optuna_names import parse_sampler
from autotune.errors import UserError
from autotune.storage import journal
from autotune.storage.journal import Closed, Opened
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.trial import State, Suggested, Trial, fold

DATA = Path(__file__).with_name("data")


def events(folder: Path) -> list[Any]:
    return [e for e in journal.read(folder) if not isinstance(e, Opened | Closed)]


def copied(name: str, to: Path) -> Path:
    """The study folder as that version left it, without what it made of it later."""
    folder = to / name
    shutil.copytree(DATA / name, folder)
    (folder / "resumed.json").unlink()
    return folder


def described(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "kind": trial.kind,
        "state": str(trial.state),
        "reason": trial.reason,
        "seconds": pytest.approx(trial.seconds),
        "seed": trial.seed,
        "repeats": trial.repeats,
        "parent": trial.origin.parent if trial.origin is not None else None,
        "point": pytest.approx(dict(trial.point)) if trial.point else None,
    }


@pytest.mark.parametrize("name", STUDIES)
def test_an_older_journal_is_read_and_folded(name: str) -> None:
    trials = fold(events(DATA / name))
    after = json.loads((DATA / name / "resumed.json").read_text())["trials"]
    assert list(trials) == list(range(len(trials)))
    for number, trial in trials.items():
        assert (trial.kind, trial.seed) == (after[number]["kind"], after[number]["seed"])
        if trial.ended:
            assert described(trial) == after[number]
    running = [t for t in trials.values() if t.state is State.RUNNING]
    assert running, "the journal breaks off"
    if name == "searched":
        assert any(t.checkpoint is not None for t in running)
    if name == "forked":
        assert sum(t.origin is not None for t in trials.values()) == 2
    if name == "raced":
        assert sum(t.kind == "race" for t in trials.values()) == 4
    if name == "confirmed":
        assert {"race", "confirm"} <= {t.kind for t in trials.values()}


@pytest.mark.parametrize("name", STUDIES)
def test_an_older_study_is_resumed_to_the_same_trials(name: str, fast_path: Path) -> None:
    """Numbers, states, seeds and points are those that the older version gave.

    Where a sampler has changed since, further points are its own: those of `searched` and `raced`.
    So are the finalists of `raced`, as what decides among these has changed.
    """
    folder = copied(name, fast_path)
    before = (folder / journal.JOURNAL).read_bytes()
    expected = json.loads((DATA / name / "resumed.json").read_text())
    result = STUDIES[name](folder)
    assert result.best is not None
    assert result.best.number == expected["best"]
    assert [described(t) for t in result.trials] == expected["trials"]
    assert (folder / journal.JOURNAL).read_bytes().startswith(before)
    suggested = [e.trial for e in events(folder) if isinstance(e, Suggested)]
    assert suggested == list(range(len(result.trials)))


@pytest.mark.parametrize("removed", REMOVED_POLICIES)
def test_a_study_whose_sampler_was_removed_says_what_to_take(removed: str, fast_path: Path) -> None:
    folder = copied("searched", fast_path)
    manifest = folder / EXPERIMENT_JSON
    manifest.write_text(manifest.read_text().replace("policy:elite", removed))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for sampler in ("auto", removed):
        with pytest.raises(UserError, match=f"'{removed}' was removed.*--sampler policy") as caught:
            searched(folder, sampler)
        assert "\n" not in str(caught.value)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(searched(folder, "policy:elite").trials) == 14
    with pytest.raises(UserError, match=f"'{removed}' was removed"):
        parse_sampler(removed.title())
