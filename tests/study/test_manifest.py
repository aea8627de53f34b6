"""What a run resolved, as JSON beside the journal."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sims import RATES, WIDE, learning, racing, simulate, toy_train, wide

import autotune as at
from autotune.backends.recipe_modules import FILE_PREFIX
from autotune.schedules import Cosine
from autotune.study import manifest


def facts(experiment: at.Experiment, **more: Any) -> dict[str, Any]:
    return manifest.facts(experiment, seed=3, tracking_uri=None, **more)


def test_the_record_says_everything_that_was_resolved(fast_path: Path) -> None:
    simulate(wide(), fast_path, 1, learning, seed=3)
    held = manifest.load(fast_path)
    assert held == json.loads((fast_path / manifest.RECORD).read_text())
    assert held["name"] == "wide"
    assert held["train"] == "sims.toy_train"
    assert held["seed"] == 3
    assert held["target"]["value"] == 0.9
    assert held["space"]["entries"]["lr"]["peak"] == {
        "kind": "Float",
        "low": 1e-4,
        "high": 10,
        "log": True,
        "when": None,
    }
    assert held["scaling"]["num_workers"] == 1
    assert held["failure"]["max_retries"] == 2
    assert held["baseline"]["lr.peak"] == 0.01
    assert held["versions"].keys() >= {"autotune", "torch", "ray", "optuna", "mlflow", "python"}
    assert held["machine"]["cpus"] >= 1
    assert len(held["study_id"]) == 32
    assert manifest.target(fast_path) == wide().target
    assert [p.name for p in fast_path.glob("*.part")] == []


def test_two_studies_have_two_ids_and_a_resumed_one_keeps_its_own(fast_path: Path) -> None:
    assert facts(racing([1.0]))["study_id"] != facts(racing([1.0]))["study_id"]
    simulate(racing([1.0]), fast_path, 1, recipe="mine:study")
    first = manifest.load(fast_path)
    simulate(racing([1.0]), fast_path, 2)
    again = manifest.load(fast_path)
    assert again["study_id"] == first["study_id"]
    assert (again["recipe"], again["trials"]) == ("mine:study", 2)


def test_every_kind_of_entry_is_described_as_json() -> None:
    rule = at.Constraint("small", lambda c: True)
    space = at.SearchSpace(
        {**WIDE.entries, "plan": at.Fixed(Cosine(1, 0)), "deep": at.Fixed({"a": [1, (2, None)]})},
        constraints=(rule,),
    )
    described = manifest.describe(space)
    assert json.loads(json.dumps(described)) == described
    assert described["constraints"] == ["small"]
    assert described["entries"]["trust"]["when"] == {"optimizer": "lars"}
    assert described["entries"]["plan"]["value"]["schedule"] == "Cosine"


def test_trainers_of_every_kind_have_a_name() -> None:
    class Trainer:
        def __call__(self, config: dict[str, Any]) -> Any: ...

    experiment = racing([1.0])
    for train in (toy_train, partial(toy_train), Trainer(), lambda config: None):
        assert isinstance(facts(replace(experiment, train=train))["train"], str)


def test_a_fixed_value_without_a_json_form_is_the_users_mistake(fast_path: Path) -> None:
    space = at.SearchSpace({**RATES.entries, "dtype": at.Fixed(object())})
    with pytest.raises(at.UserError, match=r"dtype.*cannot be written as JSON"):
        simulate(racing([1.0], space=space), fast_path, 1)


def test_a_fixed_value_that_is_no_number_is_the_users_mistake(fast_path: Path) -> None:
    space = at.SearchSpace({**RATES.entries, "clip": at.Fixed(float("inf"))})
    with pytest.raises(at.UserError, match="clip must be finite but got inf"):
        simulate(racing([1.0], space=space), fast_path, 1)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (None, None),
        ("off", "off"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("http://me:secret@host:5000/path?x=1", "http://host:5000/path"),
        ("postgresql://me:p@ss@db/name", "postgresql://db/name"),
        ("http://host/a@b", "http://host/a@b"),
    ],
)
def test_credentials_are_left_out(uri: str | None, shown: str | None) -> None:
    assert manifest.without_credentials(uri) == shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is not a study folder: it has no experiment.json"),
        ("{", "experiment.json cannot be read"),
        ("[]", "experiment.json is not a study's record"),
        ("{}", "experiment.json is not a study's record"),
    ],
)
def test_a_damaged_record_is_one_clear_error(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / manifest.RECORD).write_text(text)
    with pytest.raises(at.UserError, match=says):
        manifest.load(tmp_path)


def test_a_journal_without_its_record_is_refused(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path, 1)
    (fast_path / manifest.RECORD).unlink()
    with pytest.raises(at.UserError, match=r"has a journal.jsonl but no experiment.json"):
        simulate(racing([1.0]), fast_path, 1)


def test_a_study_goes_on_where_its_recipe_s_file_has_moved() -> None:
    """The trainer's module is named after the file's place; the trainer is the same."""
    one = f"{FILE_PREFIX}own_0123456789ab.train"
    assert manifest._anywhere(one) == manifest._anywhere(f"{FILE_PREFIX}own_ba9876543210.train")
    assert manifest._anywhere(one) != manifest._anywhere(f"{FILE_PREFIX}own_0123456789ab.other")
    assert manifest._anywhere(one) != manifest._anywhere(f"{FILE_PREFIX}his_0123456789ab.train")
    assert manifest._anywhere({"a": one}) == {"a": one}


def test_a_total_that_is_less_than_there_is(fast_path: Path) -> None:
    simulate(racing([1.0, 2.0]), fast_path, 2)
    before = {file.name: file.read_bytes() for file in fast_path.iterdir() if file.is_file()}
    with pytest.raises(at.UserError, match="must be at least 2 but got 1") as caught:
        simulate(racing([1.0, 2.0]), fast_path, 1)
    assert f"{fast_path} has 2 trials already: their number (--trials)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == {f.name: f.read_bytes() for f in fast_path.iterdir() if f.is_file()}
    manifest.write(fast_path, {**manifest.load(fast_path), "trials": 9})
    assert len(simulate(racing([1.0, 2.0]), fast_path, 2).trials) == 2, "9 were asked for"
    assert manifest.load(fast_path)["trials"] == 2
