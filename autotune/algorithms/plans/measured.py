"""Seconds per sample of a probe: a trial of a few seconds, in blocks from milestone to milestone.

The first block warms up and is left out. A probe is over when the mean of the others is known well
enough, or two or more of them have taken long enough, or all blocks together much longer; a block
is never cut short. What counts are means: the fastest block is one that nothing disturbed, and no
training consists of such blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from autotune.algorithms.ranking.difference import student_t
from autotune.trial import Trial

PROBED = "probed"
"""The reason with which a probe ends that has measured."""

ENOUGH = 0.015  # half of the interval of the logarithm: 3 % in all
SECONDS = 3.0  # of training after the first block
_LEAST = 3  # blocks of which an interval is taken
LONGEST = 4 * SECONDS  # of training in all: a probe of long blocks ends with the first beyond it

PROBE_EVALUATIONS = 2
"""The blocks of a probe that are evaluated, the first ones: what is measured is training, however
long a validation takes. What diverges later is not seen. The first is the warm-up."""

PEAK, EXPOSED = "peak_memory_bytes", "exposed_communication"
"""Metrics that a trainer may report: bytes of a rank, and the share of steps that only waits."""


@dataclass(frozen=True)
class Measured:
    """What a probe has measured.

    Args:
        seconds: of training per sample, the mean over its blocks.
        error: the standard error of the logarithm of that; infinite for a single block.
        blocks: how many blocks it is taken over.
        setup_seconds: before training, compilation included.
        peak: the most bytes of a rank; None where they are not reported.
        exposed: the mean share of a step in which ranks only communicate; None likewise.
    """

    seconds: float
    error: float
    blocks: int
    setup_seconds: float = 0.0
    peak: float | None = None
    exposed: float | None = None

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm of a block's seconds per sample."""
        return self.error * math.sqrt(self.blocks)


@dataclass(frozen=True)
class Block:
    """Training between two milestones."""

    seconds: float
    samples: int


def blocks(trial: Trial) -> list[Block]:
    """The blocks of a trial, without what came before its first milestone."""
    every = [
        Block(b.clock.seconds("train") - a.clock.seconds("train"), b.step - a.step)
        for a, b in pairwise(trial.reports)
    ]
    return [block for block in every if block.seconds > 0 and block.samples > 0]


def enough(trial: Trial) -> bool:
    """Whether a probe has measured enough to be stopped."""
    every = blocks(trial)
    own = every[1:]
    if len(own) >= _LEAST and student_t(len(own) - 1) * _error(own) <= ENOUGH:
        return True
    if len(own) > 1 and _seconds(own) >= SECONDS:
        return True
    return _seconds(every) >= LONGEST


def nothing_decided(first: Trial) -> str:
    """Why no probe can be compared with the first one, the default's; empty where one can."""
    found = measured(first)
    if found is None:
        return f"the probe of the default measured nothing ({first.reason})"
    if found.blocks > 1:
        return ""
    own = blocks(first)
    mean = _seconds(own) / len(own)
    return f"{mean:.0f} s between two reports are too long for probes of {LONGEST:.0f} s"


def usable(trial: Trial) -> bool:
    """Whether a probe whose trainer came to its own end has measured anything."""
    return len(blocks(trial)) > _LEAST


def measured(trial: Trial) -> Measured | None:
    """What a probe has measured; None of one that runs, failed, diverged or was interrupted."""
    every = blocks(trial)
    if trial.reason != PROBED or not every:
        return None
    own = every[1:] or every
    return Measured(
        _seconds(own) / sum(block.samples for block in own),
        _error(own),
        len(own),
        trial.clock.setup,
        max(_reported(trial, PEAK), default=None),
        fmean(shares[1:] or shares) if (shares := _reported(trial, EXPOSED)) else None,
    )


def probe_text(trial: Trial) -> str:
    """What a probe that is over has measured, in words."""
    own = blocks(trial)[1:] or blocks(trial)
    rate = sum(block.samples for block in own) / _seconds(own)
    return f"{rate:,.4g} samples/s over {len(own)} blocks"


def _seconds(own: Sequence[Block]) -> float:
    return math.fsum(block.seconds for block in own)


def _error(own: Sequence[Block]) -> float:
    """The standard error of the mean logarithm of the blocks' seconds per sample."""
    if len(own) < 2:
        return math.inf
    return stdev(math.log(block.seconds / block.samples) for block in own) / math.sqrt(len(own))


def _reported(trial: Trial, name: str) -> list[float]:
    return [float(r.metrics[name]) for r in trial.reports if name in r.metrics]
