"""SMAC3 and Syne Tune on the virtual workers of `search.py`, as they are used.

Eight workers run at once. All but one method maximise accuracy, milestone by milestone:

- `SMAC3 Hyperband`: SMAC3's multi-fidelity facade, by ask and tell. A configuration that it takes
  up again goes on where it stopped, which costs nothing twice.
- `SMAC3 capping`: SMAC3's facade for algorithm configuration with `adaptive_capping`; its cost is
  the time to target, and a run that does not get there before its cutoff is reported as a TIMEOUT
  of ten limits (PAR10, as is usual there).
- `Syne Tune ASHA`, `Syne Tune BOHB`: Syne Tune's asynchronous successive halving, alone and with
  kernel densities; a stop is a stop. (0.16 has no MOBSTER any more, and its halving with conformal
  quantiles takes minutes for a study of a hundred trials.)

A configuration counts as found when its running trial first meets the target. `pip install smac
syne-tune`; their requirements do not go together with every version of ours, so an environment of
their own may be needed.
"""

from __future__ import annotations

import heapq
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from _shared import Answer, missing

import autotune as at
from autotune.study.driver.settings import trial_seed

WORKERS = 8
METRIC, EPOCH = "accuracy", "epoch"
Params = dict[str, Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One configuration's curve: seconds of each milestone, and its accuracy when it is asked."""

    config: Config
    seconds: Sequence[float]
    accuracy: Callable[[int], float]


@dataclass(frozen=True)
class Race:
    """What a peer searches.

    Args:
        run: the curve of a point of `space`; the number is the trial's.
    """

    space: at.SearchSpace
    run: Callable[[Params, int], Run]
    target: float
    limit: float
    milestones: int


def race(problem: Any, seed: int) -> Race:
    """Of a `search.Problem`; the seed is that of the trainings, together with a trial's number."""
    space, simulate, target = problem.space, problem.simulate(), problem.target

    def run(params: Params, number: int) -> Run:
        config = space.config(params)
        points = simulate(config, trial_seed(seed, number)).points
        seconds = [p.seconds for p in points]
        return Run(config, seconds, lambda i: float(points[i].metrics[target.metric]))

    return Race(space, run, target.value, target.limit, problem.milestones)


@dataclass
class Job:
    """A trial on a worker: what the peer calls it, and where it stands."""

    token: Any
    run: Run
    next: int = 0
    reached: float | None = None

    def done(self) -> tuple[Config, float, float, bool]:
        """Where it was stopped, as `search.Run` has it; a whole run goes on past its target."""
        spent, whole = float(self.run.seconds[self.next - 1]), float(self.run.seconds[-1])
        return self.run.config, spent, whole, spent < whole and self.reached is None


@dataclass
class Workers:
    """Eight asynchronous workers on a virtual clock."""

    race: Race
    found: list[tuple[float, float, Config]] = field(default_factory=list)
    started: int = 0
    jobs: list[Job] = field(default_factory=list)

    def drive(
        self, ask: Callable[[], Job], stops: Callable[[Job, int, float], bool], spend: float
    ) -> Answer:
        """Ask for jobs and train them; `stops(job, milestone, accuracy)` says whether one ends."""
        agenda: list[tuple[float, int, Job]] = []
        count, now = 0, 0.0
        while now <= spend:
            while len(agenda) < WORKERS:
                count += 1
                job = ask()
                heapq.heappush(agenda, (now + self._next_stretch(job), count, job))
            now, order, job = heapq.heappop(agenda)
            if now > spend:
                break
            milestone, job.next = job.next, job.next + 1
            accuracy = job.run.accuracy(milestone)
            spent = float(job.run.seconds[milestone])
            if accuracy >= self.race.target and job.reached is None and spent < self.race.limit:
                job.reached = spent
                self.found.append((now, spent, job.run.config))
            if not stops(job, milestone, accuracy):
                heapq.heappush(agenda, (now + self._next_stretch(job), order, job))
        running = [id(job) for _, _, job in agenda]
        done = [job.done() for job in self.jobs if id(job) not in running and job.next]
        return {"found": self.found, "trials": self.started, "done": done}

    def job(self, token: Any, params: Params) -> Job:
        self.started += 1
        self.jobs.append(Job(token, self.race.run(params, self.started - 1)))
        return self.jobs[-1]

    def _next_stretch(self, job: Job) -> float:
        before = float(job.run.seconds[job.next - 1]) if job.next else 0.0
        return float(job.run.seconds[job.next]) - before


# --- Syne Tune ------------------------------------------------------------------------------------


def syne_tune(race: Race, method: str, seed: int, spend: float) -> Answer:
    """One of its asynchronous successive halvings, over milestones 1, 3, 9, 27."""
    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer.baselines import ASHA, BOHB
    from syne_tune.optimizer.scheduler import SchedulerDecision

    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    kinds = {"asha": ASHA, "bohb": BOHB}
    scheduler = kinds[method](
        syne_tune_space(race.space),
        metric=METRIC,
        time_attr=EPOCH,
        max_t=race.milestones,
        do_minimize=False,
        random_seed=seed,
    )
    workers = Workers(race)

    def ask() -> Job:
        drawn = scheduler.suggest().config
        trial = Trial(workers.started, drawn, datetime.now())
        scheduler.on_trial_add(trial)
        return workers.job(trial, point_of(race.space, drawn))

    def stops(job: Job, milestone: int, accuracy: float) -> bool:
        result = {METRIC: accuracy, EPOCH: milestone + 1}
        decision = scheduler.on_trial_result(job.token, result)
        if decision == SchedulerDecision.CONTINUE:
            return False
        scheduler.on_trial_remove(job.token)
        return True

    return workers.drive(ask, stops, spend)


def syne_tune_space(space: at.SearchSpace) -> Params:
    """Its kinds of the parameters; without conditions: what is not active is drawn for nothing."""
    from syne_tune import config_space as cs

    made: Params = {}
    for name, parameter in space.parameters().items():
        if isinstance(parameter, at.Choice):
            made[name] = cs.choice(list(parameter.options))
            continue
        low, high, log = _range(parameter)
        if isinstance(parameter, at.Int):
            made[name] = (cs.lograndint if log else cs.randint)(low, high)
        else:
            made[name] = (cs.loguniform if log else cs.uniform)(low, high)
    return made


# --- SMAC3 ----------------------------------------------------------------------------------------


def smac_hyperband(race: Race, seed: int, spend: float) -> Answer:
    """Its multi-fidelity facade: milestones are the budget, the error is the cost."""
    from smac import MultiFidelityFacade
    from smac.runhistory.dataclasses import TrialValue

    budgets = {"min_budget": 1, "max_budget": race.milestones}
    with _smac(MultiFidelityFacade, race, seed, budgets) as facade:
        workers = Workers(race)
        stopped: dict[Any, Job] = {}

        def ask() -> Job:
            info = facade.ask()
            old = stopped.get(info.config)
            if old is None:
                return workers.job(info, point_of(race.space, info.config))
            old.token = info
            return old

        def stops(job: Job, milestone: int, accuracy: float) -> bool:
            if milestone + 1 < min(round(job.token.budget), race.milestones):
                return False
            facade.tell(job.token, TrialValue(cost=1 - accuracy), save=False)
            stopped[job.token.config] = job
            return True

        return workers.drive(ask, stops, spend)


def smac_capping(race: Race, seed: int, spend: float) -> Answer:
    """Its facade for algorithm configuration: the cost is the time to target, capped adaptively."""
    from smac import AlgorithmConfigurationFacade
    from smac.runhistory.dataclasses import TrialValue
    from smac.runhistory.enumerations import StatusType

    capping = {"adaptive_capping": True, "runtime_cutoff": math.ceil(race.limit)}
    with _smac(AlgorithmConfigurationFacade, race, seed, capping) as facade:
        workers = Workers(race)

        def ask() -> Job:
            info = facade.ask()
            return workers.job(info, point_of(race.space, info.config))

        def stops(job: Job, milestone: int, accuracy: float) -> bool:
            spent = float(job.run.seconds[milestone])
            if job.reached is not None:
                value = TrialValue(cost=job.reached, time=job.reached)
            elif spent >= _cutoff(job.token, race.limit) or milestone + 1 == race.milestones:
                value = TrialValue(cost=10 * race.limit, time=spent, status=StatusType.TIMEOUT)
            else:
                return False
            facade.tell(job.token, value, save=False)
            return True

        return workers.drive(ask, stops, spend)


def _cutoff(info: Any, limit: float) -> float:
    return min(float(info.additional_info.get("cutoff", limit)), limit)


class _smac:  # noqa: N801 (used as a function)
    """A facade that is used by ask and tell, with its files in a folder that is removed."""

    def __init__(self, kind: Any, race: Race, seed: int, settings: Mapping[str, Any]) -> None:
        self.kind, self.race, self.seed, self.settings = kind, race, seed, settings

    def __enter__(self) -> Any:
        from smac import Scenario

        self.folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            _smac_space(self.race.space, self.seed),
            deterministic=True,
            n_trials=100_000,
            seed=self.seed,
            output_directory=self.folder.name,
            **self.settings,
        )
        first = self.kind.get_initial_design(scenario, **self._first())
        logging.getLogger("smac").setLevel(logging.ERROR)
        return self.kind(
            scenario, _unused, initial_design=first, logging_level=False, overwrite=True
        )

    def _first(self) -> dict[str, Any]:
        """Its usual first points, but not a quarter of 100 000 trials of them."""
        names = self.kind.get_initial_design.__kwdefaults__ or {}
        return {"n_configs_per_hyperparameter": 2} if "max_ratio" in names else {}

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()


def _unused(config: Any, seed: int = 0, budget: float = 0, cutoff: float = 0) -> float:
    """Stands for the function that SMAC3 would call itself."""
    raise RuntimeError("it is used by ask and tell")


def _smac_space(space: at.SearchSpace, seed: int) -> Any:
    import ConfigSpace as cs  # noqa: N813

    made = cs.ConfigurationSpace(seed=seed)
    for name, parameter in space.parameters().items():
        if isinstance(parameter, at.Choice):
            made.add(cs.Categorical(name, list(parameter.options)))
        else:
            kind = cs.Integer if isinstance(parameter, at.Int) else cs.Float
            low, high, log = _range(parameter)
            made.add(kind(name, (low, high), log=log))
        for parent, wanted in (parameter.when or {}).items():
            values = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
            made.add(cs.InCondition(made[name], made[parent], values))
    return made


# --- both -----------------------------------------------------------------------------------------


def _range(parameter: at.Float | at.Int) -> tuple[Any, Any, bool]:
    """Powers of two are searched as their exponents."""
    if isinstance(parameter, at.Int) and parameter.power_of_two:
        return parameter.low.bit_length() - 1, parameter.high.bit_length() - 1, False
    return parameter.low, parameter.high, parameter.log


def point_of(space: at.SearchSpace, drawn: Mapping[str, Any]) -> Params:
    """A peer's configuration as a point of our space."""

    def value(name: str, parameter: Any) -> Any:
        if isinstance(parameter, at.Choice):
            return next(o for o in parameter.options if o == drawn[name])
        if isinstance(parameter, at.Int):
            return 2 ** int(drawn[name]) if parameter.power_of_two else int(drawn[name])
        return min(max(float(drawn[name]), parameter.low), parameter.high)

    return space.suggest(value)


METHODS: dict[str, tuple[str, Callable[[Race, int, float], Answer]]] = {
    "SMAC3 Hyperband": ("smac", smac_hyperband),
    "SMAC3 capping": ("smac", smac_capping),
    "Syne Tune ASHA": ("syne_tune", lambda *a: syne_tune(a[0], "asha", *a[1:])),
    "Syne Tune BOHB": ("syne_tune", lambda *a: syne_tune(a[0], "bohb", *a[1:])),
}


def available() -> list[str]:
    """The methods whose packages are installed."""
    return [name for name, (module, _) in METHODS.items() if not missing(module)]


def study(problem: Any, method: str, seed: int, spend: float) -> Answer:
    """One study of a peer.

    Args:
        problem: a `search.Problem`.
        method: a name in `METHODS`.
        spend: virtual seconds of tuning.

    Returns:
        `found`: (tuning time, time to target, configuration) of each trial that met the target;
        `trials`: how many configurations were begun; `done`: those that ended, each with its
        seconds, those of a whole run, and whether it was stopped before it met the target.
    """
    warnings.simplefilter("ignore")
    np.random.seed(seed)
    return METHODS[method][1](race(problem, seed), seed, spend)
