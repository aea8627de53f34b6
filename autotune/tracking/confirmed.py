"""What the runs of a study and of its trials show of confirmations."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.algorithms.ranking.best import confirmed_gain, confirmed_speedup
from autotune.algorithms.ranking.confirmation import confirmations
from autotune.tracking.run_content import clock_unit, confirmed_key
from autotune.trial import Target, Trial
from autotune.trial.wording import plain_result


def mean_of(number: int, trials: Sequence[Trial], target: Target) -> dict[str, float]:
    """The mean result of a trial's confirmations, once there are some."""
    one = next((c for c in confirmations(trials, target) if c.number == number), None)
    mean = plain_result(target, one.mean) if one is not None else None
    return {confirmed_key(target): mean} if mean is not None else {}


def confirmed(leading: Trial | None, trials: Sequence[Trial], target: Target) -> dict[str, float]:
    """The confirmed results of the best trial, once there are some."""
    found = {c.number: c for c in confirmations(trials, target)}
    if leading is None or leading.number not in found:
        return {}
    one, speedup = found[leading.number], confirmed_speedup(trials, target)
    gain = confirmed_gain(trials, target)
    end = clock_unit(target) if target.timed else target.metric
    values = {
        confirmed_key(target): plain_result(target, one.mean),
        "confirmed_runs": float(len(one.runs)),
        "confirmed_reached": float(one.reached),
        f"confirmed_tuning_{end}": plain_result(target, one.tuned),
        f"confirmed_median_{end}": plain_result(target, one.median),
        "confirmed_speedup_vs_baseline": speedup.ratio if speedup is not None else None,
        "confirmed_gain_vs_baseline": gain.gain if gain is not None else None,
    }
    return {key: value for key, value in values.items() if value is not None}
