"""What a run resolved, as `experiment.json` beside the journal."""

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
from autotune.storage import manifest as file
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import continuing, manifest
from autotune.study.continuing import in_its_space
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.space_json import describe
from autotune.tracking.uris import without_credentials
from search_spaces import digits


def resolved(experiment: at.Experiment) -> Manifest:
    return manifest.resolved(experiment, StudyOptions(seed=3))


def test_a_study_from_before_a_coupling_goes_on_in_its_own_space(tmp_path: Path) -> None:
    """Its recipe's learning rate follows the batch size now; its points mean other rates."""
    now = digits.adamw()
    lr = replace(now.space.entries["lr"], follows=None, rule="linear", reference=None)
    older = replace(now, space=at.SearchSpace({**now.space.entries, "lr": lr}))
    resolved(older).write(tmp_path)
    written = Manifest.existing(tmp_path)
    assert "reference" not in written.to_json()["space"]["entries"]["lr"]
    again = in_its_space(now, written)
    assert again.space == older.space
    assert resolved(again).space == written.space
    assert in_its_space(now, None) is now
    assert in_its_space(older, written) is older
    wider = at.SearchSpace({**now.space.entries, "momentum": at.Float(0.5, 0.9)})
    other = replace(now, space=wider, baseline={**now.baseline, "momentum": 0.9})
    assert in_its_space(other, written).space == wider


def test_the_manifest_says_everything_that_was_resolved(fast_path: Path) -> None:
    simulate(wide(), fast_path, 1, learning, seed=3)
    content = file.read(fast_path)
    assert content == json.loads((fast_path / EXPERIMENT_JSON).read_text())
    assert content["name"] == "wide"
    assert content["train"] == "sims.toy_train"
    assert content["seed"] == 3
    assert content["target"]["value"] == 0.9
    assert content["space"]["entries"]["lr"]["peak"] == {
        "kind": "Float",
        "low": 1e-4,
        "high": 10,
        "log": True,
        "when": None,
    }
    assert content["scaling"]["num_workers"] == 1
    assert content["failure"]["max_retries"] == 2
    assert content["baseline"]["lr.peak"] == 0.01
    assert content["versions"].keys() >= {"autotune", "torch", "ray", "optuna", "mlflow", "python"}
    assert content["machine"]["cpus"] >= 1
    assert len(content["study_id"]) == 32
    assert Manifest.read(fast_path).target == wide().target
    assert [p.name for p in fast_path.glob("*.part")] == []


def test_two_studies_have_two_ids_and_a_resumed_one_keeps_its_own(fast_path: Path) -> None:
    assert resolved(racing([1.0])).study_id != resolved(racing([1.0])).study_id
    simulate(racing([1.0]), fast_path, 1, recipe="mine:study")
    first = Manifest.read(fast_path)
    simulate(racing([1.0]), fast_path, 2)
    again = Manifest.read(fast_path)
    assert again.study_id == first.study_id
    assert (again.options.recipe, again.options.trials) == ("mine:study", 2)


def test_every_kind_of_entry_is_described_as_json() -> None:
    rule = at.Constraint("small", lambda c: True)
    space = at.SearchSpace(
        {**WIDE.entries, "plan": at.Fixed(Cosine(1, 0)), "deep": at.Fixed({"a": [1, (2, None)]})},
        constraints=(rule,),
    )
    described = describe(space)
    assert json.loads(json.dumps(described)) == described
    assert described["constraints"] == ["small"]
    assert described["entries"]["trust"]["when"] == {"optimizer": "lars"}
    assert described["entries"]["plan"]["value"]["schedule"] == "Cosine"


def test_trainers_of_every_kind_have_a_name() -> None:
    class Trainer:
        def __call__(self, config: dict[str, Any]) -> Any: ...

    experiment = racing([1.0])
    for train in (toy_train, partial(toy_train), Trainer(), lambda config: None):
        assert isinstance(resolved(replace(experiment, train=train)).train, str)
    # An export must not take it for the function that it wraps, which lacks its arguments.
    assert resolved(replace(experiment, train=partial(toy_train, scale=2))).train == "functools.?"


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
    assert without_credentials(uri) == shown
    assert StudyOptions(tracking_uri=uri).to_json()["tracking_uri"] == shown


FINE = {"metric": "m", "value": 1, "limit": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is not a study folder: it has no experiment.json"),
        ("{", "experiment.json cannot be read"),
        ("[]", "experiment.json is not a study's manifest"),
        ("{}", "experiment.json is not a study's manifest"),
        ('{"study_id": "5eed", "target": []}', "experiment.json is damaged"),
        ('{"study_id": "5eed", "target": {"metric": "m", "value": 1, "limit": -1}}', "limit must"),
        (
            '{"study_id": "5eed", "target": {"metric": "m", "value": 1, "limit": 1}, "trials": 0}',
            "experiment.json is damaged: trials must be a whole number >= 1 but got 0",
        ),
        *(
            (json.dumps({"study_id": "5eed", "target": FINE, **wrong}), f"is damaged: {says}")
            for wrong, says in (
                ({"name": 3}, "name must be text but got 3"),
                ({"study_id": None}, "study_id must be text but got None"),
                (
                    {"target": {**FINE, "limit": "1"}},
                    "target limit must be a finite number but got '1",
                ),
                ({"target": {**FINE, "mode": []}}, r"target mode must be text but got \[\]"),
                ({"target": {"value": 1.0}}, "target metric is missing"),
                ({"space": 3}, "space must be an object but got 3"),
                ({"knobs": "lr"}, "knobs must be a list but got 'lr'"),
                ({"configs": {}}, "configs must be a list but got {}"),
                ({"versions": {"torch": 2}}, "versions must be text but got 2"),
                ({"sampler": 3}, "sampler must be a name or a sampler but got 3"),
                ({"tracking_uri": []}, r"tracking_uri must be text but got \[\]"),
                ({"mirrored": "yes"}, "mirror must be True or False but got 'yes'"),
                ({"start_from": 3}, "start_from must be a path or a list of paths but got 3"),
            )
        ),
        ("[" * 100_000, "experiment.json cannot be read"),
    ],
)
def test_a_damaged_manifest_is_one_clear_error(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / EXPERIMENT_JSON).write_text(text)
    with pytest.raises(at.UserError, match=says):
        Manifest.read(tmp_path)


def test_a_journal_without_its_manifest_is_refused(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path, 1)
    (fast_path / EXPERIMENT_JSON).unlink()
    with pytest.raises(at.UserError, match=r"has a journal.jsonl but no experiment.json"):
        simulate(racing([1.0]), fast_path, 1)


def test_a_study_goes_on_where_its_recipe_s_file_has_moved() -> None:
    """The trainer's module is named after the file's place; the trainer is the same."""
    one, without_place = f"{FILE_PREFIX}own_0123456789ab.train", continuing._without_place
    assert without_place(one) == without_place(f"{FILE_PREFIX}own_ba9876543210.train")
    assert without_place(one) != without_place(f"{FILE_PREFIX}own_0123456789ab.other")
    assert without_place(one) != without_place(f"{FILE_PREFIX}his_0123456789ab.train")
    assert without_place({"a": one}) == {"a": one}


def test_a_total_that_is_less_than_there_is(fast_path: Path) -> None:
    simulate(racing([1.0, 2.0]), fast_path, 2)
    before = {file.name: file.read_bytes() for file in fast_path.iterdir() if file.is_file()}
    with pytest.raises(at.UserError, match="must be at least 2 but got 1") as caught:
        simulate(racing([1.0, 2.0]), fast_path, 1)
    assert f"{fast_path} has 2 trials already: their number (--trials)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == {f.name: f.read_bytes() for f in fast_path.iterdir() if f.is_file()}
    file.write(fast_path, {**file.read(fast_path), "trials": 9})
    assert len(simulate(racing([1.0, 2.0]), fast_path, 2).trials) == 2, "9 were asked for"
    assert Manifest.read(fast_path).options.trials == 2


def test_a_manifest_of_a_longer_hang_timeout_is_still_read(tmp_path: Path) -> None:
    """Earlier versions took any number of seconds."""
    for given, read in ((2e9, 1e9), (10**12, 1e9), (60.0, 60.0)):
        failure = {"hang_timeout": given}
        (tmp_path / EXPERIMENT_JSON).write_text(json.dumps({**OLD, "failure": failure}))
        assert Manifest.read(tmp_path).failure["hang_timeout"] == read


class Own:
    """A sampler without a name."""

    def ask(self, number: int, trials: Any) -> None: ...


def test_a_manifest_is_read_as_it_was_written(fast_path: Path) -> None:
    """A sampler that is an object is a name; what no resumed study needs is left out."""
    given = StudyOptions(
        trials=7,
        sampler=Own,
        start_from="earlier",
        racing=0.2,
        repeats=2,
        mirror=True,
        tracking_uri="http://me:secret@host",
        time_limit=5.0,
        out=fast_path,
    )
    written = manifest.resolved(wide(), given, start={"start": None}, sampler_chosen_because="so")
    written.write(fast_path)
    assert Manifest.read(fast_path) == written
    kept = {"sampler": "<Own>", "start_from": str(Path("earlier").absolute())}
    kept |= {"tracking_uri": "http://host", "time_limit": None, "out": None}
    assert written.options == replace(given, **kept)
    assert "secret" not in (fast_path / EXPERIMENT_JSON).read_text()


OLD = {  # what the first version that confirmed trials wrote, without what came later
    "name": "racing",
    "study_id": "5eed" * 8,
    "target": {"metric": "val_accuracy", "value": 0.9, "limit": 60.0},
    "trials": 5,
    "sampler": "tpe",
    "pruner": "convergence",
    "seed": 3,
    "mirrored": True,
    "something_new": {"a": 1},
}


def test_an_older_manifest_is_read_with_what_was_usual_then(tmp_path: Path) -> None:
    (tmp_path / EXPERIMENT_JSON).write_text(json.dumps(OLD))
    options = Manifest.read(tmp_path).options
    known = {"trials": 5, "sampler": "tpe", "seed": 3, "mirror": True, "racing": 0.0}
    usual = {"pruner": "convergence", "backend": "ray", "stages": "off"}
    assert options == StudyOptions(**known, **usual, shared_beginnings="off")
    assert (options.repeats, options.top, options.controller) == (0, 3, None)
