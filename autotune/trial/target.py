"""Decisions about trials, and the target by which trials are ranked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice

from autotune.errors import shown
from autotune.trial.checks import finite, is_whole, whole
from autotune.trial.hardware import Hardware
from autotune.trial.milestone import Metrics
from autotune.trial.values import INTERRUPTED_REASONS, Params, Report, State, Trial


@dataclass(frozen=True)
class Stop:
    """End the trial on all ranks, with a reason of one word (never empty) and details.

    Raises:
        ValueError: no reason, or one that is no text.
    """

    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a stop needs a non-empty reason")
        for name in ("reason", "detail"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"Stop {name} must be text but got {shown(getattr(self, name))}")


@dataclass(frozen=True)
class Fork:
    """End the trial, and start a new one on its workers from the last checkpoint of `parent`.

    The new trial has the point `params`. If the study has no trial left to start, the old trial
    continues.

    Raises:
        ValueError: the parent is no trial number, or the point no dict.
    """

    parent: int
    params: Params

    def __post_init__(self) -> None:
        object.__setattr__(self, "parent", whole("Fork parent", self.parent, 0))
        if not isinstance(self.params, Mapping):
            raise ValueError(f"Fork params must be a dict but got {shown(self.params)}")


@dataclass(frozen=True)
class Target:
    """What a trial has to reach: a value of a metric, within a limit on a clock.

    Args:
        metric: a key of the metrics that the trainer's `evaluate` returns.
        value: reached when the metric is at least (`mode="max"`) or at most (`"min"`) this.
        mode: "max" or "min".
        clock: "train" pauses for evaluation, "wall" counts it.
        limit: seconds on that clock after which a trial is censored.
        confirm: consecutive evaluations that must meet the value; the time is the last one's.

    Raises:
        ValueError: an argument outside its range, named with its value.
    """

    metric: str
    value: float
    _: KW_ONLY
    limit: float
    mode: str = "max"
    clock: str = "train"
    confirm: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(f"Target metric must be a metric's name but got {self.metric!r}")
        finite("Target value", self.value)
        finite("Target limit", self.limit)
        if self.limit <= 0:
            raise ValueError(f"Target limit must be more than 0 seconds but got {self.limit!r}")
        if self.mode not in ("max", "min"):
            raise ValueError(f"Target mode must be 'max' or 'min' but got {self.mode!r}")
        if self.clock not in ("train", "wall"):
            raise ValueError(f"Target clock must be 'train' or 'wall' but got {self.clock!r}")
        if not is_whole(self.confirm, 1):
            raise ValueError(
                f"Target confirm must be an integer >= 1 but got {shown(self.confirm)}"
            )

    def met(self, reports: Sequence[Report]) -> bool:
        """Whether the last `confirm` evaluations all meet the value."""
        evaluated = (r.metrics[self.metric] for r in reversed(reports) if self.metric in r.metrics)
        last = list(islice(evaluated, self.confirm))
        return len(last) == self.confirm and all(self.shortfall(value) <= 0 for value in last)

    def shortfall(self, value: float) -> float:
        """How far `value` is from the target; 0 or less when it is met, inf when not finite."""
        if not math.isfinite(value):
            return math.inf
        return self.value - value if self.mode == "max" else value - self.value

    def best(self, trial: Trial) -> float | None:
        """The best value that the trial reported, or None."""
        values = [r.metrics[self.metric] for r in trial.reports if self.metric in r.metrics]
        return min(values, key=self.shortfall, default=None)

    def score(self, trial: Trial) -> float | None:
        """The trial's score in seconds, lower is better; no other function makes a score.

        The score of a reached trial is its time to target. The score of a censored trial is between
        one and two limits, ordered by its best metric: after every reached trial, and never the
        time at which it was stopped, which is a bound and not a result. The order by best metric is
        a heuristic (samplers that use ranks see only the order). Running, failed and infeasible
        trials have no score, nor have interrupted ones (`budget`, `interrupted`): None.
        """
        if trial.state is State.REACHED:
            return trial.seconds
        if trial.state is not State.CENSORED or trial.reason in INTERRUPTED_REASONS:
            return None
        best = self.best(trial)
        if best is None or not math.isfinite(best):
            return 2 * self.limit
        gap = max(self.shortfall(best), 0.0) / max(abs(self.value), 1e-12)
        return self.limit * (1 + (gap / (1 + gap) if math.isfinite(gap) else 1.0))


def incumbent(trials: Sequence[Trial], hardware: Hardware | None = None) -> Trial | None:
    """The fastest trial that reached the target, on `hardware` if that is given.

    This is what the search compares other trials with; `algorithms.ranking.best` defines which
    trial of a study is best.

    Trials with an index (`trial_index.Others`) answer from it; any others are scanned.
    """
    indexed: Callable[[Hardware | None], Trial | None] | None = getattr(trials, "fastest", None)
    if indexed is not None:
        return indexed(hardware)
    reached = [t for t in trials if t.state is State.REACHED and hardware in (None, t.hardware)]
    return min(reached, key=lambda t: (t.seconds, t.number), default=None)


def usual_hardware(trials: Sequence[Trial]) -> Hardware | None:
    """The hardware of most trials, with ties the first one's; None if no trial has run."""
    ran = Counter(t.hardware for t in trials if t.attempts)
    return max(ran, key=lambda hardware: ran[hardware], default=None)


def diverged(metrics: Metrics) -> str:
    """The name of the first loss that is NaN or infinite, or an empty string."""
    bad = (k for k, v in metrics.items() if "loss" in k.lower() and not math.isfinite(v))
    return next(bad, "")
