"""Which sampler and pruner, and whether leaders are raced: by which rules, and why."""

from __future__ import annotations

from autotune.algorithms.names import EXPERIENCED, NO_CONTROLLER
from autotune.algorithms.pruners.rules import usual_pruner
from autotune.study.experiment import Experiment
from autotune.trial import Target

FEW = 40  # trials
SHARES = {100: 0.3, FEW + 1: 0.2}  # of the training, for races in searches of so many trials


def sampler_for(
    experiment: Experiment, trials: int, known: str = "", learned: bool = False
) -> tuple[str, str]:
    """The name of the sampler for a study of so many trials, and the reason in one line.

    With a baseline and few trials there is little time to leave what is known to be good: starting
    around it and widening found the fastest confirmed configurations (`benchmarks/RESULTS.md`,
    schedules on digits, 24 trials). Otherwise the order of trials at equal seconds tells more than
    their scores (the same file, search on recorded curves).

    Args:
        experiment: the study's.
        trials: of the study, in all.
        known: which studies are known that this one is like, in words: whatever the number of
            trials, knowing them is worth more than any other search (the same file, few trials).
        learned: whether there is a policy, and no study, to begin with.
    """
    size = len(experiment.space.parameters())
    if not size:
        return "random", "nothing is searched"
    if learned:
        return "policy:elite", "it can begin with what an earlier study learned"
    if known:
        return EXPERIENCED, known
    if experiment.baseline is not None and trials <= FEW:
        return "widening", f"{trials} trials are few (at most {FEW}), and there is a baseline"
    counted = f"{trials} trials for {size} parameter{'' if size == 1 else 's'}"
    if experiment.baseline is not None:
        return "convergence", f"{counted}, more than {FEW}"
    return "convergence", f"{counted}, and no baseline to start from"


def pruner_for(target: Target) -> tuple[str, str | None]:
    """The name of the pruner, and the reason in one line where it is not the usual one."""
    return usual_pruner(target), None if target.timed else "the target has no value to be missed"


def racing_for(sampler: object, trials: int, controller: object) -> tuple[float, str | None]:
    """The share of races in a search of so many trials, and the reason in one line.

    The fastest of many runs is partly luck: the winner's curse. A sampler that returns to good
    points, as `convergence` does (and `experienced`, which ends in it), gains by repeating them
    (`benchmarks/RESULTS.md`, what racing is worth); a random search does not, and with controllers
    it has not been measured.
    """
    if sampler not in ("convergence", EXPERIENCED) or controller not in NO_CONTROLLER:
        return 0.0, None
    share = next((SHARES[least] for least in SHARES if trials >= least), 0.0)
    why = f"the fastest of more than {FEW} trials is partly luck"
    return share, why if share else None
