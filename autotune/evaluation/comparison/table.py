"""From candidates to the table: every row's statistics, and what each is against the baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from autotune.algorithms.ranking.speedup import paired, speedup
from autotune.errors import UserError, unknown
from autotune.evaluation.comparison import ratios, survival
from autotune.evaluation.comparison.conditions import check
from autotune.evaluation.comparison.model import TUNING, Candidate, Comparison, Row, Run
from autotune.evaluation.comparison.survival import Sample, sample
from autotune.trial import STEPS

LEVEL = 0.95
_SPENT = ("samples", "worker_seconds", "gpu_seconds")


def compare(
    candidates: Sequence[Candidate],
    baseline: str | None = None,
    *,
    allow: Collection[str] = (),
    tau_seconds: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare candidates with a baseline; the same input and seed give the same table.

    Args:
        candidates: with different names and at least one run each.
        baseline: name of the candidate that the others are compared with (the first one).
        allow: conditions that may differ: `hardware`, `workers`, `sharing`, `clock`, `target`.
        tau_seconds: restricts means to this time; by default to the time up to which every
            candidate that reached the target was observed.
        seed: of the bootstrap.

    Raises:
        UserError: there are no candidates, one has no runs, a name occurs twice, the baseline is
            unknown, a condition differs and is not allowed, or `tau_seconds` is not above 0.

    >>> runs = {n: tuple(Run(n, t, True) for t in ts) for n, ts in [("a", (2, 4)), ("b", (8, 8))]}
    >>> made = compare([Candidate(n, "", "confirmed", r) for n, r in runs.items()], "b")
    >>> [(r.name, r.median_seconds, r.speedup and round(r.speedup, 3)) for r in made.rows]
    [('a', 3.0, 2.828), ('b', 8.0, None)]
    """
    base = _checked(candidates, baseline)
    differing = check(candidates, base, allow)
    tau, last = _tau(candidates, tau_seconds)
    rows = [_alone(c, tau if tau is not None else last) for c in candidates]
    rows = [
        replace(r, is_baseline=True) if r.candidate is base else _against(r, base, seed)
        for r in rows
    ]
    return Comparison(
        tuple(_ordered(_adjusted(rows))),
        base.name,
        tau,
        LEVEL,
        _notes(candidates, base, differing),
        differing,
    )


def _checked(candidates: Sequence[Candidate], baseline: str | None) -> Candidate:
    """The baseline, if everything can be compared by name."""
    if not candidates:
        raise UserError("there is nothing to compare")
    names = [c.name for c in candidates]
    for candidate in candidates:
        if not candidate.runs:
            why = f": {candidate.left_out[0]}" if candidate.left_out else ""
            raise UserError(f"{candidate.name} has no run that counts{why}")
        if names.count(candidate.name) > 1:
            raise UserError(f"two candidates are called {candidate.name!r}")
    if baseline is None:
        return candidates[0]
    if baseline not in names:
        raise UserError(unknown("baseline", baseline, names))
    return candidates[names.index(baseline)]


def _sample(runs: Sequence[Run]) -> Sample:
    return sample([r.seconds for r in runs], [r.reached for r in runs])


def _tau(candidates: Sequence[Candidate], given: float | None) -> tuple[float | None, float]:
    """Up to where means are taken (None: nothing limits them), and the last second of all."""
    groups = [_sample(c.runs) for c in candidates]
    arriving = [g for g in groups if g.reached.any()]
    last = max(float(g.seconds[-1]) for g in groups)
    if given is not None:
        if not (math.isfinite(given) and given > 0):
            raise UserError(f"tau_seconds must be more than 0 seconds but got {given!r}")
        return given, last
    limited = any(math.isfinite(g.horizon) for g in arriving)
    return (survival.common_horizon(arriving) if limited else None), last


# --- a candidate by itself ------------------------------------------------------------------------


def _alone(candidate: Candidate, tau: float) -> Row:
    runs = candidate.runs
    times, why_not, unit = _sample(runs), {}, candidate.conditions.unit
    curve = survival.kaplan_meier(times, LEVEL)
    reached = [r for r in runs if r.reached]
    middle = survival.median(curve)
    if middle is None:
        why_not["median_seconds"] = f"only {len(reached)} of {len(runs)} runs reached the target"
    known = times.horizon >= tau
    if not known:
        why_not["mean_seconds"] = (
            f"it was seen for {times.horizon:g} {unit} only, and not {tau:g} {unit}"
        )
    olympic = ratios.olympic_mean([r.seconds for r in runs], [r.reached for r in runs])
    if olympic is None:
        few = len(runs) < ratios.OLYMPIC_RUNS
        why_not["olympic_seconds"] = (
            f"MLPerf's rule needs {ratios.OLYMPIC_RUNS} runs" if few else "two did not arrive"
        )
    typical = _geometric(times, tau) if known else None
    rate = _mean_of(runs, "samples_per_second")
    if not reached:
        why_not |= dict.fromkeys(_SPENT, "no run reached the target")
    return Row(
        candidate,
        len(runs),
        len(reached),
        curve,
        median_seconds=middle,
        median_interval=survival.median_interval(curve) if len(runs) > 1 else None,
        mean_seconds=survival.restricted_mean(times, tau)[0] if known else None,
        mean_interval=survival.mean_interval(times, tau, LEVEL) if known else None,
        olympic_seconds=olympic,
        geometric_seconds=typical,
        samples=_product(typical, rate) if reached else None,
        unit=runs[0].unit,
        samples_per_second=rate,
        worker_seconds=_product(typical, _each_second(runs, "worker_seconds")) if reached else None,
        gpu_seconds=_product(typical, _each_second(runs, "gpu_seconds")) if reached else None,
        why_not=why_not,
    )


def _geometric(times: Sample, tau: float) -> float | None:
    return math.exp(float(survival.log_mean(times, tau))) if times.seconds[0] > 0 else None


def _product(a: float | None, b: float | None) -> float | None:
    return a * b if a is not None and b is not None else None


def _each_second(runs: Sequence[Run], name: str) -> float | None:
    """How much of it a second costs: the same for all runs on the same workers."""
    spent = [getattr(r, name) for r in runs if r.seconds > 0]
    if not spent or None in spent:
        return None
    return math.fsum(spent) / math.fsum(r.seconds for r in runs if r.seconds > 0)


def _mean_of(runs: Sequence[Run], name: str) -> float | None:
    """The geometric mean of a figure that all runs have."""
    values = [getattr(r, name) for r in runs]
    return None if None in values else ratios.geometric_mean(values)


# --- a candidate against the baseline -------------------------------------------------------------


def _against(row: Row, base: Candidate, seed: int) -> Row:
    own, others = row.candidate.runs, base.runs
    a, b = _sample(own), _sample(others)
    why_not = dict(row.why_not)
    faster, undecided = survival.probability_faster(a, b)
    single = len(own) == len(others) == 1
    if single:
        why_not["probability_faster"] = "one run each is no more than which of them was faster"
    p, exact = None, False
    if TUNING in (row.candidate.kind, base.kind):
        why_not["p"] = "a run that was chosen for its time is no fair draw: confirm it"
    elif min(len(own), len(others)) < 2:
        why_not["p"] = "one run has no spread"
    else:
        p, exact = survival.log_rank(a, b)
    found = speedup(own, others)
    row = replace(
        row,
        probability_faster=None if single else faster,
        undecided=0.0 if single else undecided,
        p=p,
        p_exact=exact,
        why_not=why_not,
    )
    if found is None:
        why_not["speedup"] = "no run arrived in the time up to which both were seen"
        return row
    interval = ratios.interval(found, seed, LEVEL)
    if interval is None:
        why_not["speedup_interval"] = "one run has no spread"
    throughput = _throughput(own, others)
    if throughput is None:
        why_not["throughput_ratio"] = "samples per second are not known in one unit for all runs"
    return replace(
        row,
        speedup=found.ratio,
        speedup_interval=interval,
        speedup_bound=found.bound,
        speedup_tau_seconds=found.tau if found.bound else None,
        pairs=found.pairs,
        throughput_ratio=throughput,
        efficiency_ratio=found.ratio / throughput if throughput else None,
        break_even_runs=_break_even(row.candidate, own, others),
    )


def _throughput(own: Sequence[Run], others: Sequence[Run]) -> float | None:
    """The ratio of geometric means of samples per second, over pairs where there are pairs."""
    pairs = paired(own, others)
    if pairs:
        own, others = [a for a, _ in pairs], [b for _, b in pairs]
    if len({r.unit for r in (*own, *others)}) > 1:
        return None
    mine, theirs = (_mean_of(runs, "samples_per_second") for runs in (own, others))
    return mine / theirs if mine is not None and theirs is not None else None


def _break_even(candidate: Candidate, own: Sequence[Run], others: Sequence[Run]) -> float | None:
    """Runs after which the seconds saved are those of the search; None if it saves nothing.

    What a step saves in seconds is not known.
    """
    if candidate.conditions.unit == STEPS:
        return None
    if candidate.search_seconds is None or not all(r.reached for r in (*own, *others)):
        return None
    saved = math.fsum(r.seconds for r in others) / len(others)
    saved -= math.fsum(r.seconds for r in own) / len(own)
    return candidate.search_seconds / saved if saved > 0 else None


# --- all rows together ----------------------------------------------------------------------------


def _adjusted(rows: Sequence[Row]) -> list[Row]:
    """The rows with Holm's p-values over all that have one."""
    tested = [r for r in rows if r.p is not None]
    values = survival.holm([r.p for r in tested if r.p is not None])
    new = {r.name: value for r, value in zip(tested, values, strict=True)}
    return [replace(r, p_adjusted=new.get(r.name)) for r in rows]


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """The rows by mean time, those of one study in the order of that study's own ranking.

    Where the two differ, a row is sorted as no faster than those that its study ranks before it.
    """
    least: dict[str, tuple[bool, float]] = {}
    keys: dict[str, tuple[bool, float]] = {}
    for row in sorted(rows, key=lambda r: r.candidate.place or 0):
        mean = row.mean_seconds if row.reached else None
        key = (mean is None, mean or 0.0)
        if row.candidate.place is not None:
            key = max(key, least.get(row.candidate.source, key))
            least[row.candidate.source] = key
        keys[row.name] = key
    return sorted(rows, key=lambda r: (keys[r.name], r.candidate.place or 0, r.name))


def _notes(
    candidates: Sequence[Candidate], base: Candidate, differing: Collection[str]
) -> tuple[str, ...]:
    """The notes below the table."""
    notes = []
    if differing:
        notes.append(
            f"These times differ in {', '.join(differing)}: that was allowed, and the ratios hold "
            "for all of it together."
        )
    tuning = [c.name for c in candidates if c.kind == TUNING and any(r.reached for r in c.runs)]
    if tuning:
        verb = "is one run" if len(tuning) == 1 else "are one run each"
        notes.append(
            f"{', '.join(tuning)} {verb}, at tuning time: what was chosen for its time looks "
            "better than it is. Run `autotune confirm`."
        )
    single = [c.name for c in candidates if c.kind != TUNING and len(c.runs) == 1]
    if single:
        notes.append(f"Only one run, so that luck cannot be excluded: {', '.join(single)}.")
    notes += [f"{c.name}: {text}." for c in candidates for text in c.left_out]
    return tuple(notes)
