"""With one seed, every sampler, pruner and controller writes the same journal in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seeded_studies

from autotune.algorithms.controllers import CONTROLLERS, FORKING
from autotune.algorithms.pruners.rules import PRUNERS
from autotune.algorithms.samplers.optuna_names import NAMES

SCRIPT = Path(seeded_studies.__file__)
CASES = tuple(seeded_studies.studies())
MODELLED = ("convergence, slower_than_best", "convergence, convergence, racing")
MODELLED += (next(case for case in CASES if case.startswith("policy:elite, ")),)
MODELLED += ("policy from another",)
Digests = dict[str, tuple[str, int]]  # digest, and how often a model was asked, by study


def digests(seed: int, order_of_sets: int) -> Digests:
    paths = [str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")]
    given = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": str(order_of_sets)}
    if order_of_sets == 1:  # the models are small: more threads only wait
        given["OPENBLAS_NUM_THREADS"] = "1"
    command = [sys.executable, str(SCRIPT), str(seed)]
    environment = {**os.environ, **given}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Digests = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def twice() -> tuple[Digests, Digests]:
    """Of all studies with one seed, in two processes with other orders and numbers of threads."""
    return digests(3, 1), digests(3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_one_seed_is_one_journal(case: str, twice: tuple[Digests, Digests]) -> None:
    first, second = twice
    assert first[case] == second[case]


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELLED)
def test_models_were_asked_where_they_judge(case: str, twice: tuple[Digests, Digests]) -> None:
    for result in twice:
        assert result[case][1] >= 20, "they begin once 16 trials have ended"


def test_nothing_that_can_be_named_is_left_out() -> None:
    for sampler in NAMES:
        assert any(case.startswith(f"{sampler}, ") for case in CASES), sampler
    for pruner in PRUNERS:
        assert any(case.endswith(f", {pruner}") for case in CASES), pruner
    for controller in (*CONTROLLERS, *FORKING):
        assert any(case.startswith(controller) for case in CASES), controller


@pytest.mark.parametrize("case", ["tpe", "convergence", "policy:elite"])
def test_another_seed_is_another_journal(case: str) -> None:
    study = next(s for name, s in seeded_studies.studies().items() if name.startswith(f"{case}, "))
    assert seeded_studies.digest(study, 3) != seeded_studies.digest(study, 4)
