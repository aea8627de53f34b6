"""The target by which trials are ranked, and the one place where a trial becomes a number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any

from autotune.errors import checked, shown, unknown
from autotune.trial.checks import finite, whole
from autotune.trial.clock import CLOCKS, STEPS
from autotune.trial.milestone import Metrics
from autotune.trial.values import INTERRUPTED_REASONS, Checkpoint, Report, State, Trial

SCOPES = ("best", "last")
_ERROR = re.compile(
    "loss|errors?|err|perplexity|ppl|rmse|mse|mae|mape|nll|nlpd|crossentropy|entropy|logloss|bce|"
    "wer|cer|fid|bpc|bpb|bpd|regret|deviance|distance|divergence|kl|cost|latency"
)
"""Words in the names of metrics that are better when they are lower."""


@dataclass(frozen=True)
class Target:
    """What trials are ranked by: the time to a value of a metric or, without one, the best metric.

    With a value a trial ends when it is reached; the sooner, the better. Without a value a trial
    trains to its limit or its own end, and the best metric that it reported within the limit
    counts.

    Args:
        metric: a key of the metrics that the trainer reports.
        value: reached when the metric is at least (`mode="max"`) or at most (`"min"`) this.
        limit: seconds on the clock after which a trial is ended, more than 0. With a value it is
            needed, and trials that did not reach the value are censored then. Without one, it or
            `limit_steps` is needed where the trainer is a generator.
        limit_steps: steps of the trainer after which a trial is ended, at least 1.
        mode: "max" or "min"; by default "max". It must be given for a metric whose name says loss,
            error, perplexity or the like.
        clock: "train" pauses for evaluation, "wall" counts it, "steps" counts the trainer's steps
            and needs `limit_steps` in place of `limit`. By default "train", or "steps" where there
            is no value and only `limit_steps` limits.
        confirm: consecutive evaluations that must meet the value; the time is the last one's.
        scope: without a value, which report counts: the "best" or the "last".

    Raises:
        UserError: an argument outside its range, named with its value.
    """

    metric: str
    value: float | None = None
    _: KW_ONLY
    limit: float | None = None
    mode: str | None = None
    clock: str | None = None
    confirm: int = 1
    limit_steps: int | None = None
    scope: str = SCOPES[0]

    @checked
    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(f"Target metric must be a metric's name but got {self.metric!r}")
        if self.value is not None:
            finite("Target value", self.value)
        if self.limit is not None:
            finite("Target limit", self.limit)
            if self.limit <= 0:
                raise ValueError(f"Target limit must be more than 0 seconds but got {self.limit!r}")
        if self.limit_steps is not None:
            steps = whole("Target limit_steps", self.limit_steps, 1)
            object.__setattr__(self, "limit_steps", steps)
        object.__setattr__(self, "confirm", whole("Target confirm", self.confirm, 1))
        if self.scope not in SCOPES:
            raise ValueError(unknown("Target scope", self.scope, SCOPES))
        self._resolve_mode()
        self._resolve_clock()
        if self.timed and self.scope != SCOPES[0]:
            raise ValueError(f"Target scope={self.scope!r} is for a target without a value")
        if not self.timed and self.confirm > 1:
            raise ValueError("Target confirm is for a target with a value, which must be met twice")

    def _resolve_mode(self) -> None:
        if self.mode is None:
            if _is_error(self.metric):
                raise ValueError(
                    f"Target mode must be given for {self.metric!r}: 'min' if lower is better, "
                    "or 'max'"
                )
            object.__setattr__(self, "mode", "max")
        if self.mode not in ("max", "min"):
            raise ValueError(f"Target mode must be 'max' or 'min' but got {shown(self.mode)}")

    def _resolve_clock(self) -> None:
        if self.clock is None:
            only_steps = self.limit is None and self.limit_steps is not None
            clock = STEPS if only_steps and not self.timed else CLOCKS[0]
            object.__setattr__(self, "clock", clock)
        if self.clock not in CLOCKS:
            allowed = "'train', 'wall' or 'steps'"
            raise ValueError(f"Target clock must be {allowed} but got {shown(self.clock)}")
        if self.clock == STEPS and self.limit is not None:
            raise ValueError(
                f"Target limit is in seconds, but clock='steps' counts steps: give limit_steps "
                f"in place of limit={self.limit!r}"
            )
        if self.timed and self.horizon == math.inf:
            name, unit = ("limit_steps", " steps") if self.clock == STEPS else ("limit", " s")
            example = self.value if self.value is not None and self.value > 1 else 60
            given = f"{self.metric!r}, {self.value!r}"
            raise ValueError(
                f"Target({given}) needs a {name}: {self.value!r} is the value to reach, and no "
                f"limit; the time to it is Target({given}, {name}=...), the best {self.metric} "
                f"within {example:g}{unit} is Target({self.metric!r}, {name}={example:g})"
            )

    def to_json(self) -> dict[str, Any]:
        """The arguments; those that earlier versions did not know only where they are not usual."""
        own = {name: getattr(self, name) for name in ("metric", "value", "limit", "mode", "clock")}
        later = {"limit_steps": self.limit_steps} if self.limit_steps is not None else {}
        scope = {"scope": self.scope} if self.scope != SCOPES[0] else {}
        return {**own, "confirm": self.confirm, **later, **scope}

    # --- what it asks for ---------------------------------------------------------------------

    @property
    def timed(self) -> bool:
        """Whether there is a value, so that trials are ranked by the time to it."""
        return self.value is not None

    @property
    def horizon(self) -> float:
        """The limit on the target's clock: seconds, or steps; infinite without one."""
        limit = self.limit_steps if self.clock == STEPS else self.limit
        return math.inf if limit is None else limit

    @property
    def limited(self) -> bool:
        """Whether anything but its own end ends a trial."""
        return self.limit is not None or self.limit_steps is not None

    def spent(self, trial: Trial) -> str:
        """That the trial has come to the limit, in words; empty where it has not."""
        if self.limit is not None and trial.seconds >= self.limit:
            return f"limit of {self.limit:g} s passed, {trial.seconds:.2f} s spent"
        step = trial.reports[-1].step if trial.reports else 0
        if self.limit_steps is not None and step >= self.limit_steps:
            return f"limit of {self.limit_steps:,} steps reached, {step:,} made"
        return ""

    def in_time(self, report: Report) -> bool:
        """Whether a report came within the limit: before its seconds, or at its last step."""
        early = self.limit is None or report.seconds < self.limit
        return early and (self.limit_steps is None or report.step <= self.limit_steps)

    def met(self, reports: Sequence[Report]) -> bool:
        """Whether the last `confirm` evaluations all meet the value; False without a value."""
        if not self.timed:
            return False
        evaluated = (r.metrics[self.metric] for r in reversed(reports) if self.metric in r.metrics)
        last = list(islice(evaluated, self.confirm))
        return len(last) == self.confirm and all(self.shortfall(value) <= 0 for value in last)

    # --- a trial as a number ------------------------------------------------------------------

    def shortfall(self, value: float) -> float:
        """How far `value` is from the target's: 0 or less when it is met, inf when not finite.

        Without a value it is how far the metric is from 0, signed so that lower is better.
        """
        if not math.isfinite(value):
            return math.inf
        aim = self.value or 0.0
        return aim - value if self.mode == "max" else value - aim

    def counted(self, trial: Trial) -> Report | None:
        """The report whose metric counts: the best, or the last where that is the `scope`.

        Without a value only reports within the limit count.
        """
        own = [r for r in trial.reports if self.metric in r.metrics]
        own = own if self.timed else [r for r in own if self.in_time(r)]
        if self.scope == "last":
            return own[-1] if own else None
        return min(own, key=lambda r: self.shortfall(r.metrics[self.metric]), default=None)

    def best(self, trial: Trial) -> float | None:
        """The metric of the report that counts (see `counted`), or None."""
        report = self.counted(trial)
        return report.metrics[self.metric] if report is not None else None

    def end_of(self, trial: Trial) -> State:
        """The state of a trial that ended by itself or at the limit."""
        best = None if self.timed else self.best(trial)
        return State.CENSORED if best is None or not math.isfinite(best) else State.COMPLETED

    def result(self, trial: Trial) -> float | None:
        """What a trial that succeeded is ranked by, lower is better; None for any other.

        With a value it is the time to it. Without one it is the metric, negative where higher is
        better; the mean over its runs where the trial has that.
        """
        if trial.state is State.REACHED:
            return trial.seconds
        if self.timed or trial.state is not State.COMPLETED:
            return None
        return trial.mean_result if trial.mean_result is not None else self._signed(trial)

    def order(self, trial: Trial) -> tuple[float, float, int]:
        """A key that sorts trials that succeeded, the best first; of equal ones the earliest."""
        result = self.result(trial)
        report = None if self.timed else self.counted(trial)
        at = report.seconds if report is not None else 0.0
        return math.inf if result is None else result, at, trial.number

    def score(self, trial: Trial) -> float | None:
        """The trial's score, lower is better; no other function makes a score.

        With a value it is in seconds. The score of a reached trial is its time to target. The score
        of a censored trial is between one and two limits, ordered by its best metric: after every
        reached trial, and never the time at which it was stopped, which is a bound and not a
        result. The order by best metric is a heuristic (samplers that use ranks see only the
        order).

        Without a value it is the metric, signed so that lower is better, of completed and of
        censored trials; infinite for one that reported none.

        Running, failed and infeasible trials have no score, nor have interrupted ones (`budget`,
        `interrupted`): None.
        """
        if trial.succeeded:
            return self.result(trial)
        if trial.state is not State.CENSORED or trial.reason in INTERRUPTED_REASONS:
            return None
        if not self.timed:
            return self._signed(trial)
        best = self.best(trial)
        if best is None or not math.isfinite(best):
            return 2 * self.horizon
        gap = max(self.shortfall(best), 0.0) / max(abs(self.value or 0.0), 1e-12)
        return self.horizon * (1 + (gap / (1 + gap) if math.isfinite(gap) else 1.0))

    @property
    def worst_score(self) -> float:
        """A score that no trial exceeds."""
        return 2 * self.horizon if self.timed else math.inf

    def _signed(self, trial: Trial) -> float:
        best = self.best(trial)
        return math.inf if best is None else self.shortfall(best)

    def checkpoint(self, trial: Trial) -> Checkpoint | None:
        """The checkpoint of the trial's result: with a value its last one.

        Without a value the one whose report was the best of those that were saved; the last one
        where the last report counts.
        """
        if self.timed or self.scope == "last":
            return trial.checkpoint
        gaps = {
            r.step: self.shortfall(r.metrics[self.metric])
            for r in trial.reports
            if self.metric in r.metrics and self.in_time(r)
        }
        saves = [saved for saved in trial.saves if saved.step in gaps]
        return min(saves, key=lambda saved: gaps[saved.step], default=trial.checkpoint)


def _is_error(metric: str) -> bool:
    """Whether the name of a metric says that lower is better.

    >>> [_is_error(name) for name in ("val_loss", "trainLoss", "RMSE", "accuracy", "top1_error")]
    [True, True, True, False, True]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", metric)
    return any(_ERROR.fullmatch(word.lower()) for word in words)


def diverged(metrics: Metrics) -> str:
    """The name of the first loss that is NaN or infinite, or an empty string."""
    bad = (k for k, v in metrics.items() if "loss" in k.lower() and not math.isfinite(v))
    return next(bad, "")
