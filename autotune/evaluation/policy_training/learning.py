"""Learning a policy: imitation of the posterior over known tasks, then reinforcement learning.

Imitation: the loss is the cross entropy to what the posterior proposes, at decisions of studies
that the policy itself drives in part (Ross et al. 2011, arXiv 1011.0686). Then several studies of
each drawn setting are simulated, and a decision is worth how much lower the log regret is
afterwards than in the other studies of the same setting, on the mean over `simulation.GRID`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from autotune.algorithms.experience.known_task import Array
from autotune.algorithms.samplers.trained_policy import network
from autotune.algorithms.samplers.trained_policy.inputs import Inputs
from autotune.evaluation.policy_training import settings, torch_network
from autotune.evaluation.policy_training.simulation import GRID, Decision, Study
from autotune.evaluation.policy_training.tables import Table
from autotune.evaluation.policy_training.torch_network import Layers

_CANDIDATES, _TRIALS = 96, 30  # of a simulated study
_SETTINGS, _TWINS = 6, 4  # settings of an iteration, and studies of each
_IMITATED = 0.3  # share of the training that imitates
_SHARPNESS = 20.0  # of the posterior's proposals: the power of the expected improvement
_BATCH = 64  # decisions
_PASSES, _CLIP = 2, 0.2
_IMITATION_RATE, _RATE = 2e-3, 5e-4  # learning rates


@dataclass(frozen=True, eq=False)
class Step:
    """A decision that was made: its inputs, the candidate taken, its log probability and worth."""

    inputs: Inputs
    taken: int
    log: float
    worth: float


Say = Callable[[str], None]
_T = TypeVar("_T", Step, "tuple[Inputs, Array]")


def train(
    tables: Sequence[Table],
    seed: int,
    until: Callable[[int], float],
    say: Say = print,
) -> network.Weights:
    """Weights trained over simulated studies of tables.

    Args:
        tables: what studies are simulated of.
        seed: of everything that is drawn.
        until: the share of the training that is done, given how many studies were simulated.
        say: takes a line on the progress.
    """
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    layers = torch_network.fresh(seed)
    studies, said = 0, time.monotonic()
    optimizer = torch.optim.Adam(list(layers.values()), lr=_IMITATION_RATE)
    while (done := until(studies)) < _IMITATED:
        decisions = imitated(tables, torch_network.as_arrays(layers), rng)
        losses = [float(imitate(layers, optimizer, part)) for part in _parts(decisions, rng)]
        studies += _SETTINGS
        said = _tell(say, said, f"{done:4.0%} imitation: {studies} studies, {np.mean(losses):.3f}")
    optimizer = torch.optim.Adam(list(layers.values()), lr=_RATE)
    while (done := until(studies)) < 1.0:
        steps, regret = practised(tables, torch_network.as_arrays(layers), rng)
        for _ in range(_PASSES):
            for part in _parts(steps, rng):
                improve(layers, optimizer, part)
        studies += _SETTINGS * _TWINS
        said = _tell(say, said, f"{done:4.0%} practice: {studies} studies, log regret {regret:.3f}")
    return torch_network.as_arrays(layers)


def _tell(say: Say, said: float, text: str) -> float:
    now = time.monotonic()
    if now - said < 10.0:
        return said
    say(text)
    return now


def _parts(all_: Sequence[_T], rng: np.random.Generator) -> list[list[_T]]:
    """Minibatches of about equal numbers of trials, in random order."""
    order = sorted(range(len(all_)), key=lambda i: _inputs(all_[i]).pairs.shape[1])
    starts = rng.permutation(np.arange(0, len(all_), _BATCH))
    return [[all_[i] for i in order[start : start + _BATCH]] for start in starts]


def _inputs(one: Any) -> Inputs:
    found: Inputs = one.inputs if isinstance(one, Step) else one[0]
    return found


# --- imitation ------------------------------------------------------------------------------------


def proposal(decision: Decision) -> Array:
    """The probabilities with which the posterior over known tasks would take each candidate."""
    gains = decision.expected.gains
    even = np.full(len(gains), 1.0 / len(gains))
    if not gains.max(initial=0.0) > 0:
        return even
    powers = (gains / gains.max()) ** _SHARPNESS
    none = decision.expected.none
    return np.asarray((1 - none) * powers / powers.sum() + none * even)


def imitated(
    tables: Sequence[Table], weights: network.Weights, rng: np.random.Generator
) -> list[tuple[Inputs, Array]]:
    """Decisions of new studies, with what the posterior would propose."""
    found = []
    for _ in range(_SETTINGS):
        setting = settings.drawn(tables[int(rng.integers(len(tables)))], rng)
        study, own = Study(setting, rng, _CANDIDATES, _TRIALS), rng.random()
        while not study.over:
            decision = study.decision()
            wanted = proposal(decision)
            found.append((decision.inputs, wanted))
            drawn = wanted
            if rng.random() < own:
                drawn = probabilities(weights, decision.inputs)
            study.run(int(decision.rows[rng.choice(len(drawn), p=drawn)]))
    return found


def imitate(
    layers: Layers, optimizer: torch.optim.Optimizer, part: Sequence[tuple[Inputs, Array]]
) -> Tensor:
    """One step to the posterior's proposals; the loss before it."""
    logs = torch_network.log_policy(layers, torch_network.batch([one for one, _ in part]))
    wanted = torch.zeros_like(logs)
    for i, (_, each) in enumerate(part):
        wanted[i, : len(each)] = torch.tensor(each, dtype=torch.float32)
    loss = -(wanted * logs).sum(1).mean()
    _step(optimizer, loss)
    return loss.detach()


def probabilities(weights: network.Weights, inputs: Inputs) -> Array:
    """The policy: with which probability each candidate is taken."""
    scores = network.scores(weights, inputs)
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


# --- reinforcement --------------------------------------------------------------------------------


def practised(
    tables: Sequence[Table], weights: network.Weights, rng: np.random.Generator
) -> tuple[list[Step], float]:
    """The decisions of new studies with their worth, and the mean log regret of the studies."""
    steps: list[Step] = []
    regrets = []
    for _ in range(_SETTINGS):
        setting = settings.drawn(tables[int(rng.integers(len(tables)))], rng)
        twins = [_driven(Study(setting, rng, _CANDIDATES, _TRIALS), weights) for _ in range(_TWINS)]
        each = np.array([logs for _, logs in twins])
        regrets.append(each.mean())
        better = (each.mean(axis=0) - each) * _TWINS / (_TWINS - 1)
        for (decisions, _), gained in zip(twins, better, strict=True):
            for decision, taken, log in decisions:
                later = decision.clock < GRID
                worth = float(gained[later].sum()) / len(GRID)
                steps.append(Step(decision.inputs, taken, log, worth))
    spread = float(np.std([step.worth for step in steps])) + 1e-6
    scaled = [Step(s.inputs, s.taken, s.log, s.worth / spread) for s in steps]
    return scaled, float(np.mean(regrets))


def _driven(
    study: Study, weights: network.Weights
) -> tuple[list[tuple[Decision, int, float]], Array]:
    """The decisions of a study that the policy drives, and its log regrets."""
    decisions = []
    while not study.over:
        decision = study.decision()
        drawn = probabilities(weights, decision.inputs)
        taken = int(study.rng.choice(len(drawn), p=drawn))
        decisions.append((decision, taken, float(np.log(drawn[taken]))))
        study.run(int(decision.rows[taken]))
    return decisions, study.log_regrets()


def improve(layers: Layers, optimizer: torch.optim.Optimizer, part: Sequence[Step]) -> None:
    """One step to decisions that were worth more, by PPO's clipped ratio.

    Advantage-weighted regression measured worse (`benchmarks/results`, trained policy). Source:
    Schulman et al. 2017, arXiv 1707.06347.
    """
    logs = torch_network.log_policy(layers, torch_network.batch([step.inputs for step in part]))
    taken = logs[torch.arange(len(part)), torch.tensor([step.taken for step in part])]
    worth = torch.tensor([step.worth for step in part], dtype=torch.float32)
    ratio = (taken - torch.tensor([step.log for step in part])).exp()
    clipped = ratio.clamp(1 - _CLIP, 1 + _CLIP)
    loss = -torch.minimum(ratio * worth, clipped * worth).mean()
    _step(optimizer, loss)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimizer.step()
