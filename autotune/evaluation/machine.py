"""What a study's runs say of their machine: was it busy, and busier than while it was tuned?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autotune.study.result import StudyResult
from autotune.trial import STEPS, Report, Trial
from autotune.trial.wording import share_text

_SIMILAR = 1.25  # samples per second that differ by more are not of the same, idle hardware
_NAMED = 8  # disturbed trials that are named


def sentences(result: StudyResult) -> list[str]:
    """What a reader of the study's times has to know of its machine; nothing if it was idle.

    Nothing either where seconds decide nothing: on the clock that counts steps, and for the best
    metric within no seconds.
    """
    target = result.target
    if target.clock == STEPS or (not target.timed and target.limit is None):
        return []
    repeats = [t for t in result.trials if t.repeats is not None]
    found = disturbed(result.searched, "trials"), disturbed(repeats, "repeats"), busier(result)
    return [sentence for sentence in found if sentence]


def disturbed(runs: Sequence[Trial], what: str) -> str:
    """How many of the runs other processes disturbed, and how much; empty if they did not."""
    slow = [t for t in runs if t.disturbed]
    if not slow:
        return ""
    shares = [f"{t.number} ({share_text(t)})" for t in slow[:_NAMED]]
    more = [f"{len(slow) - _NAMED} more"] if len(slow) > _NAMED else []
    causes = sorted({r.slowed_by for t in slow for r in t.reports if r.slowed_by})
    cause = f" ({'; '.join(causes)})" if causes else ""
    return (
        f"Other processes disturbed {len(slow)} of {len(runs)} {what}{cause}, which had their "
        f"cores for this share of their training: {', '.join([*shares, *more])}. They count "
        "without the seconds in which they waited, so one that took longer can come first."
    )


def busier(result: StudyResult) -> str:
    """A sentence where confirmations had another throughput than the trial that they repeat."""
    own = {t.number: t for t in result.trials}
    for entry in result.ranking:
        again = result.confirmation(entry.trial)
        rates = [samples_per_second(t) for t in again.runs] if again is not None else []
        known = [rate for rate in rates if rate is not None]
        first = samples_per_second(own[entry.trial.number])
        if not known or not first or 1 / _SIMILAR <= median(known) / first <= _SIMILAR:
            continue
        ratio = median(known) / first
        return (
            f"The machine was {'busier' if ratio < 1 else 'less busy'}: repeats of trial "
            f"{entry.trial.number} had {ratio:.0%} of the samples per second of its run in the "
            "search. That part of the difference between tuning and confirmed times is not luck."
        )
    return ""


def train_seconds(report: Report) -> float:
    """Seconds of training until a report."""
    return report.clock.seconds("train") if report.clock.total else report.seconds


def samples_per_second(trial: Trial) -> float | None:
    """Samples a second of training, over all that the trial reported."""
    if len(trial.reports) < 2:
        return None
    first, last = trial.reports[0], trial.reports[-1]
    seconds = train_seconds(last) - train_seconds(first)
    return (last.step - first.step) / seconds if seconds > 0 else None
