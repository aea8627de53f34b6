"""Learning which running trials will hardly be the fastest so far, for the pruner `policy`.

In a simulated study it is known of each running trial how long it would take. So the network learns
to predict, whenever a trial passes one of `MARKS`, whether it is faster than the fastest so far:
first in studies whose trials end at their target or cap alone, then in studies that it prunes
itself (Ross et al. 2011, arXiv 1011.0686).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autotune.algorithms.experience.known_task import MARKS, Array
from autotune.algorithms.pruners.policy import Curve, bar, inputs
from autotune.algorithms.samplers.trained_policy import network
from autotune.algorithms.samplers.trained_policy.network import STOP_SHAPES
from autotune.evaluation.policy_training import settings, torch_network
from autotune.evaluation.policy_training.learning import Say
from autotune.evaluation.policy_training.simulation import Run, Study
from autotune.evaluation.policy_training.tables import Table

SHARE = 4
"""One simulated study for so many in which the sampler is trained."""
_CANDIDATES, _TRIALS = 96, 40  # of a simulated study
_STUDIES = 20  # of which the progress is looked at once
_ROUNDS = 3
_PRUNED, _GREEDY = 0.8, 0.7  # shares of the studies: pruned by the network, led by the posterior
_FACTORS = 0.3, 3.0  # of the chance of a new trial, in studies that the network prunes
_EPOCHS, _BATCH, _RATE = 6, 256, 3e-3
_SPREAD = 1e-6  # of an input, at least


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen of a running trial at a mark, and whether it would be the fastest so far."""

    inputs: Array
    won: bool


@dataclass
class _Running(Run):
    curve: Array  # until each of `MARKS`, as this run has it
    mark: int = 0  # the next one


class PrunedStudy(Study):
    """A simulated study whose running trials are looked at whenever they pass one of `MARKS`.

    Args:
        prune: whether to stop a trial, from the network's inputs and the number of ended trials;
            None stops none before its cap.
    """

    def __init__(
        self, *given: Any, prune: Callable[[Array, int], bool] | None = None, **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self.prune = prune
        self.looks: list[Look] = []
        self._ended: list[Curve] = []

    def _begun(self, row: int) -> Run:
        run = super()._begun(row)
        base, shift = self.setting.curves[row], 0.0
        if math.isfinite(run.time):
            shift = math.log(run.time / self.setting.times[row])
        known, logs = np.isfinite(base), np.log(MARKS)
        curve = base
        if known.any():  # what was not seen of the row at first is not seen of its run
            curve = np.interp(logs - shift, logs[known], base[known], left=base[0])
        return _Running(run.row, run.start, run.time, math.inf, curve)

    def _end_next(self) -> None:
        while (run := self._next_mark()) is not None:
            self.clock = max(run.start + MARKS[run.mark], self.clock)
            run.mark += 1
            self._look(run)
        runs = {run.row: run for run in self.running}
        super()._end_next()
        ended = _curve(self.curves[-1], self.ends[-1])
        if self.reached[-1]:
            ended = _reached(ended, runs[self.rows[-1]], self.ends[-1])
        self._ended.append(ended)

    def _seen_of(self, run: Run, seen: Any) -> Array:
        assert isinstance(run, _Running)
        return np.asarray(run.curve[seen])

    def _next_mark(self) -> _Running | None:
        """The run that passes a mark next, if none ends before."""
        runs = [run for run in self.running if isinstance(run, _Running)]
        passing = [run for run in runs if run.mark < len(MARKS)]
        first = min(passing, key=lambda run: run.start + MARKS[run.mark], default=None)
        if first is None or first.start + MARKS[first.mark] >= min(map(self._end_of, runs)):
            return None
        return first

    def _look(self, run: _Running) -> None:
        now = float(MARKS[run.mark - 1])
        others = list(self._ended)
        others += [
            _curve(other.curve[: other.mark], float(MARKS[other.mark - 1]))
            for other in self.running
            if other is not run and isinstance(other, _Running) and other.mark
        ]
        seen = inputs(now, _curve(run.curve[: run.mark], now), others, len(self.ends))
        if seen is None:
            return
        self.looks.append(Look(seen, run.time < self.best))
        if self.prune is not None and self.prune(seen, len(self.ends)):
            run.stop = now


def _curve(values: Array, until: float) -> Curve:
    """The curve of the best metric until each of the first of `MARKS`."""
    known = np.flatnonzero(np.isfinite(values))
    gaps = -np.maximum.accumulate(values[known])
    return Curve(MARKS[known].tolist(), gaps.tolist(), until * (1 + 1e-9))


def _reached(curve: Curve, run: Run, took: float) -> Curve:
    """The curve with its last report, at which the target was reached."""
    assert isinstance(run, _Running)
    known = np.isfinite(run.curve)
    if not known.any():
        return replace(curve, took=took)
    last = -float(np.interp(math.log(took), np.log(MARKS)[known], run.curve[known]))
    gaps = [*curve.gaps, min([last, *curve.gaps])]
    return replace(curve, times=[*curve.times, took], gaps=gaps, took=took)


# --- learning -------------------------------------------------------------------------------------


def train(
    tables: Sequence[Table], seed: int, until: Callable[[int], float], say: Say = print
) -> network.Weights:
    """Weights of the pruner's network; the arguments are those of `learning.train`."""
    torch.set_num_threads(1)
    rng = np.random.default_rng((seed, 1))
    looks: list[Look] = []
    weights: network.Weights | None = None
    studies = 0
    for number in range(1, _ROUNDS + 1):
        while until(studies) < number / _ROUNDS or not looks:
            for _ in range(_STUDIES):
                looks += looked(tables[int(rng.integers(len(tables)))], weights, rng)
            studies += _STUDIES
        weights, loss = fitted(looks, seed)
        say(f"pruner: {studies} studies, {len(looks)} decisions, loss {loss:.3f}")
    assert weights is not None
    return weights


def looked(table: Table, weights: network.Weights | None, rng: np.random.Generator) -> list[Look]:
    """What was seen in a new study, which weights may prune."""
    setting = replace(settings.drawn(table, rng), pruner=0.0)
    low, high = np.log(_FACTORS)
    factor = math.exp(rng.uniform(low, high))
    pruned = weights is not None and rng.random() < _PRUNED

    def stops(seen: Array, ended: int) -> bool:
        return weights is not None and network.chance(weights, seen) < bar(ended, factor)

    prune = stops if pruned else None
    study = PrunedStudy(setting, rng, _CANDIDATES, _TRIALS, prune=prune)
    greedy = rng.random() < _GREEDY
    while not study.over:
        decision = study.decision()
        if greedy and rng.random() > decision.expected.none:
            place = int(decision.expected.gains.argmax())
        else:
            place = int(rng.integers(len(decision.rows)))
        study.run(int(decision.rows[place]))
    return study.looks


def fitted(looks: Sequence[Look], seed: int) -> tuple[network.Weights, float]:
    """Weights that predict who is the fastest so far, and the last epoch's mean log loss."""
    rows = np.stack([look.inputs for look in looks])
    mean, spread = rows.mean(axis=0), rows.std(axis=0) + _SPREAD
    seen = torch.tensor((rows - mean) / spread, dtype=torch.float32)
    won = torch.tensor([look.won for look in looks], dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    layers = {
        name: (math.sqrt(2.0 / shape[0]) * torch.randn(shape, generator=generator)).requires_grad_()
        for name, shape in STOP_SHAPES.items()
    }
    optimizer = torch.optim.Adam(list(layers.values()), lr=_RATE)
    steps = _EPOCHS * math.ceil(len(looks) / _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(_EPOCHS):
        total = 0.0
        for part in torch.split(torch.randperm(len(looks), generator=generator), _BATCH):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                torch_network.stop_logits(layers, seen[part]), won[part]
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(part)
    weights = torch_network.as_arrays(layers)
    first = weights["stop_1"].copy()  # it takes the inputs as they are
    first[:-1] /= spread[:, None]
    first[-1] -= mean @ first[:-1]
    return {**weights, "stop_1": first}, total / len(looks)
