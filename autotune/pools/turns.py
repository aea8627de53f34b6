"""What all ranks' answers in one turn mean together."""

from __future__ import annotations

import os

from autotune import storage
from autotune.pools import Broke, Progress, Raised
from autotune.pools.answers import Stretch
from autotune.pools.faults import stack_of
from autotune.pools.groups import Group
from autotune.trial import Checkpoint, Report, slowest


def progress(group: Group, answers: dict[int, Stretch]) -> Progress:
    """All ranks wait at a milestone: the slowest makes the report."""
    assert group.launch is not None
    saved, unsaved = checkpoint(group, answers)
    group.clock = group.clock + slowest([a.clock for a in answers.values()])
    first = answers[0]
    group.step = first.step
    seconds = group.clock.seconds(group.launch.clock)
    report = Report(first.step, seconds, first.metrics or {}, group.clock)
    can_save = all(a.can_save for a in answers.values())
    saving = group.saving is not None
    return Progress(group.launch.trial, report, can_save, saved, saving, unsaved)


def checkpoint(group: Group, answers: dict[int, Stretch]) -> tuple[Checkpoint | None, str]:
    """The checkpoint that was asked for once all ranks have written it, or why they cannot."""
    saving = group.saving
    if saving is None:
        return None, ""
    for rank, answer in answers.items():
        if answer.saved is not None and answer.saved.folder == saving.folder:
            saving.sums[rank] = answer.saved.checksum
    unsaved = next((a.unsaved for a in answers.values() if a.unsaved), "")
    ranks = range(len(group.places))
    if unsaved:
        group.saving = None
        return None, unsaved
    if len(saving.sums) < len(group.places):
        return None, ""
    group.saving = None
    try:
        found = {*storage.names(saving.folder)}
    except OSError as error:
        return None, str(error)
    if not {f"rank-{rank}.pt" for rank in ranks} <= found:
        return None, ""  # written on another node's own disk
    sums = tuple(saving.sums[rank] for rank in ranks)
    return Checkpoint(saving.step, saving.folder, saving.clock, sums), ""


def raised(group: Group, answers: dict[int, Stretch]) -> Raised | Broke:
    """Some ranks raised: what, grouped by equal texts, and whether the trainer is at fault."""
    assert group.launch is not None
    bad = {r: a for r, a in answers.items() if a.kind == "raised"}
    first = next(iter(bad.values()))
    texts: dict[str, list[int]] = {}
    for rank, answer in bad.items():
        texts.setdefault(answer.error, []).append(rank)
    parts = [f"{_named(ranks)}:\n{text}" for text, ranks in texts.items()]
    silent = [r for r in range(len(group.places)) if r not in bad]
    if silent:
        parts.append(f"{_named(silent)}: raised nothing")
    memory = any(a.out_of_memory for a in bad.values())
    cause = (a.reason for a in bad.values() if a.out_of_memory or a.damaged)
    reason = next(cause, first.reason)
    trial = group.launch.trial
    damaged = any(a.damaged for a in bad.values())
    if any(a.unread for a in bad.values()) and not (memory or damaged):
        return Broke(trial, f"the checkpoint could not be read: {reason}", "\n\n".join(parts))
    return Raised(trial, "\n\n".join(parts), reason, memory, damaged)


def disagreement(group: Group, answers: dict[int, Stretch]) -> Raised:
    """The ranks do not do the same."""
    assert group.launch is not None
    at = [f"rank {r} {a.kind} at step {a.step}" for r, a in answers.items()]
    trial = group.launch.trial
    text = f"the ranks are not at the same milestone: {', '.join(at)}"
    return Raised(trial, text, text)


def troubled(group: Group) -> bool:
    """Whether a rank has died or raised in this turn, so that the others may never answer."""
    wrong = (BaseException, Stretch)
    answers = [a for a in group.answers.values() if isinstance(a, wrong)]
    return any(isinstance(a, BaseException) or a.kind == "raised" for a in answers)


def stacks(group: Group, ranks: list[int]) -> str:
    """Where the ranks that run on this machine are stuck, innermost call first."""
    here = [r for r in ranks if os.path.exists(group.places[r].stacks)]
    return "\n".join(f"rank {r} is at:\n{stack_of(group.places[r])}" for r in here)


def name_of(group: Group, rank: int) -> str:
    """A rank, its process and its machine, for an error."""
    place = group.places[rank]
    return f"rank {rank} (pid {place.pid} on {place.host})"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
