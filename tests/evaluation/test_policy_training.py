"""Training of the sampler `policy`: simulated studies, imitation, practice, and the command."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded_tasks import task, tasks
from sims import learning as learning_curve
from sims import simulate, wide

from autotune.algorithms.experience.known_task import MARKS, KnownTask
from autotune.algorithms.experience.posterior import Evidence, posterior
from autotune.algorithms.samplers.trained_policy import network
from autotune.cli import main
from autotune.evaluation.policy_training import (
    learning,
    recorded,
    settings,
    stopping,
    to_file,
    torch_network,
)
from autotune.evaluation.policy_training.simulation import GRID, SPEND, Study
from autotune.evaluation.policy_training.stopping import PrunedStudy
from autotune.evaluation.policy_training.tables import Table, for_model, tables
from autotune.study.experience import store
from autotune.trial import Report, State, Target, Trial

TABLES = tables(tasks(), np.random.default_rng(0))


def played(study: Study, count: int = 99) -> list[int]:
    """The rows that a random search runs."""
    rows = []
    while not study.over and len(rows) < count:
        decision = study.decision()
        rows.append(int(decision.rows[study.rng.integers(len(decision.rows))]))
        study.run(rows[-1])
    return rows


# --- tasks and tables -----------------------------------------------------------------------------


def test_a_task_is_no_source_of_its_own_and_shared_points_are_split() -> None:
    shared = [task(name, best, seed=0) for name, best in (("a", -1.0), ("b", -2.0))]
    made = tables(shared, np.random.default_rng(0), views=2)
    assert [table.task.name for table in made] == ["a", "b"] * 2
    for number, table in enumerate(made):
        assert set(table.owner) <= {1 - number % 2}
        run = {repr(p) for p in table.task.points}
        models = {
            repr(p) for p, side in zip(shared[0].points, for_model(shared[0]), strict=True) if side
        }
        assert run
        assert not run & models
    assert len(tables([shared[0]], np.random.default_rng(0))[0].owner) == 0


def test_tasks_of_other_parameters_and_of_few_trials_are_no_obstacle() -> None:
    other = KnownTask("odd", [{"x": "a"}, {"x": "b"}] * 3, *(np.ones(6),) * 2, np.ones((6, 12)))
    made = tables([*tasks(2), other], np.random.default_rng(0))
    assert {table.task.name for table in made} == {"task-0", "task-1"}


def recorded_file(folder: Path) -> Path:
    """A file of recorded curves with one task."""
    curves = np.stack([np.linspace(0, 50 + i, 8) for i in range(30)])[None]
    seconds = np.broadcast_to(np.arange(1.0, 9.0), curves.shape)
    about = {"val_accuracy": curves, "time": seconds, "tasks": np.array(["t"])}
    np.savez(folder / "a.npz", **about, cfg_learning_rate=np.geomspace(1e-3, 1, 30))
    return folder / "a.npz"


def test_recorded_files_are_read(tmp_path: Path) -> None:
    (read,) = recorded.read(recorded_file(tmp_path))
    assert (read.name, read.points[0]) == ("t", {"lr": pytest.approx(1e-3)})
    assert np.isfinite(read.times).sum() == 0, "a time must be below the limit"
    assert read.curves[:, -1] == pytest.approx(50.0 + np.arange(30))
    runs = [{"hp": {"beta1": 0.9}, "valid": {"loss": [3.0, math.nan, 1.0 + i]}} for i in range(4)]
    with gzip.open(tmp_path / "text.json.gz", "wt") as file:
        json.dump(runs, file)
    (read,) = recorded.read(tmp_path / "text.json.gz")
    assert read.points[0] == {"momentum": 0.9}
    assert read.curves[:, -1].tolist() == [-1.0, -2.0, -3.0, -3.0]


# --- simulated studies ----------------------------------------------------------------------------


def as_trial(study: Study, place: int) -> Trial:
    marks = [(m, c) for m, c in zip(MARKS, study.curves[place], strict=True) if np.isfinite(c)]
    reports = tuple(Report(i + 1, float(m), {"acc": float(c)}) for i, (m, c) in enumerate(marks))
    state = State.REACHED if study.reached[place] else State.CENSORED
    return Trial(place, {}, {}, state=state, reason="x", seconds=study.ends[place], reports=reports)


def test_what_a_simulated_study_believes_is_the_posterior() -> None:
    setting = settings.plain(TABLES[1])
    study = Study(setting, np.random.default_rng(0))
    played(study, 12)
    trials = [as_trial(study, place) for place in range(len(study.rows))]
    assert any(t.state is State.REACHED for t in trials)
    censored = [i for i, t in enumerate(trials) if t.state is State.CENSORED]
    weights = np.ones(len(setting.predicted.logs))
    target = Target("acc", 2.0, limit=1.0)
    rows = setting.predicted.of(study.rows)
    expected = posterior(trials, rows, target, weights, Evidence())
    found = study.decision().expected
    assert len(censored) > 3
    assert found.none == pytest.approx(expected.none, abs=0.1)


def test_a_study_keeps_the_cap_the_limit_and_its_spend() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        setting = settings.drawn(TABLES[seed % len(TABLES)], rng)
        study = Study(setting, rng, candidates=40)
        rows = played(study)
        assert len(set(rows)) == len(rows) == len(study.rows)
        assert max(study.ends) <= 1.0 + 1e-9
        best = 1.0
        for end, reached in zip(study.ends, study.reached, strict=True):
            best = min(best, end) if reached else best
        assert best == pytest.approx(study.best)
        if len(rows) < 60 and study.free.any():
            assert study.clock >= SPEND / setting.workers
        regrets = study.log_regrets()
        assert (np.diff(regrets) <= 1e-9).all() or setting.noise > 0
        assert len(regrets) == len(GRID)


def test_settings_vary() -> None:
    rng = np.random.default_rng(0)
    made = [settings.drawn(TABLES[0], rng) for _ in range(80)]
    assert {s.workers for s in made} == {1, 2, 4, 8}
    assert {s.positions.shape[1] for s in made} >= {2, 3, 4}
    assert {len(s.predicted.logs) == 0 for s in made} == {True, False}
    assert all(
        np.isfinite(s.times).any() and (s.times[np.isfinite(s.times)] < 1).all() for s in made
    )
    assert all(s.predicted.logs.shape[1] == len(s.times) for s in made)
    assert len(settings.without_tasks(made[0]).predicted.logs) == 0


# --- learning -------------------------------------------------------------------------------------


def decisions(count: int = 40) -> list[learning.Step]:
    """Decisions of studies of unequal size, and a worth of each."""
    weights = torch_network.as_arrays(torch_network.fresh(0))
    steps, _ = learning.practised(TABLES, weights, np.random.default_rng(0))
    order = np.random.default_rng(0).permutation(len(steps))
    return [steps[i] for i in order[:count]]


def test_numpy_and_torch_agree_whatever_the_batch() -> None:
    layers = torch_network.fresh(3)
    with torch.no_grad():
        for layer in layers.values():
            layer += 0.3 * torch.randn(layer.shape, generator=torch.Generator().manual_seed(1))
    made = [step.inputs for step in decisions(12)]
    assert len({d.pairs.shape[:2] for d in made}) > 5
    logs = torch_network.log_policy(layers, torch_network.batch(made))
    weights = torch_network.as_arrays(layers)
    for row, one in zip(logs.detach().numpy(), made, strict=True):
        count = len(one.points)
        own = np.log(learning.probabilities(weights, one))
        assert row[:count] == pytest.approx(own, abs=1e-5 * max(1.0, np.abs(own).max()))
        assert np.exp(row[count:]).sum() == 0


def test_imitation_lowers_the_loss_on_a_fixed_batch() -> None:
    layers = torch_network.fresh(0)
    rng = np.random.default_rng(1)
    made = learning.imitated(TABLES, torch_network.as_arrays(layers), rng)[:48]
    optimizer = torch.optim.Adam(list(layers.values()), lr=1e-2)
    losses = [float(learning.imitate(layers, optimizer, made)) for _ in range(40)]
    least = -np.mean([np.sum(w * np.log(np.maximum(w, 1e-12))) for _, w in made])
    assert losses[-1] - least < 0.7 * (losses[0] - least)


def test_practice_makes_what_was_worth_more_likelier() -> None:
    layers, steps = torch_network.fresh(0), decisions()
    optimizer = torch.optim.Adam(list(layers.values()), lr=5e-3)
    given = torch_network.batch([step.inputs for step in steps])
    taken = torch.tensor([step.taken for step in steps])
    worth = np.array([step.worth for step in steps])

    def likely() -> np.ndarray:
        logs = torch_network.log_policy(layers, given)[torch.arange(len(steps)), taken]
        return logs.detach().numpy()

    before = likely()
    assert before == pytest.approx([step.log for step in steps], abs=1e-4), "the ratio begins at 1"
    for _ in range(12):
        learning.improve(layers, optimizer, steps)
    assert float((worth * (likely() - before)).mean()) > 0.01


# --- the pruner -----------------------------------------------------------------------------------


def pruned(seed: int, prune: Callable[[np.ndarray, int], bool] | None) -> PrunedStudy:
    """A random search, whose trials end at their target or cap unless `prune` stops them."""
    rng = np.random.default_rng(seed)
    setting = replace(settings.drawn(TABLES[seed % len(TABLES)], rng), pruner=0.0)
    study = PrunedStudy(setting, np.random.default_rng(seed), 40, prune=prune)
    played(study)
    return study


@pytest.mark.parametrize("seed", range(8))
def test_a_study_that_is_looked_at_runs_as_any_other(seed: int) -> None:
    looked = pruned(seed, None)
    rng = np.random.default_rng(seed)
    setting = replace(settings.drawn(TABLES[seed % len(TABLES)], rng), pruner=0.0)
    plain = Study(setting, np.random.default_rng(seed), 40)
    played(plain)
    assert (looked.rows, looked.ends, looked.reached) == (plain.rows, plain.ends, plain.reached)
    assert all(look.inputs.shape == (network.STOP,) for look in looked.looks)


def test_of_the_looks_at_a_trial_those_win_that_reach_the_target_before_the_best() -> None:
    study = pruned(3, None)
    assert {look.won for look in study.looks} == {True, False}
    one = pruned(3, lambda seen, ended: ended >= 1)
    assert study.ends[0] == one.ends[0]
    assert all(
        min(abs(end - MARKS)) < 1e-9 or reached
        for end, reached in zip(
            one.ends[study.setting.workers :], one.reached[study.setting.workers :], strict=True
        )
    )
    assert np.mean(one.ends) < np.mean(study.ends)


def test_the_network_learns_who_wins_and_the_pruner_reads_it() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, 2.0, (20_000, network.STOP))
    won = rows[:, 0] + rows[:, 5] > 8.0
    looks = [stopping.Look(row, bool(w)) for row, w in zip(rows, won, strict=True)]
    weights, loss = stopping.fitted(looks, seed=0)
    share = won.mean()
    assert loss < 0.3 * -(share * np.log(share) + (1 - share) * np.log(1 - share))
    found = np.array([network.chance(weights, row) for row in rows])
    logs = -np.where(won, np.log(found), np.log1p(-found))
    assert logs.mean() == pytest.approx(loss, abs=0.02), "numpy and torch have one network"


def test_the_same_seed_has_the_same_pruner() -> None:
    def weights(seed: int) -> network.Weights:
        return stopping.train(TABLES, seed, lambda studies: studies / 60, lambda _: None)

    first, again, other = weights(0), weights(0), weights(1)
    assert first.keys() == network.STOP_SHAPES.keys()
    assert all((first[n] == again[n]).all() for n in first)
    assert any((first[n] != other[n]).any() for n in first)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of recorded curves of two tasks."""
    rng = np.random.default_rng(0)
    lr = np.exp(rng.uniform(np.log(1e-3), 0.0, 60))
    away = np.abs(np.log10(lr)[None] + np.array([[1.0], [2.0]]))[:, :, None]
    seconds = np.broadcast_to(np.arange(1.0, 13.0), (2, 60, 12))
    accuracy = 100 * (1 - np.exp(-seconds / (1 + 5 * away)))
    about = {"val_accuracy": accuracy, "time": seconds, "tasks": np.array(["a", "b"])}
    np.savez(tmp_path / "data.npz", **about, cfg_learning_rate=lr, cfg_depth=rng.integers(1, 9, 60))
    return tmp_path / "data.npz"


@pytest.mark.slow
def test_the_command_writes_weights_that_its_seed_repeats(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [data.with_name(f"{name}.npz") for name in "abc"]
    for file, seed in zip(out, ("0", "0", "1"), strict=True):
        words = ["train-policy", "--data", str(data), "--experience", "off", "--seed", seed]
        assert main.main([*words, "--out", str(file), "--studies", "36"]) == 0
    assert f"--sampler policy:{out[0]}" in capsys.readouterr().err
    assert out[0].read_bytes() == out[1].read_bytes() != out[2].read_bytes()
    assert network.read(out[0]).keys() == {**network.SHAPES, **network.STOP_SHAPES}.keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "a.txt"], "--out must be a file name that ends in .npz but got a.txt"),
        (["--out", "no/a.npz"], "--out no/a.npz: there is no folder no"),
        (["--out", "a.npz", "--minutes", "0"], "--minutes must be more than 0 but got 0"),
        (["--out", "a.npz", "--studies", "0"], "--studies must be a whole number >= 1 but got 0"),
        (["--out", "a.npz", "--seed", "-1"], "--seed must be a whole number >= 0 but got -1"),
        (["--out", "a.npz"], "nothing to train on: give --data FILE, or --experience DIR with"),
        (["--out", "a.npz", "--experience", "."], "nothing to train on: give --data FILE, or"),
        (
            ["--out", "a.npz", "--experience", "absent"],
            "--experience must be a folder or off but got",
        ),
        (["--out", "a.npz", "--data", "no.npz"], "--data no.npz: No such file"),
        (["--out", "a.npz", "--data", "x.csv"], "--data x.csv: must be a .npz, .json or .json.gz"),
        (["--out", "a.npz", "--data", "bad.npz"], "--data bad.npz: not a table of recorded curves"),
        (["--out", "a.npz", "--data", "no.json"], "--data no.json: not a table of recorded curves"),
        (["--out", "a.npz", "--data", "few.npz"], "none of 1 tasks has 20 trials"),
        (["--data", "x.npz"], "the following arguments are required: --out"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.npz").write_bytes(b"PK")
    Path("no.json").write_text("[]")
    about = {"val_accuracy": np.ones((1, 4, 3)), "time": np.ones((1, 4, 3))}
    np.savez("few.npz", **about, tasks=np.array(["a"]), cfg_x=np.arange(4.0))
    before = sorted(p.name for p in tmp_path.iterdir())
    experience = [] if "--experience" in words else ["--experience", "off"]
    assert main.main(["train-policy", *words, *experience]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.splitlines()[-1].startswith("autotune: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_who_names_a_folder_trains_on_that_alone(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train(tasks: list[KnownTask], *_: object) -> int:
        trained[:] = [task.name for task in tasks]
        return 1

    own = fast_path / "own"
    simulate(wide(), fast_path / "s", 6, learning_curve, experience=own)
    monkeypatch.setattr(to_file, "train", train)
    (made,) = store.known(own, print, with_shipped=False)
    monkeypatch.setattr(store, "shipped", lambda warn: [replace(made, name="z", study_id="0" * 32)])
    monkeypatch.setenv(store.VARIABLE, str(own))
    words = ["train-policy", "--out", str(fast_path / "w.npz")]
    for more, names in (
        ([], ["wide", "z"]),
        (["--experience", str(own)], ["wide"]),
        (["--experience", str(own), "--data", str(recorded_file(fast_path))], ["t", "wide"]),
    ):
        assert main.main([*words, *more]) == 0
        assert trained == names


def test_a_folder_of_experience_is_training_data() -> None:
    """Trials that were stopped have curves that end: they stay what they were last."""
    one = task("a", -1.0, seed=9)
    cut = np.where(np.arange(12)[None] < 6, one.curves, np.nan)
    stopped = KnownTask("cut", one.points, one.times, one.ended, cut)
    made: list[Table] = tables([stopped, *tasks(2)], np.random.default_rng(0))
    setting = settings.plain(made[0])
    assert setting.curves[:, -1] == pytest.approx(one.curves[:, 5])
    assert played(Study(setting, np.random.default_rng(0)), 5)
