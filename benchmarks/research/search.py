"""How soon a search finds a fast configuration: samplers and pruners on a virtual clock.

    python benchmarks/research/search.py --problem lcbench --data FOLDER
        [--tasks 10] [--seeds 3] [--spend 1 2 4 12.5] [--workers 8]
    python benchmarks/research/search.py --problem farm [--tasks 8] [--seeds 3] [--spend 4]

`lcbench`: recorded learning curves with times, `FOLDER/lcbench_dev.npz` or another file of that
form, 1000 configurations a task, of which the nearest stands for a proposed one; tasks from
`--first-task` on. A task's target is the accuracy that 5 % of the configurations reach, its limit
the median time of a whole run. `farm`: real training of small networks, see `farm.py`. `--workers`
run at once for `--spend` limits of tuning time. With several spends each has a table of its own: of
one study, looked at after each of them.

Rows "with a baseline" begin with a configuration that a person might take (`BASELINE`, and that of
`trained`): common values, chosen before any study was run with them. "The default of 40 trials" is
what most users have: it ends after 40 trials even if there is time left.

Reported for each method, over tasks and seeds: *regret*, the time to target of the best
configuration found over that of the best one known, after a quarter of the spend and after all of
it (geometric mean; the limit where none was found); the tuning time until a configuration within
25 % and 10 % of the best was found, in limits (geometric mean; the whole spend where it was not
found, with the share that found it); trials; and, on recorded curves, what stopping saved of the
seconds that the ended trials would have trained, and how many configurations within 25 % of the
best were begun and how many of them were stopped for another reason than their time (a peer's:
before they met the target). On the farm a configuration is judged by its median time on 25 fresh
seeds (`--by-mean`: by the mean, in which a run that misses the target counts as the limit), and one
that was new to the study only because of a favourable seed is judged so too; ours is the one that a
study would name as its best by then. Peers maximise accuracy over epochs (or
milestones), as they are used: Optuna's samplers with its Hyperband and median pruners, Ray Tune's
rule (ASHA; a stopped trial is reported as complete), and, where they are installed, SMAC3 and
Syne Tune (see `peers.py`). Their incumbent is judged by its time to target all the same. The
nearest fair peer is `tpe, capped`: Optuna's sampler, which is given the target and whose trials end
there, or once they have spent the incumbent's time. Ratios to a peer are paired by task and seed.
Intervals are bootstraps over those pairs; that of a ratio is also given with the tasks drawn, and
the seeds of each drawn task. Studies may be made a few seeds at a time (`--first-seed`), and merged
(`--merge`).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import peers
from _shared import Answer, arguments, introduce, keep, serve
from _tables import Runs, merged, table

import autotune as at
from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.repeat_index import RepeatIndex
from autotune.backends.simulator import SimCurve, SimPoint, SimPool, Simulate
from autotune.storage import journal
from autotune.study.defaults import FEW
from autotune.trial import INTERRUPTED_REASONS, Config, Ended, Event, Params, State, Trial, after

if TYPE_CHECKING:  # it trains networks, which recorded curves do not need
    import farm

WORKERS = 8
FRESH = 25  # seeds that judge a configuration of the farm: five say more of the seeds than of it
FIRST_FRESH = 10**6  # the first of the seeds that no study uses
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
METRIC = "val_accuracy"
Judge = Callable[[Config], float]


@dataclass(frozen=True)
class Problem:
    """A task that is searched.

    Args:
        simulate: makes, for each study, what stands for training.
        milestones: of a whole run.
        best: the least seconds to the target that are known.
        judge: the seconds to the target that a configuration is worth, infinite if it misses it.
        baseline: a configuration that a person might begin with.
        recorded: whether `judge` costs nothing.
        length: seconds of a configuration's whole curve, where it is recorded.
        effective: `space` with lr / (1 - momentum) in place of the learning rate.
    """

    name: str
    space: at.SearchSpace
    target: at.Target
    simulate: Callable[[], Simulate]
    milestones: int
    best: float
    judge: Judge
    baseline: Config
    recorded: bool
    length: Judge | None = None
    effective: at.SearchSpace | None = None

    def whole(self, config: Config) -> float:
        """Seconds of a recorded run that nothing stops before its target, limit or end."""
        assert self.length is not None
        return min(self.judge(config), self.target.limit, self.length(config))


RANGES: dict[str, tuple[float, float, bool, bool]] = {  # low, high, log, whole
    "batch_size": (16, 512, True, True),
    "learning_rate": (1e-4, 1e-1, True, False),
    "momentum": (0.1, 0.99, False, False),
    "weight_decay": (1e-5, 1e-1, False, False),
    "num_layers": (1, 5, False, True),
    "max_units": (64, 1024, True, True),
    "max_dropout": (0.0, 1.0, False, False),
}


BASELINE: Config = {
    "batch_size": 128,
    "learning_rate": 1e-2,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_layers": 3,
    "max_units": 256,
    "max_dropout": 0.2,
}


def to_unit(name: str, value: Any) -> Any:
    low, high, log, _ = RANGES[name]
    if log:
        return (np.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


@lru_cache(maxsize=1)
def recorded(data: str) -> list[Problem]:
    place = Path(data)
    place = place / "lcbench_dev.npz" if place.is_dir() else place
    with np.load(place, allow_pickle=False) as file:
        accuracy = file["val_accuracy"].astype(float)
        seconds = np.maximum.accumulate(file["time"].astype(float), axis=2)
        unit = np.stack([to_unit(name, file[f"cfg_{name}"]) for name in RANGES], axis=1)
    return [
        _recorded(i, unit, *curves) for i, curves in enumerate(zip(accuracy, seconds, strict=True))
    ]


def _recorded(number: int, unit: np.ndarray, accuracy: np.ndarray, seconds: np.ndarray) -> Problem:
    value = float(np.quantile(accuracy.max(axis=1), 0.95))
    limit = float(np.median(seconds[:, -1]))
    met = accuracy >= value
    times = np.where(
        met.any(axis=1), seconds[np.arange(len(seconds)), met.argmax(axis=1)], math.inf
    )
    times[times >= limit] = math.inf

    def nearest(config: Config) -> int:
        point = np.array([to_unit(name, config[name]) for name in RANGES])
        return int(((unit - point) ** 2).sum(axis=1).argmin())

    def simulate(config: Config, _: int) -> SimCurve:
        row = nearest(config)
        pairs = zip(seconds[row], accuracy[row], strict=True)
        return SimCurve(
            [SimPoint(i + 1, float(t), {METRIC: float(a)}) for i, (t, a) in enumerate(pairs)]
        )

    entries: dict[str, Any] = {
        name: at.Int(int(low), int(high), log=log) if whole else at.Float(low, high, log=log)
        for name, (low, high, log, whole) in RANGES.items()
    }
    rate = at.Float(1e-3, 1.0, log=True, effective="momentum")
    return Problem(
        f"lcbench-{number}",
        at.SearchSpace(entries),
        at.Target(METRIC, value, limit=limit),
        lambda: simulate,
        accuracy.shape[1],
        float(times.min()),
        lambda config: float(times[nearest(config)]),
        BASELINE,
        recorded=True,
        length=lambda config: float(seconds[nearest(config), -1]),
        effective=at.SearchSpace({**entries, "learning_rate": rate}),
    )


def judged(task: farm.Task, config: Config, *, by_mean: bool) -> float:
    """Seconds on fresh seeds: the median, or the mean with a miss as the limit."""
    times = task.times([config], range(FIRST_FRESH, FIRST_FRESH + FRESH))[0]
    if by_mean:
        return statistics.fmean(min(seconds, task.limit) for seconds in times)
    return statistics.median(times)


@lru_cache(maxsize=1)
def trained(by_mean: bool = False) -> list[Problem]:
    import farm

    usual = {"lr.family": "cosine", "lr.peak": 0.1, "lr.warmup": 0.0, "momentum": 0.9}
    usual |= {"weight_decay": 1e-4, "horizon": 1.0, "batch_size": 64, "optimizer": "sgd"}

    return [
        Problem(
            task.name,
            task.space(),
            task.target(),
            task.simulate,
            farm.MILESTONES,
            task.best(),
            partial(judged, task, by_mean=by_mean),
            task.space().config(usual),
            recorded=False,
            effective=task.space(effective=True),
        )
        for task in farm.tasks()
    ]


Found = list[tuple[float, float, Config]]  # tuning time, time to target, of one that reached it
Leaders = list[tuple[float, Config]]  # since when each was the best
Run = tuple[Config, float, float, bool]
"""A trial that ended: seconds trained, seconds if nothing had stopped it, whether a rule did so
(other than by its time) before it met the target."""


# --- autotune's own studies -----------------------------------------------------------------------


def effective_study(problem: Problem, sampler: str, pruner: Any, seed: int, spend: float) -> Answer:
    """The same over the effective learning rate."""
    assert problem.effective is not None
    return our_study(replace(problem, space=problem.effective), sampler, pruner, seed, spend)


def default_study(problem: Problem, sampler: str, pruner: Any, seed: int, spend: float) -> Answer:
    """The same with races of the leaders, as studies of so many trials have them by default."""
    return our_study(problem, sampler, pruner, seed, spend, racing=None)


def based_study(problem: Problem, sampler: str, pruner: Any, seed: int, spend: float) -> Answer:
    """The same from a baseline."""
    return our_study(problem, sampler, pruner, seed, spend, baseline=problem.baseline)


def few_study(problem: Problem, sampler: str, pruner: Any, seed: int, spend: float) -> Answer:
    """The same from a baseline, and with so few trials that the default is another one."""
    known = problem.baseline
    return our_study(problem, sampler, pruner, seed, spend, baseline=known, trials=FEW)


def our_study(
    problem: Problem,
    sampler: str,
    pruner: Any,
    seed: int,
    spend: float,
    *,
    racing: float | None = 0.0,
    baseline: Config | None = None,
    trials: int = 100_000,
) -> Answer:
    experiment = at.Experiment(
        problem.name, _nothing, problem.space, problem.target, baseline=baseline
    )
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        result = at.run(
            experiment,
            trials=trials,
            time_limit=spend,
            sampler=sampler,
            pruner=pruner,
            pool=SimPool(problem.simulate(), WORKERS),
            out=Path(folder, "study"),
            seed=seed,
            racing=racing,
        )
        read = journal.read(Path(folder, "study"))
    events = [e for e in read if not isinstance(e, journal.Opened | journal.Closed)]
    done: list[Run] = []
    for trial in result.searched if problem.recorded else ():
        if trial.ended and trial.reason not in INTERRUPTED_REASONS:
            stopped = trial.state is State.CENSORED and trial.reason not in _FAIR
            done.append((trial.config, trial.seconds, problem.whole(trial.config), stopped))
    leaders = led(events, problem.target)
    return {"leaders": leaders, "trials": len(result.searched), "done": done}


def led(events: Sequence[Event], target: at.Target) -> Leaders:
    """Who was the best when, as a study would have said."""
    trials: dict[int, Trial] = {}
    shown, leaders, number = RepeatIndex(trials, target, raced=False), Leaders(), -1
    raced = False
    for event in events:
        before = trials.get(event.trial)
        trials[event.trial] = after(before, event)
        shown.note(before, trials[event.trial])
        best = None
        if isinstance(event, Ended):
            raced = raced or trials[event.trial].repeats is not None
            best = best_trial(list(trials.values()), target) if raced else shown.leader()
        if best is not None and best.number != number:
            leaders.append((event.at, best.config))
            number = best.number
    return leaders


_FAIR = ("capped", "limit", "budget", "finished")


def _nothing(config: Config) -> Any:
    """Stands for a trainer where none is run."""


# --- peers ----------------------------------------------------------------------------------------


@dataclass
class Peer:
    """Optuna on the same virtual workers: accuracy over epochs, its own pruner or ASHA."""

    problem: Problem
    study: Any
    seed: int
    asha: Any = None

    def run(self, spend: float) -> Answer:
        from autotune.algorithms.samplers.optuna_space import draw

        agenda: list[tuple[float, int, Any, Config, SimCurve, int]] = []
        found: Found = []
        done: list[Run] = []
        met: set[int] = set()
        numbers = itertools.count()
        count, now = 0, 0.0
        simulate = self.problem.simulate()

        def start() -> None:
            nonlocal count
            trial = self.study.ask()
            params: Params = self.problem.space.suggest(lambda name, p: draw(trial, name, p))
            config = self.problem.space.config(params)
            curve = simulate(config, 1000 * self.seed + count)
            count += 1
            at_first = now + curve.points[0].seconds
            heapq.heappush(agenda, (at_first, next(numbers), trial, config, curve, 0))

        for _ in range(WORKERS):
            start()
        while agenda:
            now, order, trial, config, curve, epoch = heapq.heappop(agenda)
            if now > spend:
                break
            point = curve.points[epoch]
            accuracy = point.metrics[METRIC]
            reached = accuracy >= self.problem.target.value
            if reached and trial.number not in met and point.seconds < self.problem.target.limit:
                met.add(trial.number)
                found.append((now, point.seconds, config))
            if self._ends(trial, epoch, accuracy):
                stopped = epoch + 1 < self.problem.milestones and trial.number not in met
                done.append((config, point.seconds, curve.points[-1].seconds, stopped))
                start()
            else:
                after = now + curve.points[epoch + 1].seconds - point.seconds
                heapq.heappush(agenda, (after, order, trial, config, curve, epoch + 1))
        return {"found": found, "trials": count, "done": done}

    def _ends(self, trial: Any, epoch: int, accuracy: float) -> bool:
        import optuna

        last = epoch + 1 == self.problem.milestones
        trial.report(accuracy, epoch + 1)
        if self.asha is not None:
            if last or self.asha.stops(epoch + 1, accuracy):
                self.study.tell(trial, accuracy)
                return True
            return False
        if last:
            self.study.tell(trial, accuracy)
            return True
        if trial.should_prune():
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return True
        return False


class Asha:
    """Asynchronous successive halving as in Ray Tune: by default reduction 3 from one epoch on.

    A trial is measured by those that came to its rung before it.
    """

    def __init__(self, rungs: Sequence[int] = (1, 3, 9, 27), reduction: float = 3.0) -> None:
        self.rungs: dict[int, list[float]] = {epoch: [] for epoch in rungs}
        self.reduction = reduction

    def stops(self, epoch: int, accuracy: float) -> bool:
        if epoch not in self.rungs:
            return False
        seen = self.rungs[epoch]
        cutoff = float(np.quantile(seen, 1 - 1 / self.reduction)) if seen else -math.inf
        seen.append(accuracy)
        return accuracy < cutoff


def peer_study(problem: Problem, sampler: str, pruner: str, seed: int, spend: float) -> Answer:
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    samplers: dict[str, Callable[[], Any]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    epochs = problem.milestones
    pruners: dict[str, Callable[[], Any]] = {
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, epochs, 3),
        "median": optuna.pruners.MedianPruner,
        "asha": optuna.pruners.NopPruner,
        "none": optuna.pruners.NopPruner,
    }
    study = optuna.create_study(
        direction="maximize", sampler=samplers[sampler](), pruner=pruners[pruner]()
    )
    return Peer(problem, study, seed, Asha() if pruner == "asha" else None).run(spend)


# --- what is reported -----------------------------------------------------------------------------

METHODS: dict[str, tuple[str, str, str]] = {
    "the default": ("default", "auto", "convergence"),
    "the default without races": ("ours", "auto", "convergence"),
    "the default without races, with a baseline": ("based", "auto", "convergence"),
    f"the default of {FEW} trials, with a baseline": ("few", "auto", "convergence"),
    "widening, with a baseline": ("based", "widening", "convergence"),
    "random, capped, with a baseline": ("based", "random", "slower_than_best"),
    "tpe, capped, with a baseline": ("based", "tpe", "slower_than_best"),
    "random, none": ("ours", "random", "none"),
    "random, capped": ("ours", "random", "slower_than_best"),
    "random, bottom half": ("ours", "random", "bottom_at_same_time"),
    "tpe, capped": ("ours", "tpe", "slower_than_best"),
    "tpe, bottom half": ("ours", "tpe", "bottom_at_same_time"),
    "gp, capped": ("ours", "gp", "slower_than_best"),
    "policy:elite, capped": ("ours", "policy:elite", "slower_than_best"),
    "policy:elite, bottom half": ("ours", "policy:elite", "bottom_at_same_time"),
    "convergence, none": ("ours", "convergence", "none"),
    "convergence, capped": ("ours", "convergence", "slower_than_best"),
    "convergence, bottom half": ("ours", "convergence", "bottom_at_same_time"),
    "random, forecast": ("ours", "random", "forecast"),
    "random, asha": ("ours", "random", "asha"),
    "random, hyperband": ("ours", "random", "hyperband"),
    "tpe, forecast": ("ours", "tpe", "forecast"),
    "convergence, forecast": ("ours", "convergence", "forecast"),
    "convergence, asha": ("ours", "convergence", "asha"),
    "convergence, hyperband": ("ours", "convergence", "hyperband"),
    **{
        f"{sampler}, capped, effective lr": ("effective", sampler, "slower_than_best")
        for sampler in ("random", "tpe", "gp", "policy:elite", "convergence")
    },
    "Optuna random + Hyperband": ("peer", "random", "hyperband"),
    "Optuna TPE": ("peer", "tpe", "none"),
    "Optuna TPE + median": ("peer", "tpe", "median"),
    "Optuna TPE + Hyperband": ("peer", "tpe", "hyperband"),
    "Optuna GP + median": ("peer", "gp", "median"),
    "Optuna GP + Hyperband": ("peer", "gp", "hyperband"),
    "Ray Tune's rule (ASHA, TPE)": ("peer", "tpe", "asha"),
    **{name: ("package", name, "") for name in peers.available()},
}


STUDIES = {
    "ours": our_study,
    "default": default_study,
    "based": based_study,
    "few": few_study,
    "effective": effective_study,
    "peer": peer_study,
}


def compared(
    problem: Problem, methods: Sequence[str], seed: int, spends: Sequence[float]
) -> dict[str, list[Answer]]:
    """All methods on one task and seed: what each has found after each spend, in limits."""
    found: dict[str, list[Answer]] = {name: [] for name in methods}
    for name, answers in found.items():
        kind, sampler, pruner = METHODS[name]
        for spend in reversed(spends):
            if not answers:
                begin, whole = time.process_time(), spend * problem.target.limit
                if kind == "package":
                    answer = peers.study(problem, sampler, seed, whole)
                else:
                    answer = STUDIES[kind](problem, sampler, pruner, seed, whole)
                took = time.process_time() - begin
            made = measures(problem, answer, spend * problem.target.limit)
            made |= {"cpu": took, "spend": spend}
            if spend * problem.target.limit < whole:  # these are of the whole study
                made |= {"trials": None, "saved": None}
            answers.append(made)
    return found


def measures(problem: Problem, answer: Answer, spend: float) -> Answer:
    """What a study has found after so many seconds of tuning time."""
    leaders: Leaders = answer["leaders"] if "leaders" in answer else fastest(answer["found"])
    incumbents = [(since, min(problem.judge(c), problem.target.limit)) for since, c in leaders]

    def regret(by: float) -> float:
        known = [worth for at_second, worth in incumbents if at_second <= by]
        return (known[-1] if known else problem.target.limit) / problem.best

    def until(factor: float) -> float | None:
        good = factor * problem.best
        times = [
            at_second for at_second, worth in incumbents if worth <= good and at_second <= spend
        ]
        return min(times) / problem.target.limit if times else None

    return {
        "regret": regret(spend),
        "regret_quarter": regret(spend / 4),
        "until_25": until(1.25),
        "until_10": until(1.10),
        "trials": answer["trials"],
        **stopping(problem, answer["done"]),
    }


def fastest(found: Found) -> Leaders:
    """Who was the fastest when."""
    leaders, least = Leaders(), math.inf
    for at_second, seconds, config in found:
        if seconds < least:
            least = seconds
            leaders.append((at_second, config))
    return leaders


def stopping(problem: Problem, done: Sequence[Run]) -> Answer:
    """What stopping saved, of how many would-be winners, and how many it stopped."""
    if not problem.recorded or not done:
        return {"saved": None, "winners": None, "lost": None}
    good = [stopped for config, _, _, stopped in done if _is_good(problem, config)]
    saved = 1 - sum(run[1] for run in done) / sum(run[2] for run in done)
    return {"saved": saved, "winners": len(good), "lost": sum(good)}


def _is_good(problem: Problem, config: Config) -> bool:
    return problem.judge(config) <= 1.25 * problem.best


def searched(options: argparse.Namespace, chosen: Sequence[str]) -> Runs:
    """Every method on every task and seed that was asked for."""
    problems = recorded(options.data) if options.problem == "lcbench" else trained(options.by_mean)
    runs: Runs = {name: [] for name in chosen}
    first, tasks = options.first_seed, options.tasks or (1 if options.quick else len(problems))
    numbered = list(enumerate(problems))[options.first_task :][:tasks]
    for seed in range(first, first + (options.seeds or (1 if options.quick else 3))):
        for number, problem in numbered:
            # Another seed for each task: the first points must not be the same ones everywhere.
            found = compared(problem, chosen, 100 * seed + number, options.spend)
            print(f"{problem.name}, study {seed} done", file=sys.stderr, flush=True)
            for name, answers in found.items():
                runs[name] += [{**answer, "task": problem.name, "seed": seed} for answer in answers]
    return runs


def report(runs: Runs) -> None:
    """Print a table for each spend."""
    spends = sorted({answer["spend"] for own in runs.values() for answer in own})
    for spend in spends:
        print(f"\nafter {spend:g} limits")
        now = {name: [a for a in own if a["spend"] == spend] for name, own in runs.items()}
        print(table(now, spend))


def main() -> None:
    global WORKERS
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--problem", choices=("lcbench", "farm"), default="farm")
    parser.add_argument("--data", help="lcbench_dev.npz, its folder, or a file of its form")
    parser.add_argument("--first-task", type=int, default=0, help="number of the first task (0)")
    parser.add_argument("--tasks", type=int, help="how many tasks (all)")
    parser.add_argument("--seeds", type=int, help="studies of each (3)")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first study (0)")
    parser.add_argument(
        "--spend", type=float, nargs="+", default=[6.0], help="tuning time, in limits (6)"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="at once, of ours and Optuna")
    parser.add_argument("--methods", help="some of the methods, separated by ';'")
    parser.add_argument(
        "--by-mean", action="store_true", help="the farm: judge by the mean, a miss as the limit"
    )
    parser.add_argument("--seen", type=int, help="ended trials that tpe and gp look at (500, 250)")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="the table of several --json files"
    )
    options = parser.parse_args()
    if options.merge:
        report(merged(options.merge))
        return
    options.spend = sorted(set(options.spend))
    WORKERS = options.workers
    if options.seen:
        from autotune.algorithms.samplers import optuna as samplers

        samplers.TRIAL_LIMITS = dict.fromkeys(samplers.TRIAL_LIMITS, options.seen)
    if options.problem == "lcbench" and not options.data:
        parser.error("--problem lcbench needs --data")
    chosen = options.methods.split(";") if options.methods else list(METHODS)
    wrong = [name for name in chosen if name not in METHODS]
    if wrong:
        parser.error(f"unknown method {wrong[0]!r}; there are: {'; '.join(METHODS)}")
    about = introduce()
    if options.quick:
        options.spend = [0.1, 0.2]
        chosen = chosen if options.methods else ["random, capped", "Optuna TPE"]
    runs = searched(options, chosen)
    report(runs)
    keep(options.json, about, problem=options.problem, spend=options.spend, runs=runs)


if __name__ == "__main__" and not serve({}, sys.argv[1:]):
    main()
