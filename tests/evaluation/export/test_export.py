"""Exports train alone, without the libraries of a study, and replays give the same losses."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sims import lines, racing, simulate

import autotune as at
from autotune.cli import main
from autotune.cli.console import UNREACHED
from autotune.evaluation.export import export, replay, replay_report, train_template
from autotune.schedules import Linear, as_schedule, from_json
from autotune.storage import codec, journal
from autotune.study.manifest import Manifest
from autotune.trial import Change, Hardware, Report, State, Target, Trial

ROOT = Path(__file__).parents[3]
IMAGES = """
import autotune as at
from trainers.image import train

FIXED = {"data": "digits", "model": "mlp", "width": 32, "milestone": 640, "optimizer": "sgd"}
SPACE = at.SearchSpace({
    **{k: at.Fixed(v) for k, v in FIXED.items()},
    "batch_size": at.Fixed(at.Linear(32, 96)),
    "lr": at.ScheduleSpace(at.Float(0.01, 1.0, log=True), warmup=0.1),
    "horizon": at.Fixed(8.0),
})
TARGET = at.Target("val_accuracy", 0.93, limit=900)
SCALING = at.Scaling(num_workers=2, max_concurrent_trials=1)

def recipe():
    return at.Experiment("digits", train, SPACE, TARGET, scaling=SCALING, baseline={"lr.peak": 0.2})

def halve(trial, others, target):
    return at.Change(lr_factor=0.5) if len(trial.reports) in (2, 4) else None
"""
OWN = """
import torch
import autotune as at
from beside import step_of

def train(config):
    if config["huge"]:
        raise MemoryError("no room")
    at.report(0, {})
    weight, seen = torch.zeros(64), 0
    while True:
        for _ in range(10):
            noise = torch.randn(64)
            weight += config["schedules"]["lr"](min(seen / 1000, 1.0)) * (1 + noise / 8 - weight)
            seen += step_of(config)
        loss = float((weight - 1).square().mean())
        change = at.report(seen, {"train_loss": loss, "tokens_per_second": torch.rand(()).item()})

SPACE = at.SearchSpace({
    "schedules": at.Fixed({"lr": at.Exponential(0.1, 0.01)}),
    "huge": at.Choice([False, True]),
})

def recipe():
    return at.Experiment(
        "own", train, SPACE, at.Target("train_loss", 0.002, mode="min", limit=900),
        baseline={"huge": False}, configs=[{"huge": True}],
    )
"""


def run(*command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=900,
    )


def steps_of(printed: str) -> list[tuple[int, dict[str, float]]]:
    """What `train.py` printed: each milestone's step and metrics, to the last bit."""
    found = re.findall(r"^step (\d+)  [\d.]+ s(.*)$", printed, re.MULTILINE)
    return [(int(s), {n: float(v) for n, v in re.findall(r"(\w+)=(\S+)", m)}) for s, m in found]


def lasting(metrics: Any) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if not k.endswith(replay_report._TIMES)}


def check_same_losses(printed: str, trial: Trial) -> None:
    printed_steps = steps_of(printed)
    assert len(printed_steps) > 2
    for (step, metrics), report in zip(printed_steps, trial.reports, strict=False):
        here, then = lasting(metrics), lasting(report.metrics)
        if step in dict(trial.changes):  # reported before the controller turned it, not after
            assert here.pop("lr") != then.pop("lr")
        assert (step, here) == (report.step, then)


def study(folder: Path, recipe: str, trials: int, *more: str) -> at.StudyResult:
    place = ["--out", str(folder), "--tracking-uri", "off", "--trials", str(trials)]
    assert main.main(["run", recipe, *place, "--sampler", "random", *more]) in (0, 3)
    return at.load_study(folder)


@pytest.fixture(scope="module")
def images(
    ray_address: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[at.StudyResult, Path]:
    """A study of digits on two ranks with a controller, and the export of its best trial."""
    place = tmp_path_factory.mktemp("images")
    (place / "recipe.py").write_text(IMAGES)
    file = place / "recipe.py"
    result = study(place / "s", f"{file}:recipe", 3, "--controller", f"{file}:halve")
    assert main.main(["export", str(result.folder), "--to", str(place / "out")]) == main.DONE
    return result, place / "out"


@pytest.fixture(scope="module")
def own(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    """A study of a recipe file whose trainer calls `report`; its second trial is out of memory."""
    place = tmp_path_factory.mktemp("own")
    (place / "recipe.py").write_text(OWN)
    (place / "beside.py").write_text("def step_of(config):\n    return 10\n")
    return study(place / "s", f"{place / 'recipe.py'}:recipe", 2)


# --- what is written ------------------------------------------------------------------------------


def test_an_export_holds_all_that_is_promised(images: tuple[at.StudyResult, Path]) -> None:
    result, out = images
    best = result.best
    assert best is not None
    assert {p.name for p in out.iterdir()} == {
        *("config.json", "schedules.json", "schedules.png", "trial.json"),
        *("train.py", "README.md", "checkpoint"),
    }
    config = json.loads((out / "config.json").read_text())
    assert codec.decode_config(config) == {**best.config, "lr": from_json(config["lr"])}
    schedules = json.loads((out / "schedules.json").read_text())
    lr, batch_size = (from_json(schedules[k]) for k in ("lr", "batch_size"))
    assert batch_size == best.config["batch_size"]
    places = [best.reports[i].metrics["progress"] for i in (1, 3)]
    for x, factor in ((0.0, 1.0), (places[0], 0.5), (places[1], 0.25), (1.0, 0.25)):
        assert lr(x) == best.config["lr"](x) * factor
    assert (out / "schedules.png").read_bytes().startswith(b"\x89PNG")
    for rank in (0, 1):
        state = torch.load(out / "checkpoint" / f"rank-{rank}.pt", weights_only=True)
        assert state["seen"] == best.reports[-1].step
    document = json.loads((out / "trial.json").read_text())
    assert document["train"] == "trainers.image:train"
    assert (document["seed"], document["state"], document["seconds"]) == (
        best.seed,
        "REACHED",
        best.seconds,
    )
    assert document["changes"] == []
    assert [c["step"] for c in document["turned"]] == [best.reports[i].step for i in (1, 3)]
    assert codec.decode_config(document["turned_from"]) == {"lr": best.config["lr"]}
    assert len(document["reports"]) == len(best.reports)
    assert document["versions"]["torch"] == torch.__version__
    readme = (out / "README.md").read_text()
    assert "torchrun --nproc-per-node 2 train.py" in readme
    assert list(out.parent.glob(".out*")) == []


@pytest.mark.slow
def test_the_readme_of_an_export_runs(images: tuple[at.StudyResult, Path]) -> None:
    out = images[1]
    block = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    assert block is not None
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    names = {"optimizer": optimizer, "step": 40, "total_steps": 100}
    script = block[1].replace('"schedules.json"', repr(str(out / "schedules.json")))
    exec(script, names)
    lr = replay.read(out).trial.config["lr"]
    assert optimizer.param_groups[0]["lr"] == lr(0.4)


@pytest.mark.parametrize(
    ("config", "says", "unsaid"),
    [
        ({"lr": at.Linear(1, 0), "momentum": at.Linear(0, 1)}, 'group["lr"] = lr(', "momentum ="),
        ({"lr": 0.1, "batch_size": at.Linear(16, 64)}, "value = batch_size(", "lr"),
        ({"opt": {"lr": at.Linear(1, 0)}}, 'group["lr"] = lr(', "value"),
        ({"of": {"my-size": at.Linear(4, 8)}}, "value = my_size(", "lr"),
    ],
    ids=["lr", "no lr", "nested", "no name"],
)
def test_the_readme_shows_how_to_use_the_schedule_of_the_export(
    fast_path: Path, config: dict[str, Any], says: str, unsaid: str
) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    trial = replace(at.load_study(fast_path / "s").trials[0], config=config)
    out = fast_path / "out"
    export.export(at.load_study(fast_path / "s"), trial, out)
    block = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert says in block[1]
    assert unsaid not in block[1]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    names: dict[str, Any] = {"optimizer": optimizer, "step": 40, "total_steps": 100}
    exec(block[1].replace('"schedules.json"', repr(str(out / "schedules.json"))), names)
    if unsaid == "lr":
        (schedule,) = export.schedules_of(config).values()
        assert names["value"] == schedule(0.4)
        assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_moved_study_keeps_its_checkpoint(
    images: tuple[at.StudyResult, Path], tmp_path: Path
) -> None:
    result = images[0]
    shutil.copytree(result.folder, tmp_path / "moved")
    best = result.best
    assert best is not None
    assert best.checkpoint is not None
    gone = replace(best, checkpoint=replace(best.checkpoint, path=f"/gone{best.checkpoint.path}"))
    export.export(at.load_study(tmp_path / "moved"), gone, tmp_path / "out")
    assert len(list((tmp_path / "out" / "checkpoint").iterdir())) == 2


def test_a_failed_export_leaves_nothing(
    images: tuple[at.StudyResult, Path], tmp_path: Path
) -> None:
    best = images[0].trials[0]
    with pytest.raises(TypeError):
        export.export(images[0], replace(best, config={"a": object()}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("train", "found"),
    [
        ("trainers.image.train", "trainers.image:train"),
        ("nowhere.train", "nowhere:train"),
        ("__main__.train", None),
        ("pkg.mod.make.<locals>.train", None),
        ("functools.?", None),
        ("autotune_recipe_gone_0123456789ab.train", None),
    ],
)
def test_how_a_trainer_is_found_again(fast_path: Path, train: str, found: str | None) -> None:
    simulate(racing([1.0]), fast_path, 1)
    manifest = replace(Manifest.read(fast_path), train=train)
    trial = at.load_study(fast_path).trials[0]
    assert export.document_of(manifest, trial)["train"] == found


def test_a_trainer_without_a_name_is_that_of_the_recipe(fast_path: Path) -> None:
    """Of an existing script, say: the recipe is called again with its arguments."""
    result = simulate(racing([1.0]), fast_path / "s", 1)
    manifest = Manifest.read(fast_path / "s")
    recipe = f"{ROOT / 'tests' / 'support' / 'toy_recipes.py'}:paced_by"
    options = replace(manifest.options, recipe=recipe, recipe_arguments={"speed": "0.1"})
    manifest = replace(manifest, train="autotune.integrations.script.<script x>", options=options)
    export.export(result, result.trials[0], fast_path / "out", manifest)
    exported = replay.read(fast_path / "out")
    assert (exported.train, exported.recipe) == (None, recipe)
    assert replay.experiment(exported).train.__name__ == "train"
    missing = replace(exported, recipe_arguments=None)
    with pytest.raises(at.UserError, match="needs --with speed=NUMBER"):
        replay.experiment(missing)


@pytest.mark.slow
def test_a_trial_of_a_script_is_exported_with_a_word(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    manifest = fast_path / "s" / "experiment.json"
    manifest.write_text(manifest.read_text().replace('"sims.toy_train"', '"__main__.train"'))
    assert main.main(["export", str(fast_path / "s"), "--to", str(fast_path / "out")]) == main.DONE
    assert 'set "train" in its trial.json' in capsys.readouterr().err
    assert main.main(["replay", str(fast_path / "out")]) == main.USER
    said = capsys.readouterr().err
    assert "part of a script" in said
    assert said.count("\n") == 1
    alone = run(str(fast_path / "out" / "train.py"), cwd=fast_path)
    assert (alone.returncode, alone.stderr.count("\n")) == (1, 1)


# --- training alone -------------------------------------------------------------------------------


@pytest.mark.slow
def test_train_py_under_torchrun_gives_the_losses_of_the_journal(
    images: tuple[at.StudyResult, Path], tmp_path: Path
) -> None:
    result, out = images
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = run(*torchrun, str(out / "train.py"), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("ended: target")
    assert result.best is not None
    check_same_losses(done.stdout, result.best)


@pytest.mark.slow
def test_train_py_alone_needs_no_library_of_the_study(own: at.StudyResult, tmp_path: Path) -> None:
    """From its own folder, which must not hide the trainer's."""
    assert main.main(["export", str(own.folder), "--to", str(tmp_path / "out")]) == main.DONE
    done = run("-X", "importtime", "train.py", cwd=tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    check_same_losses(done.stdout, own.trials[0])
    loaded = {name.partition(".")[0] for name in re.findall(r"\| +([\w.]+)$", done.stderr, re.M)}
    assert loaded >= {"autotune", "torch", "beside"}
    assert not loaded & {"ray", "optuna", "mlflow", "pandas"}


# --- replays --------------------------------------------------------------------------------------


def again(exported: replay.Exported, repeats: int) -> dict[str, Any]:
    """The options of a replay, but for its place."""
    options = replay.options(exported, repeats)
    names = ("trials", "sampler", "pruner", "controller", "seed", "seeds", "recipe")
    return {name: getattr(options, name) for name in names}


def outcome(exported: replay.Exported, result: at.StudyResult) -> dict[str, Any]:
    return replay_report.document(exported, result, Manifest.read(result.folder))


def replayed(out: Path, folder: Path, repeats: int, capsys: Any) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    where = ["--out", str(folder), "--tracking-uri", "off", "--json"]
    code = main.main(["replay", str(out), "--repeats", str(repeats), *where])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_replay_gives_the_same_losses_and_new_times(
    images: tuple[at.StudyResult, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out = images
    code, report = replayed(out, tmp_path / "r", 2, capsys)
    assert code == main.DONE
    assert report["identical"] is True, report
    assert report["milestones"] >= 3
    assert (report["first_difference"], report["other_conditions"]) == (None, [])
    assert [r["state"] for r in report["repeats"]] == ["REACHED", "REACHED"]
    trials = at.load_study(tmp_path / "r").trials
    best = result.best
    assert best is not None
    assert [t.kind for t in trials] == ["confirm", "confirm"]
    assert trials[0].seed == best.seed != trials[1].seed
    assert trials[0].config == trials[1].config == replay.read(out).trial.config != best.config
    assert [t.changes for t in trials] == [(), ()]  # it needs no controller
    assert best.changes
    times = [t.seconds for t in trials]
    assert report["median_seconds"] == sum(times) / 2

    more = ["resume", str(tmp_path / "r"), "--trials", "3", "--json"]
    assert main.main(more) == main.DONE
    again = json.loads(capsys.readouterr().out)
    assert again["repeats"][:2] == report["repeats"]
    assert len({r["seed"] for r in again["repeats"]}) == 3
    assert again["identical"] is True

    other = ["export", str(tmp_path / "r"), "--trial", "1", "--to", str(tmp_path / "again")]
    assert main.main(other) == main.DONE
    assert replay.read(tmp_path / "again").train == "trainers.image:train"


@pytest.mark.slow
def test_a_replay_of_a_trial_without_memory_measures_that(
    own: at.StudyResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own.trials[1].state is State.INFEASIBLE
    which = ["--trial", "1", "--to", str(tmp_path / "out")]
    assert main.main(["export", str(own.folder), *which]) == main.DONE
    code, report = replayed(tmp_path / "out", tmp_path / "r", 1, capsys)
    assert code == UNREACHED
    assert [r["state"] for r in report["repeats"]] == ["INFEASIBLE"]
    assert (report["identical"], report["milestones"], report["median_seconds"]) == (False, 0, None)
    assert "cannot be compared" in replay_report.verdict(report)


def test_a_replay_is_a_resumable_study_of_one_configuration(fast_path: Path) -> None:
    """On a virtual clock: cut after any line, the same seeds and the same changes follow."""

    def change(trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        return Change(lr_factor=0.5) if trial.reports[-1].step == 20 else None

    first = simulate(racing([2.0]), fast_path / "s", 1, controller=change)
    export.export(first, first.trials[0], fast_path / "out")
    exported = replay.read(fast_path / "out")
    made, options = replay.experiment(exported), again(exported, 3)
    whole = simulate(made, fast_path / "r", **options)
    assert [t.kind for t in whole.trials] == ["confirm"] * 3
    assert [t.seed for t in whole.trials] == list(replay.seeds(first.trials[0].seed, 3))
    assert [t.changes for t in whole.trials] == [((20, Change(lr_factor=0.5)),)] * 3
    rows = (fast_path / "r" / journal.JOURNAL).read_bytes().splitlines(keepends=True)
    for end in range(1, len(rows), 4):
        folder = fast_path / f"cut-{end}"
        shutil.copytree(fast_path / "r", folder)
        (folder / journal.JOURNAL).write_bytes(b"".join(rows[:end]))
        resumed = simulate(made, folder, **options)
        assert [(t.seed, t.kind, t.seconds, t.changes) for t in resumed.trials] == [
            (t.seed, t.kind, t.seconds, t.changes) for t in whole.trials
        ]
    assert sum(row["event"] == "suggested" for row in lines(fast_path / "r")) == 3


def test_knobs_are_not_compared_where_a_schedule_turns_them_earlier() -> None:
    before = trial_with((1, {"loss": 0.5, "lr": 1.0, "progress": 0.5}), (2, {"lr": 0.5}))
    now = trial_with((1, {"loss": 0.5, "lr": 0.5, "progress": 0.25}), (2, {"lr": 0.5}))
    assert replay_report.compare(before, now, turned={1}) == (2, None)
    assert replay_report.compare(before, now)[1] == replay_report.Difference(1, "lr", 1.0, 0.5)
    found = replay_report.compare(before, now, turned={2})[1]
    assert found == replay_report.Difference(1, "lr", 1.0, 0.5)


def test_seeds_of_repeats_differ_and_grow() -> None:
    found = replay.seeds(5, 200)
    assert found[0] == 5
    assert len(set(found)) == 200
    assert all(0 <= seed < 2**31 for seed in found)
    assert replay.seeds(5, 9) == found[:9]


def trial_with(*reports: tuple[int, dict[str, float]], **more: Any) -> Trial:
    made = tuple(Report(step, float(step), metrics) for step, metrics in reports)
    return Trial(0, {}, reports=made, **more)


@pytest.mark.parametrize(
    ("before", "now", "same", "difference"),
    [
        ([(1, {"loss": 0.5})], [(1, {"loss": 0.5}), (2, {"loss": 0.4})], 1, None),
        ([(1, {"loss": 0.5})], [(1, {"loss": 0.5, "samples_per_second": 9.0})], 1, None),
        ([(1, {"loss": 0.5, "eval_seconds": 3.0})], [(1, {"loss": 0.5})], 1, None),
        ([(1, {"loss": 0.5, "exposed_communication": 0.1})], [(1, {"loss": 0.5})], 1, None),
        ([(1, {"loss": float("nan")})], [(1, {"loss": float("nan")})], 1, None),
        ([(1, {"loss": 0.1 + 0.2})], [(1, {"loss": 0.3})], 0, (1, "loss", 0.1 + 0.2, 0.3)),
        ([(1, {"loss": 1.0}), (2, {})], [(1, {"loss": 1.0}), (2, {"loss": 1.0})], 1, None),
        ([(1, {"a": 1.0, "b": 2.0})], [(1, {"a": 1.0})], 0, (1, "b", 2.0, None)),
        ([(0, {})], [(0, {})], 0, None),
        ([], [(1, {"loss": 1.0})], 0, None),
    ],
)
def test_what_is_the_same_bit_for_bit(
    before: Any, now: Any, same: int, difference: tuple[Any, ...] | None
) -> None:
    expected = replay_report.Difference(*difference) if difference else None
    assert replay_report.compare(trial_with(*before), trial_with(*now)) == (same, expected)


def test_a_difference_names_what_else_differs(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    trial = at.load_study(fast_path / "s").trials[0]
    export.export(at.load_study(fast_path / "s"), trial, fast_path / "out")
    document = json.loads((fast_path / "out" / "trial.json").read_text())
    document["versions"]["torch"] = "1.0"
    document["reports"][3]["metrics"]["val_accuracy"] += 1.0
    (fast_path / "out" / "trial.json").write_text(json.dumps(document))
    exported = replay.read(fast_path / "out")
    result = simulate(replay.experiment(exported), fast_path / "r", **again(exported, 2))
    said = outcome(exported, result)
    assert (said["identical"], said["milestones"]) == (False, 3)
    assert said["first_difference"]["step"] == trial.reports[3].step
    assert f"torch 1.0 then, {torch.__version__} now" in replay_report.verdict(said)
    assert "is not deterministic" in replay_report.verdict({**said, "other_conditions": []})
    replay_report.print_document(said, sys.stdout)
    assert "of 2 reached it.\nThe same seed differs first at step 30: " in capsys.readouterr().out
    assert json.loads(json.dumps(said, allow_nan=False)) == said


@pytest.mark.parametrize(("gpus", "deterministic"), [(1.0, False), (1.0, True), (0.0, False)])
def test_a_difference_on_a_gpu_says_what_a_gpu_promises(
    gpus: float, deterministic: bool, fast_path: Path
) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    export.export(
        at.load_study(fast_path / "s"), at.load_study(fast_path / "s").trials[0], fast_path / "o"
    )
    exported = replay.read(fast_path / "o")
    ran = replace(exported.trial, hardware=Hardware("H", gpus_per_worker=gpus), attempts=1)
    ran = replace(ran, config={**ran.config, **({"deterministic": True} if deterministic else {})})
    exported = replace(exported, trial=ran)
    found = replay_report._other_conditions(exported, ran, exported.versions)
    says = "a GPU promises equal bits only to a trainer with deterministic=True"
    assert found == ([says] if gpus and not deterministic else [])


def test_sharing_cores_is_no_other_condition_for_the_last_bits(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    trial = at.load_study(fast_path / "s").trials[0]
    shared = replace(trial.hardware, shared=not trial.hardware.shared)
    export.export(
        at.load_study(fast_path / "s"), replace(trial, hardware=shared), fast_path / "out"
    )
    exported = replay.read(fast_path / "out")
    result = simulate(replay.experiment(exported), fast_path / "r", **again(exported, 1))
    assert outcome(exported, result)["other_conditions"] == []


def test_the_median_counts_a_censored_repeat_as_later_than_any_other(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path / "s", 1)
    export.export(
        at.load_study(fast_path / "s"), at.load_study(fast_path / "s").trials[0], fast_path / "out"
    )
    exported = replay.read(fast_path / "out")
    took = [3.0, None, 5.0]
    trials = tuple(
        Trial(n, {}, state=State.REACHED if t else State.CENSORED, seconds=t or 1.0)
        for n, t in enumerate(took)
    )
    result = at.StudyResult(fast_path / "s", exported.target, trials)
    assert outcome(exported, result)["median_seconds"] == 5.0
    assert outcome(exported, replace(result, trials=trials[:2]))["median_seconds"] is None


# --- mistakes -------------------------------------------------------------------------------------


@pytest.fixture
def exported(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    simulate(racing([1.0, 0.01]), fast_path / "s", 2)
    assert main.main(["export", str(fast_path / "s"), "--to", str(fast_path / "out")]) == main.DONE
    monkeypatch.chdir(fast_path)
    return fast_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("export s", "export needs --to OUT"),
        ("export s --to new --trial 7", "--trial 7: the study's trials are from 0 to 1"),
        ("export s --optuna sqlite:///x.db --trial 0", "--trial is the trial to export --to OUT"),
        ("export s --to s", "exists and is not an empty directory: choose another folder"),
        ("export s --to s/experiment.json", "exists and is not an empty directory"),
        ("export s --to /proc/nowhere/x", "cannot write /proc/nowhere/x"),
        ("export s --to /", "/ exists and is not an empty directory: choose another folder"),
        ("export nowhere --to new", "nowhere is not a study folder"),
        ("replay nowhere", "nowhere is not an export: it has no trial.json"),
        ("replay s", "s is not an export: it has no trial.json"),
        ("replay out --repeats 0", "--repeats must be a whole number >= 1 but got 0"),
        ("replay out --repeats few", "--repeats: must be a whole number but got 'few'"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    exported: Path, capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    capsys.readouterr()
    assert main.main(arguments.split()) == main.USER
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in exported.iterdir()) == ["out", "s"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("autotune_export", 2, "is not of an export that this version reads (1)"),
        ("target", {"value": 0.5}, "is damaged: TypeError"),
        ("scaling", {"num_workers": 0}, "Scaling num_workers must be a whole number >= 1"),
        ("state", "DONE", "'DONE' is not a valid State"),
        ("reports", [{"step": 1}], "is damaged: KeyError"),
        ("train", 5, "is damaged: TypeError: train must be text or null"),
        ("recipe", 5, "is damaged: TypeError: recipe must be text or null"),
        ("recipe_arguments", ["x"], "is damaged: TypeError: recipe_arguments must be an object"),
        ("python_path", "src", "is damaged: TypeError: python_path must be a list of text"),
        ("python_path", [5], "is damaged: TypeError: python_path must be a list of text"),
        ("train", "sims:toy_trian", "did you mean 'toy_train'?; set \"train\" in"),
        ("train", "nowhere:train", "is not found from here: trainer module 'nowhere' does not"),
        ("train", "/gone/file.py:train", "trainer file '/gone/file.py' does not exist; set"),
    ],
)
def test_a_damaged_export_gets_one_clear_line(
    exported: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, says: str
) -> None:
    file = exported / "out" / "trial.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    capsys.readouterr()
    assert main.main(["replay", "out", "--tracking-uri", "off"]) == main.USER
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not (exported / "studies").exists()


def two_stages(edges: list[Any], *parts: Any) -> dict[str, Any]:
    written = [as_schedule(p).to_json() if isinstance(p, float) else p for p in parts]
    return {"schedule": "Stages", "version": 1, "edges": edges, "parts": written}


LINE = Linear(0.0, 1.0).to_json()
BAD_SCHEDULES: dict[str, tuple[dict[str, Any], str]] = {
    "out of order": (
        two_stages([0.5, 0.2], 1.0, 2.0, 3.0),
        "Stages: edges: number 2 must be more than 0.5",
    ),
    "overlapping": (
        two_stages([0.5, 0.5], 1.0, 2.0, 3.0),
        "Stages: edges: number 2 must be more than 0.5",
    ),
    "outside": (two_stages([1.5], 1.0, 2.0), "Stages: edges: number 1 must lie in (0, 1), got 1.5"),
    "no number": (
        two_stages([0.5], 1.0, LINE | {"end": math.nan}),
        "Stages: part 2: Linear: end must be a finite number, got nan",
    ),
    "later": (LINE | {"version": 2}, "Linear: version must be 1, got 2: a later autotune wrote"),
    "unknown": (LINE | {"schedule": "Liner"}, "unknown schedule 'Liner', did you mean 'Linear'?"),
}


@pytest.mark.parametrize("name", BAD_SCHEDULES)
def test_a_bad_schedule_of_an_export_is_reported_with_its_knob(
    exported: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    schedule, says = BAD_SCHEDULES[name]
    (exported / "out" / "config.json").write_text(json.dumps({"knobs": {"lr": schedule}}))
    capsys.readouterr()
    assert main.main(["replay", "out", "--tracking-uri", "off"]) == main.USER
    err = capsys.readouterr().err
    assert f"knobs: lr: {says}" in err
    assert err.count("\n") == 1
    assert not (exported / "studies").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"lr": two_stages([0.5, 0.2], 1.0, 2.0, 3.0)}, "lr: Stages: edges: number 2 must be more"),
        ({"lr": two_stages([0.5], 0.1, -0.1)}, "lr must be a number at least 0, but stage 2 of 2"),
    ],
    ids=["no schedule", "not allowed"],
)
def test_train_py_reports_a_bad_schedule_in_one_line(
    exported: Path, config: dict[str, Any], says: str
) -> None:
    out = exported / "out"
    document = json.loads((out / "trial.json").read_text())
    place = {"train": "trainers.image:train", "python_path": [str(ROOT)]}
    (out / "trial.json").write_text(json.dumps({**document, **place}))
    (out / "config.json").write_text(json.dumps({"data": "digits", "model": "mlp", **config}))
    done = run("train.py", cwd=out)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{out.resolve() / 'config.json'}: {says}")
    assert done.stderr.count("\n") == 1


def test_torn_files_of_an_export(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (exported / "out" / "config.json").write_text("[")
    assert main.main(["replay", "out"]) == main.USER
    (exported / "out" / "config.json").unlink()
    assert main.main(["replay", "out"]) == main.USER
    err = capsys.readouterr().err
    assert "out cannot be read: " in err
    assert "it has no config.json" in err


def test_an_export_of_a_study_without_best_is_exit_3(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(racing([0.01]), fast_path / "s", 1)
    to = ["--to", str(fast_path / "out")]
    assert main.main(["export", str(fast_path / "s"), *to]) == UNREACHED
    err = capsys.readouterr().err
    assert "no trial has reached val_accuracy 1; nearest: trial 0 came to" in err
    assert "; name a trial with --trial N" in err
    assert not (fast_path / "out").exists()
    assert main.main(["export", str(fast_path / "s"), "--trial", "0", *to]) == main.DONE
    assert replay.read(fast_path / "out").trial.state is State.CENSORED
    assert "not within" in (fast_path / "out" / "README.md").read_text()


def test_an_empty_folder_is_filled(exported: Path) -> None:
    (exported / "empty").mkdir()
    assert main.main(["export", "s", "--to", "empty"]) == main.DONE
    assert replay.read(exported / "empty").trial.number == 0


@pytest.mark.parametrize(
    ("gpus", "rank", "visible", "expected"),
    [
        (0, 0, None, ""),
        (0, 1, "0,1", ""),
        (1, 0, None, "0"),
        (1, 3, None, "3"),
        (2, 1, "4,5,6,7", "6,7"),
        (0.5, 1, None, "0"),
        (0.4, 2, "GPU-a,GPU-b", "GPU-b"),
        (1, 2, "0,1", ""),
    ],
)
def test_an_export_s_ranks_have_as_many_gpus_as_the_trial_s(
    gpus: float, rank: int, visible: str | None, expected: str
) -> None:
    assert train_template.own_gpus(gpus, rank, visible) == expected


@pytest.mark.slow
def test_what_a_framework_evaluates_by_itself_is_no_training_alone_either() -> None:
    """0.1 s of training to each milestone, and 0.3 s of evaluation on another clock."""
    code = (
        "import sys, time; from toys import METRIC, pausing, returning\n"
        "from autotune import Target\n"
        "from autotune.backends.worker import reporting\n"
        "from autotune.evaluation.export import train_template\n"
        "train_template.join_group(1, 0); target = Target(METRIC, 1, limit=900)\n"
        "begin = time.perf_counter()\n"
        "train_template.race(reporting.steps(pausing, {}), target, {})\n"
        "print(time.perf_counter() - begin, file=sys.stderr)\n"
        "again = reporting.steps(returning, {'steps': [7], 'returns': 0.5})\n"
        "print('ended:', train_template.race(again, target, {}))"
    )
    path = os.pathsep.join(
        (str(Path(__file__).parents[2] / "support"), str(Path(__file__).parents[3]))
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    found = re.findall(r"^step \d+  ([\d.]+) s", done.stdout, re.MULTILINE)
    *seconds, first, last = map(float, found)
    assert len(seconds) == 3, done.stderr
    assert steps_of(done.stdout)[-2:] == [(7, {"val_accuracy": 0.1}), (8, {"val_accuracy": 0.5})]
    assert "ended: finished" in done.stdout
    assert last - first >= 0.099, "0.1 s of training until it returned, and 0.2 s of evaluation"
    printed = 0.001  # a line has thousandths
    assert seconds[1] - seconds[0] >= 0.1 - printed
    assert seconds[2] - seconds[1] >= 0.1 - printed
    assert seconds[2] + 2 * 0.3 < float(done.stderr.splitlines()[-1])
