"""The sampler `convergence` behind Optuna's interface, in studies that Optuna runs itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.testing import pytest_samplers as conformance
from optuna.trial import TrialState, create_trial

from autotune.errors import UserError
from autotune.integrations.optuna import ConvergenceSampler, as_trial
from autotune.trial import State, Target

optuna.logging.set_verbosity(optuna.logging.ERROR)
TARGET = Target("acc", 0.9, limit=10.0)


def objective(trial: optuna.Trial) -> float:
    """Learning curves with a best learning rate and a branch; 1 s for the best, 10 s at most."""
    lr = trial.suggest_float("optimizer.lr", 1e-4, 1.0, log=True)
    width = trial.suggest_int("width", 16, 256, step=16)
    seed = trial.suggest_categorical("seed", ["a", "b"])
    extra = trial.suggest_float("extra", 0.0, 1.0, step=0.25) if seed == "b" else 0.0
    slow = 1 + 4 * (math.log10(lr) + 1.5) ** 2 + abs(width - 64) / 64 + extra
    for tenth in range(1, 101):
        accuracy = 0.9 * min(tenth / 10 / slow, 1.0)
        trial.report(accuracy, step=100 * tenth)
        if accuracy >= TARGET.value - 1e-12:
            return tenth / 10
    raise optuna.TrialPruned


def study(seed: int, count: int, storage: str | None = None) -> optuna.Study:
    made = optuna.create_study(
        sampler=ConvergenceSampler(TARGET, seed=seed),
        storage=storage,
        study_name="plain",
        load_if_exists=True,
    )
    made.optimize(objective, n_trials=count)
    return made


def points(made: optuna.Study) -> list[dict[str, Any]]:
    return [t.params for t in made.trials]


def mean_seconds(made: optuna.Study) -> float:
    """Of the second half of the trials; those that were pruned count as the limit."""
    late = made.trials[30:]
    complete = TrialState.COMPLETE
    return statistics.mean(t.value if t.state is complete else TARGET.limit for t in late)


@pytest.mark.slow
def test_it_proposes_faster_than_chance_in_a_study_of_optunas() -> None:
    ours, chance = [], []
    for seed in range(4):
        ours.append(mean_seconds(study(seed, 60)))
        drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        drawn.optimize(objective, n_trials=60)
        chance.append(mean_seconds(drawn))
    assert max(ours) < 0.7 * min(chance)


@pytest.mark.slow
def test_a_study_that_goes_on_proposes_what_it_would_have(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/plain.db"
    study(3, 20, storage)  # the model is fitted to 16 trials, and again to 24
    assert points(study(3, 6, storage)) == points(study(3, 26))


def test_what_is_asked_for_only_sometimes_is_learned_where_it_was() -> None:
    trials = study(0, 40).trials
    assert {"extra" in t.params for t in trials} == {True, False}
    assert {t.params["extra"] % 0.25 for t in trials if "extra" in t.params} == {0.0}


def test_states_and_seconds_of_optunas_trials() -> None:
    space = {"lr": FloatDistribution(0.0, 1.0), "n": IntDistribution(1, 4)}

    def made(state: TrialState, value: float | None = None) -> Any:
        frozen = create_trial(
            state=state,
            value=value,
            params={"lr": 0.5},
            distributions={"lr": space["lr"]},
            intermediate_values={3000: 0.7, 1500: 0.5},
        )
        return as_trial(frozen, TARGET, space)

    pruned = made(TrialState.PRUNED)
    assert (pruned.state, pruned.seconds) == (State.CENSORED, 3.0)
    assert [r.seconds for r in pruned.reports] == [1.5, 3.0]
    reached = made(TrialState.COMPLETE, 4.0)
    assert (reached.state, reached.seconds, reached.params) == (State.REACHED, 4.0, {"lr": 0.5})
    late = made(TrialState.COMPLETE, 12.0)
    assert (late.state, late.seconds) == (State.CENSORED, 10.0)
    assert made(TrialState.FAIL).state is State.FAILED


def test_a_value_outside_the_present_range_is_not_learned_from() -> None:
    frozen = create_trial(
        value=2.0, params={"lr": 5.0}, distributions={"lr": FloatDistribution(0.0, 9.0)}
    )
    assert as_trial(frozen, TARGET, {"lr": FloatDistribution(0.0, 1.0)}).params == {}


def test_a_study_that_maximises_is_refused() -> None:
    made = optuna.create_study(direction="maximize", sampler=ConvergenceSampler(TARGET))
    with pytest.raises(UserError, match="must minimise one value"):
        made.optimize(objective, n_trials=1)


class TestConformance(
    conformance.BasicSamplerTestCase,
    conformance.RelativeSamplerTestCase,
    conformance.SingleOnlySamplerTestCase,
):
    """Optuna's own tests of samplers; the last refuses a study of several objectives."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: ConvergenceSampler(TARGET, seed=0)
