"""`--register NAME`: the best trial's model in MLflow's registry, loaded back and used."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_only
from sims import racing, simulate

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.cli import main
from autotune.cli.console import UNREACHED, Output, finish
from autotune.evaluation import register
from autotune.schedules import from_json
from autotune.study import recipes
from autotune.study.manifest import Manifest
from autotune.tracking.mirror import environment

RECIPES = str(Path(__file__).parents[1] / "support" / "registered.py")
TOYS = str(Path(__file__).parents[1] / "support" / "toy_recipes.py")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow in this process: as in ours, and without pickled code."""
    for name, value in environment().items():
        if name.startswith(("MLFLOW_", "DO_NOT")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")


def store(folder: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def at_store(folder: Path) -> Iterator[None]:
    """MLflow's own functions look there."""
    import mlflow

    mlflow.set_tracking_uri(store(folder).tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)


def loaded(folder: Path, name: str, version: int) -> Any:
    """The registered model, from where its version says that it is."""
    import mlflow

    with at_store(folder):
        return mlflow.pyfunc.load_model(f"models:/{name}/{version}")


@pytest.mark.slow
def test_the_registered_model_is_as_accurate_as_the_trial(
    tmp_path: Path,
    ray_address: str,
    quiet: None,
    with_store: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow

    from trainers.data.images import read_images

    folder = with_store(tmp_path / "study")
    where = ["--out", str(folder), "--ray-address", ray_address]
    asked = ["--trials", "2", "--sampler", "random", "--register", "digits model", "--json"]
    assert main.main(["run", f"{RECIPES}:digits", *asked, *where]) == main.DONE
    out, err = capsys.readouterr()
    best = json.loads(out)["best"]
    assert f"registered trial {best['trial']} as models:/digits model/1" in err

    model = loaded(folder, "digits model", 1)
    schema = model.metadata.signature.inputs.inputs[0]
    assert (schema.type, schema.shape) == (np.dtype("float32"), (-1, 1, 8, 8))
    assert model.metadata.signature.outputs.inputs[0].shape == (-1, 10)
    images = read_images("digits", None, torch.device("cpu"))
    scores = model.predict(images.val_x.numpy())
    found = float((scores.argmax(1) == images.val_y.numpy()).mean())
    assert found == pytest.approx(best["best_val_accuracy"], abs=1.5 / len(images.val_y))
    assert found >= 0.6
    with at_store(folder):
        graph = mlflow.artifacts.download_artifacts("models:/digits model/1/data/model.pt2")
    alone = torch_only.accuracy(Path(graph), images.val_x, images.val_y, tmp_path)
    assert alone == pytest.approx(found, abs=1e-9)
    check_in_mlflow(folder, best)
    check_teacher(folder, monkeypatch)


def check_teacher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training learns from the registered model, and one line says if there is none."""
    from trainers import image

    config = {"data": "digits", "model": "mlp", "width": 8, "lr": 0.1, "train_size": 64}
    taught = {**config, "teacher": "models:/digits model/1", "distill_weight": 1.0}
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=r"^teacher models:/digits model/1 needs the address of"):
        image.check(taught)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store(folder).tracking_uri)
    image.check(taught)
    trainer = image.train(taught)
    next(trainer), next(trainer)
    trainer.close()
    says = r"^teacher models:/digits model/7: MLflow does not find its .*version=7.* not found$"
    with pytest.raises(ValueError, match=says):
        image.check({**taught, "teacher": "models:/digits model/7"})


def check_in_mlflow(folder: Path, best: dict[str, Any]) -> None:
    """The version's tags, its run and the exported schedules."""
    import mlflow

    client = store(folder)
    version = client.get_model_version("digits model", "1")
    assert version.tags["autotune.trial"] == str(best["trial"])
    assert version.tags["autotune.target"] == "val_accuracy 0.6"
    seconds = float(version.tags["autotune.time_to_target_seconds"])
    assert seconds == best["time_to_target_seconds"]
    run = client.get_run(version.run_id)
    assert run.data.tags["autotune.trial"] == str(best["trial"])
    assert run.info.status == "FINISHED"
    with at_store(folder):
        place = mlflow.artifacts.download_artifacts("models:/digits model/1/extra_files")
    names = sorted(p.name for p in Path(place).iterdir())
    assert names == [
        "best_model.pt",
        "config.json",
        "schedules.json",
        "schedules.png",
        "trial.json",
    ]
    schedule = from_json(json.loads((Path(place) / "schedules.json").read_text())["lr"])
    assert schedule(0.0) == pytest.approx(best["params"]["lr.peak"])


@pytest.mark.soak
def test_registered_afterwards_once_and_with_what_was_confirmed_since(
    tmp_path: Path, ray_address: str, quiet: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = tmp_path / "study", "a line 0.1"
    where = ["--ray-address", ray_address]
    run = ["run", f"{RECIPES}:lines", "--trials", "2", "--out", str(folder), "--repeats", "0"]
    assert main.main([*run, *where]) == main.DONE
    again = ["resume", str(folder), "--register", name, *where]
    assert main.main(again) == main.DONE
    assert f"as models:/{name}/1" in capsys.readouterr().err
    client = store(folder)
    best = at.load_study(folder).best
    before = client.get_model_version(name, "1").tags
    assert "autotune.confirmed_mean_seconds" not in before
    slope = loaded(folder, name, 1).predict(np.ones((5, 1), dtype=np.float32))
    assert slope.shape == (5, 1)
    assert slope[0, 0] == pytest.approx(best.reports[-1].metrics["slope"])
    assert slope[0, 0] >= 1.0

    confirm = ["confirm", str(folder), "--repeats", "2", "--top", "1", *where]
    assert main.main(confirm) == main.DONE
    best = at.load_study(folder).best
    code = main.main(again)
    if best.number == int(before["autotune.trial"]):
        assert code == main.DONE
        after = client.get_model_version(name, "1").tags
        assert after["autotune.confirmed_runs"] == "2"
        assert float(after["autotune.confirmed_speedup_vs_baseline"]) > 0
        assert [int(v.version) for v in client.search_model_versions(f'name = "{name}"')] == [1]

    shutil.rmtree(folder / "checkpoints")
    client.delete_registered_model(name)
    assert main.main(again) == main.BROKEN
    shown = capsys.readouterr().err
    assert f"the checkpoint of the best trial, {best.number}, was not kept" in shown
    assert f"try again with: autotune resume {folder} --register {shlex.quote(name)}" in shown
    assert [m.name for m in client.search_registered_models()] == []


class Odd(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("an odd model")


@pytest.mark.slow
def test_what_fails_leaves_no_registered_model_and_a_name_may_have_dots(
    tmp_path: Path, quiet: None
) -> None:
    from autotune.tracking import model_registry  # it imports MLflow's models, which take seconds

    client = store(tmp_path)
    uri, place = client.tracking_uri, (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment("lines", artifact_location=place)
    client.create_run(experiment, tags={"autotune.study_id": "s", "autotune.trial": "7"})

    def entry(model: torch.nn.Module, **tags: str) -> Any:
        return model_registry.ModelToRegister("s", 7, model, torch.zeros(2, 1), [], tags, "a line")

    with at_store(tmp_path):
        with pytest.raises(ValueError, match="an odd model"):
            model_registry.register(uri, "a line 0.1", entry(Odd()))
        assert [m.name for m in client.search_registered_models()] == []
        line = torch.nn.Linear(1, 1)
        assert model_registry.register(uri, "a line 0.1", entry(line, seen="once")) == (1, True)
        assert model_registry.register(uri, "a line 0.1", entry(line, seen="twice")) == (1, False)
        assert client.get_model_version("a line 0.1", "1").tags["seen"] == "twice"
        assert model_registry.register(uri, "another", entry(line)) == (1, True)
    assert loaded(tmp_path, "a line 0.1", 1).predict(np.ones((3, 1), np.float32)).shape == (3, 1)


MISTAKES = [
    (
        [f"{TOYS}:good", "--register", "x"],
        "but train has no train.model = function(config, states)",
    ),
    ([f"{RECIPES}:lines", "--register", "a/b"], "--register must be a model's name"),
    ([f"{RECIPES}:lines", "--register", "a user's"], "characters without / : % \" ' but got"),
    ([f"{RECIPES}:lines", "--register", ""], "argument --register: must not be empty"),
    ([f"{RECIPES}:lines", "--register", "x", "--tracking-uri", "off"], "--tracking-uri is off"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=["hook", "name", "quote", "empty", "off"]
)
def test_what_cannot_be_registered_is_refused_before_the_study(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", *arguments]) == main.USER
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_where_nothing_is_reached_nothing_is_registered(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = f"{RECIPES}:never"
    curve = SimCurve([SimPoint(i, 0.1 * i, {"slope": float(i)}) for i in range(3)])
    result = simulate(recipes.load(recipe), fast_path, 1, lambda *_: curve, recipe=recipe)
    assert finish(result, Manifest.read(fast_path), Output(register="x")) == UNREACHED
    assert "registered" not in capsys.readouterr().err
    none = r"no trial has reached slope 1e\+06, so there is no model"
    with pytest.raises(register.UserError, match=none):
        register.register(fast_path, "x", None)


def test_an_interrupted_study_is_gone_on_with_to_the_same_end(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--register` nothing would be registered, and fewer checkpoints kept."""
    result = replace(simulate(racing([1.0]), fast_path, 1), ended="interrupted")
    output = Output(register="a line")
    assert finish(result, Manifest.read(fast_path), output) == main.INTERRUPTED
    said = f"interrupted; go on with: autotune resume {result.folder} --register 'a line'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("rates", "left"), [([2.0, 1.0, 0.5], True), ([2.0, 0.1], False)])
def test_after_a_time_limit_the_message_says_how_to_go_on(
    rates: list[float], left: bool, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said where all trials have begun: what the limit cut off stays so."""
    cut = simulate(racing(rates), fast_path, len(rates), time_limit=6.5)
    assert cut.ended == "budget"
    assert finish(cut, Manifest.read(fast_path), Output(json=True)) == main.DONE
    said = f"the time limit has passed; go on with: autotune resume {cut.folder}\n"
    assert capsys.readouterr().err == (said if left else "")


def test_of_the_finalists_the_checkpoints_are_kept() -> None:
    made = recipes.load(f"{RECIPES}:lines")
    assert register.prepared(made, None, None) is made
    assert register.prepared(made, "x", None).failure.keep_checkpoints == 3
