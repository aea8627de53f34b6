"""Launch of a trial: a worker group takes it, at its checkpoint if it has one."""

from __future__ import annotations

from autotune.algorithms.plans.measured import PROBE_EVALUATIONS
from autotune.algorithms.ranking.hardware import began_on, comparable_hardware, trial_fingerprint
from autotune.algorithms.ranking.repeats import PROBE
from autotune.backends.protocol import Launch
from autotune.study.driver.decisions import end
from autotune.study.driver.memory import too_large
from autotune.study.driver.microbatch import fitting
from autotune.study.driver.state import StudyState
from autotune.trial import STEPS, Hardware, Started, State, Stop, Trial


def start(state: StudyState, trial: Trial) -> None:
    """Give the trial to a worker group, unless it breaks a constraint or cannot fit there."""
    broken = state.settings.experiment.space.broken(trial.config)
    if broken:
        end(state, trial.number, State.INFEASIBLE, Stop("constraint", broken))
        return
    comparable = comparable_hardware(trial, state.trials)
    too_much = too_large(state, trial, comparable)
    if too_much:
        end(state, trial.number, State.INFEASIBLE, Stop("out of memory", too_much))
        return
    launch = Launch(
        trial.number,
        trial.config,
        trial.seed,
        str(state.target.clock),
        trial.checkpoint,
        trial.saved_clock,
        _microbatch(state, trial, comparable),
        comparable,
        state.target.metric,
        (trial.reports[-1].waited or 0.0) if trial.reports else 0.0,
        PROBE_EVALUATIONS if trial.kind == PROBE else None,
    )
    ran, began = state.pool.start(launch), began_on(trial, state.trials)
    # steps are the same anywhere
    mixed = state.settings.mix_hardware or state.target.clock == STEPS
    hardware = trial_fingerprint(ran, began, mixed)
    at = state.elapsed()
    waited = at - trial.waiting_since
    state.append(Started(trial.number, waited, hardware, at, launch.microbatch))


def _microbatch(state: StudyState, trial: Trial, comparable: Hardware | None) -> int | None:
    """The microbatch to start with, from earlier trials that ran out of memory."""
    keys = state.memory_keys
    if not keys:
        return None
    hardware = state.pool.next_hardware(comparable)
    return fitting(trial, state.trials.values(), keys, hardware)
