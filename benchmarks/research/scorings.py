"""How a search may score a trial that was stopped: ways from the literature, and ours.

    python benchmarks/research/scorings.py --data FOLDER [--tasks 5] [--seeds 2] [--spend 6]

All are samplers on the recorded curves of `search.py`, with eight workers and capping, that draw at
random until 16 trials have ended. After every fourth one a model is fitted to the 60 fastest and
the 60 newest; it picks one of 200 even candidates and 100 around the ten best ones.

With one Gaussian process (`samplers.gaussian_process`) and a lower confidence bound of random
width, on normal scores of

- `best metric`: seconds of those that reached the target, then the others by best metric
  (`Target.score`, what Optuna's samplers receive);
- `equal seconds`: `autotune.algorithms.ranking.equal_time`, what `convergence` uses;
- `extrapolated`: the time at which a line through the later half of a trial's gaps to the target
  over log time meets it;
- `imputed`: log seconds, those of censored trials replaced by the truncated predictive mean, three
  times over (Hutter et al. 2011, arXiv 1310.1947).

With ten small networks on log seconds:

- `Tobit, Thompson`: a normal likelihood, of a censored trial its tail (after Eggensperger et al.
  2020, arXiv 2009.13828); a proposal is the best of one network's means;
- `mixture cure`: a trial reaches the target with probability pi and then at log-normal time: log pi
  + log N for those that did, log(1 - pi + pi S(c)) for censored ones; expected improvement over
  the incumbent per expected cost E[min(T, cap)], by three of the ten networks for each proposal.

`TPE, best metric` and `TPE, equal seconds` are Optuna's TPE with the same two orders.

The table's columns are those of `search.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import search
import torch
from _shared import Answer, arguments, introduce, keep
from _tables import row

import autotune as at
from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.samplers.elite import informative_trials
from autotune.algorithms.samplers.gaussian_process import Array, Process, fit, prior_medians
from autotune.algorithms.samplers.optuna import OptunaSampler
from autotune.space.encoding import Encoder, rank_score
from autotune.space.parameters import Parameter, drawn
from autotune.trial import Params, State, Target, Trial, incumbent

FIRST, EVERY, FASTEST, NEWEST = 16, 4, 60, 60
EVEN, AROUND, BEST = 200, 100, 10
LATEST = math.log(10.0)  # of a predicted time, in limits
MEMBERS, HIDDEN, STEPS, RATE, DECAY = 10, 32, 250, 0.01, 1e-3
ASKED = 3  # of the members, by a mixture's proposal
NORMAL = torch.distributions.Normal(0.0, 1.0)
Pick = Callable[[Array, Random], int]


class Scored:
    """A sampler around a model: `fit(rows, trials, target)` gives what picks among rows."""

    def __init__(
        self, fit: Callable[..., Pick], space: at.SearchSpace, target: Target, seed: int
    ) -> None:
        self.fit, self.space, self.target, self.seed = fit, space, target, seed
        self.encoder = Encoder(space)
        self.known: tuple[int, Pick] | None = None

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        random, done = Random(f"{self.seed}/{number}"), informative_trials(trials)
        if len(done) < FIRST:
            return self._even(random)
        count = len(done) - len(done) % EVERY
        if self.known is None or self.known[0] != count:
            seen = self._seen(done[:count])
            torch.manual_seed(self.seed + count)
            rows = self.encoder.rows([t.params or {} for t in seen])
            self.known = count, self.fit(rows, seen, self.target)
        best = sorted(done, key=lambda t: self.target.score(t) or math.inf)[:BEST]
        points = [self._even(random) for _ in range(EVEN)]
        points += [self._around(random.choice(best).params or {}, random) for _ in range(AROUND)]
        return points[self.known[1](self.encoder.rows(points), random)]

    def _even(self, random: Random) -> Params:
        return self.space.suggest(lambda _, parameter: drawn(parameter, random))

    def _around(self, point: Params, random: Random) -> Params:
        """A point that differs in about a third of its values, by a tenth of their range."""
        from autotune.space.encoding import unit_of, value_at

        def value(name: str, parameter: Parameter) -> Any:
            if name not in point or isinstance(parameter, at.Choice):
                keeps = name in point and random.random() < 0.8
                return point[name] if keeps else drawn(parameter, random)
            if random.random() < 0.67:
                return point[name]
            unit = unit_of(parameter, point[name]) + random.gauss(0.0, 0.1)
            return value_at(parameter, min(max(unit, 0.0), 1.0))

        return self.space.suggest(value)

    def _seen(self, done: Sequence[Trial]) -> list[Trial]:
        reached = sorted((t for t in done if t.state is State.REACHED), key=lambda t: t.seconds)
        kept = {t.number for t in (*reached[:FASTEST], *done[-NEWEST:])}
        return [t for t in done if t.number in kept]


# --- scores for one and the same Gaussian process -------------------------------------------------


def normal_scores(order: Mapping[int, float]) -> dict[int, float]:
    """Normal scores of trials by what they are ordered by; ties share theirs."""
    ranked = sorted(order.values())
    count = len(ranked)
    middle = {v: ranked.index(v) + (ranked.count(v) - 1) / 2 for v in set(ranked)}
    return {n: rank_score(middle[v] / max(count - 1, 1), count) for n, v in order.items()}


def best_metric(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    scores = {t.number: target.score(t) for t in trials}
    return {n: 3 * target.limit if s is None else s for n, s in scores.items()}


def extrapolated(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    return {t.number: t.seconds if t.state is State.REACHED else _meets(t, target) for t in trials}


def _meets(trial: Trial, target: Target) -> float:
    """When the line through the later half of the gaps over log time is at 0: at most 10 limits."""
    seen = [r for r in trial.reports if target.metric in r.metrics and r.seconds > 0]
    seen = seen[len(seen) // 2 :]
    latest = 10 * target.limit
    if len(seen) < 2:
        return latest
    time = np.log([r.seconds for r in seen])
    gap = np.array([target.shortfall(r.metrics[target.metric]) for r in seen])
    if not np.isfinite(gap).all() or np.ptp(time) == 0:
        return latest
    slope, level = np.polyfit(time, gap, 1)
    if slope >= 0:
        return latest
    return float(np.clip(math.exp(min(-level / slope, 50.0)), trial.seconds, latest))


def by_order(
    order: Callable[..., dict[int, float]], rows: Array, trials: Sequence[Trial], target: Target
) -> Pick:
    scores = normal_scores(order(trials, target))
    values = np.array([scores[t.number] for t in trials])
    ones = np.ones(len(values))
    return _bound(Process(rows, values, ones, fit(rows, values, ones)))


def imputed(rows: Array, trials: Sequence[Trial], target: Target) -> Pick:
    times, censored = log_times(trials, target)
    ones, values = np.ones(len(times)), times.copy()
    centre, scale = values.mean(), values.std() + 1e-6
    for _ in range(3 if censored.any() else 1):
        scaled = (values - centre) / scale
        hyper = fit(rows, scaled, ones) if len(rows) >= FIRST else prior_medians(rows.shape[1])
        process = Process(rows, scaled, ones, hyper)
        mean, spread = process.at(rows[censored])
        mean, spread = centre + scale * mean, scale * np.maximum(spread, 0.05)
        values[censored] = truncated_mean(mean, spread, times[censored])
    scaled = (values - centre) / scale
    return _bound(Process(rows, scaled, ones, hyper))


def truncated_mean(mean: Array, spread: Array, bound: Array) -> Array:
    """Of normal variables that are known to be above their bounds; at most ten limits.

    >>> float(truncated_mean(np.zeros(1), np.ones(1), np.zeros(1)).round(3)[0])
    0.798
    """
    from scipy.stats import norm

    place = (bound - mean) / spread
    ratio = np.exp(norm.logpdf(place) - norm.logsf(place))
    above: Array = np.clip(mean + spread * ratio, bound, LATEST)
    return above


def log_times(trials: Sequence[Trial], target: Target) -> tuple[Array, np.ndarray]:
    """Log seconds, in limits, and which are bounds only; a failed trial's is the limit."""
    failed = (State.FAILED, State.INFEASIBLE)
    seconds = [target.limit if t.state in failed else t.seconds for t in trials]
    times = np.log(np.maximum(seconds, 1e-4 * target.limit) / target.limit)
    return times, np.array([t.state is not State.REACHED for t in trials])


def _bound(process: Process) -> Pick:
    def pick(rows: Array, random: Random) -> int:
        expected, unsure = process.at(rows)
        return int((expected - random.expovariate(1.0) * unsure).argmin())

    return pick


# --- ensembles of networks ------------------------------------------------------------------------


class Ensemble:
    """Ten networks of two hidden layers, all at once; each sees its own bootstrap weights."""

    def __init__(self, features: int, outputs: int) -> None:
        sizes = (features, HIDDEN, HIDDEN, outputs)
        self.weights = [
            (torch.randn(MEMBERS, a, b) / math.sqrt(a)).requires_grad_() for a, b in pairwise(sizes)
        ]
        self.biases = [torch.zeros(MEMBERS, 1, b, requires_grad=True) for b in sizes[1:]]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = rows.expand(MEMBERS, *rows.shape)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = hidden if i == last else torch.nn.functional.silu(hidden)
        return hidden

    def fit(self, rows: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        optimizer = torch.optim.AdamW(self.weights + self.biases, lr=RATE, weight_decay=DECAY)
        share = torch.poisson(torch.ones(MEMBERS, len(rows)))
        for _ in range(STEPS):
            optimizer.zero_grad()
            (share * loss(self(rows))).mean(1).sum().backward()
            optimizer.step()


def spreads(raw: torch.Tensor) -> torch.Tensor:
    return 0.05 + torch.nn.functional.softplus(raw)


def log_tail(place: torch.Tensor) -> torch.Tensor:
    return torch.special.log_ndtr(-place)


def tobit(rows: Array, trials: Sequence[Trial], target: Target) -> Pick:
    times, censored = (torch.from_numpy(a) for a in log_times(trials, target))
    network, known = Ensemble(rows.shape[1], 2), torch.from_numpy(rows).float()

    def loss(out: torch.Tensor) -> torch.Tensor:
        spread = spreads(out[..., 1])
        place = (times.float() - out[..., 0]) / spread
        return -torch.where(censored, log_tail(place), NORMAL.log_prob(place) - spread.log())

    network.fit(known, loss)

    @torch.no_grad()
    def pick(candidates: Array, random: Random) -> int:
        means = network(torch.from_numpy(candidates).float())[..., 0]
        return int(means[random.randrange(MEMBERS)].argmin())

    return pick


def mixture_cure(rows: Array, trials: Sequence[Trial], target: Target) -> Pick:
    times, censored = (torch.from_numpy(a) for a in log_times(trials, target))
    network, known = Ensemble(rows.shape[1], 3), torch.from_numpy(rows).float()
    best = incumbent(trials)
    cap = math.log((best.seconds if best else target.limit) / target.limit)

    def loss(out: torch.Tensor) -> torch.Tensor:
        spread, log_pi = spreads(out[..., 1]), torch.nn.functional.logsigmoid(out[..., 2])
        place = (times.float() - out[..., 0]) / spread
        log_not = torch.nn.functional.logsigmoid(-out[..., 2])
        unmet = torch.logaddexp(log_not, log_pi + log_tail(place))
        return -torch.where(censored, unmet, log_pi + NORMAL.log_prob(place) - spread.log())

    network.fit(known, loss)
    places = NORMAL.icdf((torch.arange(64) + 0.5) / 64)

    @torch.no_grad()
    def pick(candidates: Array, random: Random) -> int:
        asked = random.sample(range(MEMBERS), ASKED)
        out = network(torch.from_numpy(candidates).float())[asked]
        pi = torch.sigmoid(out[..., 2:])
        seconds = (out[..., :1] + spreads(out[..., 1:2]) * places).clamp(max=20.0).exp()
        end = math.exp(cap)
        gain = (pi * (end - seconds).clamp(min=0.0)).mean(-1)
        cost = (pi * seconds.clamp(max=end) + (1 - pi) * end).mean(-1)
        return int((gain.mean(0) / cost.mean(0)).argmax())

    return pick


SCORINGS: dict[str, Callable[..., Pick]] = {
    "best metric": partial(by_order, best_metric),
    "equal seconds": partial(by_order, equal_time_ranks),
    "extrapolated": partial(by_order, extrapolated),
    "imputed": imputed,
    "Tobit, Thompson": tobit,
    "mixture cure": mixture_cure,
}


class Placed:
    """Optuna's TPE, to which every trial that ended is one that took as long as it stands."""

    def __init__(self, space: at.SearchSpace, target: Target, seed: int) -> None:
        self._sampler, self._target = OptunaSampler("tpe", space, target, seed), target

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        places = equal_time_ranks(trials, self._target)

        def placed(trial: Trial) -> Trial:
            if trial.state not in (State.REACHED, State.CENSORED):
                return trial
            seconds = places.get(trial.number, 1.0) * self._target.limit
            return replace(trial, state=State.REACHED, seconds=seconds)

        return self._sampler.ask(number, [placed(t) for t in trials])


TPE = {"TPE, best metric": partial(OptunaSampler, "tpe"), "TPE, equal seconds": Placed}
SHIPPED = ("random, capped", "convergence, capped")


def studied(problem: search.Problem, name: str, seed: int, spend: float) -> Answer:
    """One study, capped; `spend` in seconds."""
    if name in SHIPPED:
        sampler: Any = search.METHODS[name][1]
    elif name in TPE:
        sampler = TPE[name](problem.space, problem.target, seed)
    else:
        sampler = Scored(SCORINGS[name], problem.space, problem.target, seed)
    answer = search.our_study(problem, sampler, "slower_than_best", seed, spend)
    return search.measures(problem, answer, spend)


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--data", help="folder of lcbench_dev.npz; without, the farm's tasks")
    parser.add_argument("--tasks", type=int, help="how many tasks (5)")
    parser.add_argument("--seeds", type=int, help="studies of each (2)")
    parser.add_argument("--spend", type=float, default=6.0, help="tuning time, in limits (6)")
    rows = (*SCORINGS, *TPE, *SHIPPED)
    parser.add_argument("--rows", nargs="+", choices=rows, metavar="ROW", help="of the table (all)")
    options = parser.parse_args()
    about, names = introduce(), options.rows or rows
    problems = search.recorded(options.data) if options.data else search.trained()
    problems = problems[: options.tasks or (1 if options.quick else 5)]
    spend = 0.2 if options.quick else options.spend
    runs: dict[str, list[Answer]] = {name: [] for name in names}
    for seed in range(options.seeds or (1 if options.quick else 2)):
        for number, problem in enumerate(problems):
            for name in names:
                seconds = spend * problem.target.limit
                found = studied(problem, name, 100 * seed + number, seconds)
                runs[name].append({**found, "task": problem.name, "seed": seed, "cpu": 0.0})
            print(f"{problem.name}, study {seed} done", file=sys.stderr, flush=True)
    heads = ("regret @1/4", "regret", "until 25 % (found)", "until 10 % (found)", "trials")
    print("  ".join(("scoring".rjust(29), *heads)))
    for name in names:
        print(row(name, runs[name], spend))
    keep(options.json, about, spend=spend, runs=runs)


if __name__ == "__main__":
    main()
