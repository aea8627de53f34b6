"""The values of a comparison: frozen, from single runs to the table.

Nothing here reads a file or draws a picture. Times are seconds on the target's clock (or steps,
where it counts these: see `Comparison.unit`) unless their name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from autotune.errors import UserError, unknown
from autotune.trial import STEPS

CONFIRMED, TUNING, PUBLISHED = "confirmed", "tuning", "published"
CONDITIONS = ("hardware", "workers", "sharing", "clock", "target")
"""The conditions that must be equal for times to be compared, as `--allow` names them."""


@dataclass(frozen=True)
class Interval:
    """A range with its level of confidence, .95 for 95 %. None is an end that is not bounded."""

    low: float | None
    high: float | None
    level: float = 0.95


@dataclass(frozen=True)
class Conditions:
    """The conditions under which times were taken. None: the source does not state it.

    `hardware` is a device's name, or the sentence with which a published run describes its
    cluster. `sharing` says whether other trials ran on the same cores or GPUs. `target` holds
    metric, value and mode, and how many evaluations in a row must meet it.
    """

    hardware: str | None = None
    workers: int | None = None
    sharing: bool | None = None
    clock: str | None = None
    target: ComparedTarget | None = None

    @property
    def unit(self) -> str:
        """The unit of the times: `s`, or `steps` where these are the target's clock."""
        return STEPS if self.clock == STEPS else "s"


@dataclass(frozen=True)
class ComparedTarget:
    """What had to be reached: `top5 >= 93`, say; `confirm` evaluations in a row."""

    metric: str
    value: float
    mode: str = "max"
    confirm: int = 1

    def __str__(self) -> str:
        row = f", {self.confirm} times in a row" if self.confirm > 1 else ""
        return f"{self.metric} {'>=' if self.mode == 'max' else '<='} {self.value:g}{row}"


@dataclass(frozen=True)
class Run:
    """One run of one configuration.

    Args:
        name: where it is found: `studies/digits#7`, a file, an MLflow run.
        seconds: time to the target if `reached`; otherwise the time up to which it was seen, or
            the limit for a run that diverged, which is known never to arrive.
        reached: False is right-censored: the time to target is known only to be greater.
        seed: of the run; runs of two candidates with equal seeds are a pair. None: not known.
        samples: what it had trained on when the target was met, or when it ended. In `unit`.
        unit: of `samples`: "samples", or "epochs" where that is all that is known.
        samples_per_second: throughput on the target's clock, in `unit`.
        worker_seconds: `seconds` times the number of ranks. None: their number is not known.
        gpu_seconds: `seconds` times the number of GPUs. None for CPUs, or where not known.
        spent_seconds: for how long a worker group had it in all, evaluation and set-up included.
        trial: number of the trial in its study.
        reason: why it ended without the target: `limit`, `diverged`; empty if reached.
        curve: (samples, seconds, value of the target's metric) at every evaluation.
    """

    name: str
    seconds: float
    reached: bool
    _: KW_ONLY
    seed: int | None = None
    samples: float | None = None
    unit: str = "samples"
    samples_per_second: float | None = None
    worker_seconds: float | None = None
    gpu_seconds: float | None = None
    spent_seconds: float | None = None
    trial: int | None = None
    reason: str = ""
    curve: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Candidate:
    """A configuration with its runs: what is compared.

    Args:
        name: unique in a comparison, as short as it can be: `digits#7`.
        source: where it comes from: a study folder, a file, `mlflow:EXPERIMENT/RUN`.
        kind: "confirmed" (runs on fresh seeds), "tuning" (the one run for which it was chosen,
            so that its time flatters it) or "published".
        runs: in the order in which they ran.
        conditions: under which all its runs were timed.
        trial: number of the trial whose configuration it is; None for what is no study.
        baseline: whether it is its study's own baseline.
        place: its place in its study's ranking (`algorithms.ranking.best`), from 1; None for what
            is not one of a study's searched trials.
        tuning_seconds: time to target in the search, to stand beside the confirmed time.
        search_seconds: worker-group seconds of the whole search that found it.
        search_trials: how many trials that search had.
        config: the configuration, values as JSON or text.
        left_out: runs that say nothing of its time, one sentence each: "trial 12 FAILED: ...".
    """

    name: str
    source: str
    kind: str
    runs: tuple[Run, ...]
    conditions: Conditions = Conditions()
    _: KW_ONLY
    trial: int | None = None
    baseline: bool = False
    place: int | None = None
    tuning_seconds: float | None = None
    search_seconds: float | None = None
    search_trials: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survival:
    """Kaplan-Meier: the share of runs that are not there yet, as a staircase.

    From `seconds[i]` on, up to the next one, `share[i]` have not reached the target; `low` and
    `high` are the band of the level `level` (None where it says nothing). The first second is 0
    with a share of 1. `censored` are the seconds at which runs were last seen without it.
    """

    seconds: tuple[float, ...]
    share: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    at_risk: tuple[int, ...]
    censored: tuple[float, ...] = ()
    level: float = 0.95


@dataclass(frozen=True)
class Row:
    """The figures of a candidate, and of it against the baseline; None for an unknown figure.

    `why_not` says by the field's name why a figure is unknown. Fields from `speedup`
    on compare with the baseline and are None in its own row. `docs/cards/statistics.md` has a card
    for each: formula, source, when not to use it.

    Args:
        n, reached: runs, and how many of them reached the target.
        median_seconds: where the Kaplan-Meier curve falls to one half.
        mean_seconds: restricted mean: the mean of min(time, `tau`); see `Comparison.tau_seconds`.
        olympic_seconds: MLPerf's rule: mean without the best and the worst run; five at least.
        geometric_seconds: geometric mean; restricted where runs were censored.
        samples, worker_seconds, gpu_seconds: spent in `geometric_seconds`, and restricted as
            these are; `samples` in `unit`. None if no run reached the target.
        samples_per_second: geometric mean over all runs.
        speedup: the baseline's geometric mean of time to target over this one's, both up to
            `speedup_tau_seconds` where runs were censored: above 1 is faster than the baseline.
        speedup_bound: what it then is of the unrestricted ratio: ">=" if only the baseline has
            runs that did not arrive, "<=" if only this candidate has, "~" if both; else "".
        pairs: of runs with equal seeds on which `speedup` rests; 0: it is not paired.
        probability_faster: that a run of this candidate arrives before one of the baseline;
            what censoring leaves open counts half, and `undecided` is how much that is.
        p: log-rank test of "the same distribution"; `p_adjusted` is Holm's over all rows;
            `p_exact`: found by all arrangements of the runs, not by the chi-square.
        throughput_ratio, efficiency_ratio: their product is `speedup`: samples per second against
            the baseline's, and how many fewer samples it needs.
        break_even_runs: runs after which the search that found it has paid for itself.
    """

    candidate: Candidate
    n: int
    reached: int
    survival: Survival = field(repr=False)
    _: KW_ONLY
    is_baseline: bool = False
    median_seconds: float | None = None
    median_interval: Interval | None = None
    mean_seconds: float | None = None
    mean_interval: Interval | None = None
    olympic_seconds: float | None = None
    geometric_seconds: float | None = None
    samples: float | None = None
    unit: str = "samples"
    samples_per_second: float | None = None
    worker_seconds: float | None = None
    gpu_seconds: float | None = None
    speedup: float | None = None
    speedup_interval: Interval | None = None
    speedup_bound: str = ""
    speedup_tau_seconds: float | None = None
    pairs: int = 0
    probability_faster: float | None = None
    undecided: float = 0.0
    p: float | None = None
    p_exact: bool = False
    p_adjusted: float | None = None
    throughput_ratio: float | None = None
    efficiency_ratio: float | None = None
    break_even_runs: float | None = None
    why_not: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name


@dataclass(frozen=True)
class Comparison:
    """A table of candidates, the fastest first.

    Args:
        rows: one a candidate, sorted by restricted mean; those of one study in the order of its own
            ranking, so that its best trial comes first; those without a time last.
        baseline: name of the candidate that the others are compared with.
        tau_seconds: up to where means are taken, the same for all rows; None: no run that counts
            was censored before the last one arrived, so that means are not restricted.
        level: of all intervals.
        notes: what a reader must know, one sentence each: which conditions differ and were allowed,
            which times are those of tuning, what was left out.
        differing: the conditions that differ and were allowed.
    """

    rows: tuple[Row, ...]
    baseline: str
    tau_seconds: float | None = None
    level: float = 0.95
    notes: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of all times: `s`, or `steps` where these are the target's clock."""
        return self.baseline_row.candidate.conditions.unit

    def row(self, name: str) -> Row:
        """The row of the candidate with this name.

        Raises:
            UserError: there is none; the nearest right name.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise UserError(unknown("candidate", name, [row.name for row in self.rows]))

    @property
    def baseline_row(self) -> Row:
        """The baseline's own row."""
        return self.row(self.baseline)
