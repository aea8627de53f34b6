"""Figures of a running study for a monitoring system: `ray_autotune_*` in Prometheus.

A pool that can export figures (`observe`, on Ray its metrics endpoint) gets them every few seconds,
and at the end. An event costs an update of one trial; nothing waits for the reader of the figures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.algorithms.ranking.best import best
from autotune.algorithms.ranking.repeats import searched
from autotune.trial import Event, Interrupted, State, Target, Trial
from autotune.trial.wording import plain_result, unit

NAMES: Mapping[str, str] = {
    "autotune_trials": "Trials of the study by state.",
    "autotune_trials_planned": "Trials that the study is to have in all.",
    "autotune_best_seconds": "Seconds to the target of the best trial so far, in its first run.",
    "autotune_best_steps": "Steps to the target, where these are what its clock counts.",
    "autotune_best_metric": "The metric of the best trial so far, where the target has no value.",
    "autotune_spent_seconds": "Worker-group seconds that all trials have cost together.",
    "autotune_workers_busy": "Workers that run a trial.",
    "autotune_gpus_busy": "GPUs of the workers that run a trial.",
    "autotune_samples_per_second": "Training samples a second of all running trials together.",
    "autotune_restarts": "Times that a trial was started again after its workers died or hung.",
}


@dataclass(frozen=True)
class Figure:
    """The present value of a metric: its name in `NAMES`, and its labels."""

    name: str
    value: float
    labels: Mapping[str, str]


Observe = Callable[[Sequence[Figure]], None]


class Meter:
    """Counts a study's events and passes them on as figures, at most every few seconds.

    Args:
        study: the study's name, the label `study` of all figures.
        target: of the study, by which its best trial is known.
        planned: trials in all.
        gpus_per_worker: see `Scaling`.
        observe: takes the figures.
        every: seconds between them.
        now: a clock that never goes backwards.
    """

    def __init__(
        self,
        study: str,
        target: Target,
        planned: int,
        gpus_per_worker: float,
        observe: Observe,
        *,
        every: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study, self._target = study, target
        self._planned, self._gpus = planned, gpus_per_worker
        self._observe, self._every, self._now = observe, every, now
        self._next = -float("inf")
        self._seen: dict[int, Trial] | None = None  # each trial as it was last counted
        self._states: Counter[State] = Counter()
        self._rates: dict[int, float] = {}
        self._workers: dict[int, int] = {}
        self._spent = 0.0
        self._restarts = 0

    def __call__(self, event: Event, trials: Mapping[int, Trial]) -> None:
        if self._seen is None:  # a resumed study begins with what it has
            self._seen = {}
            for trial in trials.values():
                self._count(trial)
        else:
            self._count(trials[event.trial])
        if isinstance(event, Interrupted):
            self._restarts += event.broke
        now = self._now()
        if now >= self._next:
            self._next = now + self._every
            self._observe(list(self.figures()))

    def close(self) -> None:
        """Pass the last figures on: nothing runs any more, whatever was last written down."""
        if self._seen is None:  # nothing has happened
            return
        self._rates.clear()
        self._workers.clear()
        self._observe(list(self.figures()))

    def _count(self, trial: Trial) -> None:
        assert self._seen is not None
        own = bool(searched([trial]))  # repeats and probes are on top of what is planned
        before = self._seen.get(trial.number)
        if before is not None:
            self._states[before.state] -= own
            self._spent -= before.spent_seconds
        self._seen[trial.number] = trial
        self._states[trial.state] += own
        self._spent += trial.spent_seconds
        if not trial.placed:
            self._rates.pop(trial.number, None)
            self._workers.pop(trial.number, None)
        else:
            self._workers[trial.number] = trial.hardware.num_workers
            self._rates[trial.number] = _rate(trial)

    def figures(self) -> Iterator[Figure]:
        """All figures as they are now."""
        for state in State:
            yield self._figure("autotune_trials", self._states[state], state=state.lower())
        leading = best(list((self._seen or {}).values()), self._target)
        if leading is not None:
            result = plain_result(self._target, self._target.result(leading)) or 0.0
            kind = unit(self._target) or "metric"
            yield self._figure(f"autotune_best_{'seconds' if kind == 's' else kind}", result)
        workers = sum(self._workers.values())
        for name, value in (
            ("autotune_trials_planned", self._planned),
            ("autotune_spent_seconds", self._spent),
            ("autotune_workers_busy", workers),
            ("autotune_gpus_busy", workers * self._gpus),
            ("autotune_samples_per_second", sum(self._rates.values())),
            ("autotune_restarts", self._restarts),
        ):
            yield self._figure(name, value)

    def _figure(self, name: str, value: float, **labels: str) -> Figure:
        return Figure(name, float(value), {"study": self._study, **labels})


def _rate(trial: Trial) -> float:
    """Samples a second of training between the last two reports."""
    if len(trial.reports) < 2:
        return 0.0
    before, last = trial.reports[-2:]
    seconds = last.clock.seconds("train") - before.clock.seconds("train")
    return (last.step - before.step) / seconds if seconds > 0 else 0.0
