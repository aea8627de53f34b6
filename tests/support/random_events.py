"""What can happen to the trials of a study, event by event, drawn at random."""

from __future__ import annotations

from random import Random

from autotune.trial import (
    Checkpoint,
    Clock,
    Ended,
    Event,
    Hardware,
    Interrupted,
    Report,
    Reported,
    Saved,
    Started,
    State,
    Suggested,
    Trial,
)

KINDS = [Hardware("a"), Hardware("b", 2)]
_ENDS = [(State.REACHED, "target")] * 2 + [
    (State.CENSORED, "capped"),
    (State.CENSORED, "interrupted"),
    (State.FAILED, "boom"),
]


def random_event(
    random: Random,
    trials: dict[int, Trial],
    at: float,
    repeating: float = 0.0,
    disturbing: bool = False,
    valued: bool = True,
) -> Event:
    """Any event that can follow, also the rare ones: lost attempts, trials taken up again.

    `repeating` is the share of new trials that repeat one which reached the target, if one has.
    `disturbing`: other processes slow some trials down. `valued`: the target has a value.
    """
    if not trials or random.random() < 0.2:
        reached = [n for n, t in trials.items() if t.succeeded and t.repeats is None]
        of = random.choice(reached) if reached and random.random() < repeating else None
        return Suggested(len(trials), {}, {}, "trial" if of is None else "race", 0, at, repeats=of)
    trial = random.choice(list(trials.values()))
    number, step = trial.number, len(trial.reports) + 1
    ends = [*_ENDS, (State.CENSORED, "limit")] if disturbing else _ENDS
    ended, reason = random.choice(ends)
    if ended is State.REACHED and not valued:
        ended, reason = State.COMPLETED, random.choice(["limit", "finished"])
    end = Ended(number, ended, reason, trial.seconds, at=at)
    if trial.ended:
        if trial.reason == "interrupted":
            return random.choice([Interrupted(number, "driver restarted", broke=False, at=at), end])
        return Saved(number, Checkpoint(step, "x"), at)
    if not trial.placed:
        return Started(number, 0.0, random.choice(KINDS), at)
    seconds, waited = trial.seconds + random.random(), None
    if disturbing:
        waited = seconds * random.choice([0.0, 0.1, 0.4, 0.6])
    clock = Clock(train=seconds)
    is_setup = step == 1 and random.random() < 0.5  # a report without metrics
    metrics = {} if is_setup else {"acc": random.random() * 0.8}
    report = Report(step, seconds, metrics, clock, waited)
    reported, last = Reported(number, report, at), Checkpoint(max(step - 1, 1), "x")
    lost = Interrupted(number, "worker died", at=at)
    return random.choice([reported, reported, Saved(number, last, at), lost, end, end])
