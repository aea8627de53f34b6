"""Several problems at once: on what share of them is a candidate within a factor of the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import Comparison


@dataclass(frozen=True)
class Profile:
    """A candidate's performance profile.

    Args:
        name: of the candidate.
        ratios: of its time to the fastest candidate's on each problem, in the order of the
            problems; infinite where it did not reach the target.
        score: the area under the profile from ratio 1 to `r_max`, divided by its width: 1 is
            the fastest everywhere, 0 is never within `r_max`.
        geometric_speedup: geometric mean over problems of the reference's time over its own;
            None without a reference, or where either did not reach a target.
    """

    name: str
    ratios: tuple[float, ...]
    score: float
    geometric_speedup: float | None = None

    def share(self, ratio: float) -> float:
        """On what share of the problems it is within `ratio` of the fastest.

        >>> Profile("a", (1.0, 1.5, float("inf")), 0.0).share(1.5)
        0.6666666666666666
        """
        return sum(r <= ratio for r in self.ratios) / len(self.ratios)


def performance_profiles(
    times: Mapping[str, Mapping[str, float | None]],
    *,
    r_max: float = 4.0,
    reference: str | None = None,
) -> tuple[Profile, ...]:
    """Profiles of candidates from `times[problem][candidate]`, best score first.

    A missing or None time is a target not reached. A problem that nobody solves counts for all,
    as in AlgoPerf: it lowers every score.

    Source: Dolan and More, Mathematical Programming 91 (2002); Dahl et al., Benchmarking Neural
    Network Training Algorithms, arXiv 2306.07179 (2023), section 4.

    >>> made = performance_profiles({"p": {"a": 1.0, "b": 2.0}, "q": {"a": 3.0, "b": None}})
    >>> [(p.name, p.ratios, round(p.score, 3)) for p in made]
    [('a', (1.0, 1.0), 1.0), ('b', (2.0, inf), 0.333)]

    Raises:
        UserError: no problems, `r_max` not above 1, an unknown reference, a time not above 0.
    """
    names = sorted({name for row in times.values() for name in row})
    if not names:
        raise UserError("performance profiles need at least one problem with one candidate")
    if not r_max > 1:
        raise UserError(f"r_max must be more than 1 but got {r_max!r}")
    if reference is not None and reference not in names:
        raise UserError(unknown("reference", reference, names))
    taken = {name: [_time(name, p, row.get(name)) for p, row in times.items()] for name in names}
    fastest = [min(column) for column in zip(*taken.values(), strict=True)]
    made = []
    for name, own in taken.items():
        ratios = tuple(
            t / best if math.isfinite(t) else math.inf for t, best in zip(own, fastest, strict=True)
        )
        area = math.fsum(max(0.0, r_max - r) for r in ratios) / (len(ratios) * (r_max - 1))
        speed = None if reference is None else _speedup(taken[reference], own)
        made.append(Profile(name, ratios, area, speed))
    return tuple(sorted(made, key=lambda p: (-p.score, p.name)))


def profiles(
    comparisons: Mapping[str, Comparison], *, r_max: float = 4.0, reference: str | None = None
) -> tuple[Profile, ...]:
    """`performance_profiles` of comparisons by problem, of their medians.

    Candidates are one and the same where they have the same name: `dataclasses.replace` gives
    them names such as "tuned" and "default".
    """
    times = {p: {row.name: row.median_seconds for row in c.rows} for p, c in comparisons.items()}
    return performance_profiles(times, r_max=r_max, reference=reference)


def _time(name: str, problem: str, seconds: float | None) -> float:
    if seconds is None:
        return math.inf
    if not seconds > 0:
        raise UserError(f"the time of {name} on {problem} must be above 0 but got {seconds!r}")
    return seconds


def _speedup(reference: list[float], own: list[float]) -> float | None:
    if not all(math.isfinite(t) for t in (*reference, *own)):
        return None
    logs = [math.log(r / t) for r, t in zip(reference, own, strict=True)]
    return math.exp(math.fsum(logs) / len(logs))
