"""What `autotune.run` is asked for, as one value that is checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from autotune.algorithms.pruners.rules import Pruner
from autotune.backends.protocol import Pool
from autotune.errors import UserError
from autotune.study.driver.plan import Controller, Watch
from autotune.study.experiment import Experiment

_SAMPLED = 20  # points of the space that the trainer is asked about


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `autotune.run`, which says what they are and has their defaults.

    Raises:
        UserError: one is outside its range, or two exclude each other.
    """

    experiment: Experiment
    trials: int
    time_limit: float | None
    sampler: str | Any
    pruner: str | Pruner
    controller: str | Controller | None
    out: str | Path | None
    tracking_uri: str | None
    ray_address: str | None
    seed: int
    seeds: Sequence[int]
    repeats: int
    top: int
    search: bool
    racing: float | None
    resume: bool
    start_from: str | Path | None
    recipe: str | None
    mirror: bool
    mix_hardware: bool
    watch: Watch | None
    pool: Pool | None

    def __post_init__(self) -> None:
        _check_search(self.experiment, self.trials, self.time_limit, self.seed)
        _check_repeats(self.repeats, self.top, self.racing)
        if self.seeds and (self.repeats or self.racing):
            raise UserError(
                "repeats confirm a search, but with seeds all trials are repeats already"
            )
        if self.seeds and len(self.seeds) < self.trials:
            said = f"seeds must be one for each of {self.trials} trials"
            raise UserError(f"{said} but got {len(self.seeds)}")

    @property
    def folder(self) -> Path:
        """The study folder."""
        return Path(self.out) if self.out is not None else Path("studies") / self.experiment.name


def _check_search(experiment: Experiment, trials: int, time_limit: float | None, seed: int) -> None:
    if not isinstance(experiment, Experiment):
        raise UserError(f"run needs an Experiment but got {experiment!r:.80}")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise UserError(f"trials must be a whole number >= 1 but got {trials!r}")
    known = isinstance(time_limit, Real) and time_limit > 0
    if time_limit is not None and not known:
        raise UserError(f"time_limit must be more than 0 seconds but got {time_limit!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number >= 0 but got {seed!r}")


def _check_repeats(repeats: int, top: int, racing: float | None) -> None:
    for name, value, least in (("repeats", repeats, 0), ("top", top, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name} must be a whole number >= {least} but got {value!r}")
    if racing is None:
        return
    if isinstance(racing, bool) or not isinstance(racing, int | float) or not 0 <= racing < 1:
        raise UserError(f"racing must be a share, at least 0 and below 1, but got {racing!r}")


def check_trainer(experiment: Experiment) -> None:
    """Ask the trainer, if it has a `check`, about the given configurations and the space.

    A space none of whose points the trainer takes is a mistake; some of them may be.
    """
    check = getattr(experiment.train, "check", None)
    if check is None:
        return
    space = experiment.space
    for number, given in enumerate(experiment.given()):
        first = number == 0 and experiment.baseline is not None
        try:
            check(space.complete(given)[0])
        except ValueError as error:
            raise UserError(f"{'baseline' if first else 'configs'}: {error}") from None
    faults, asked = [], 0
    for point in space.sample(_SAMPLED):
        try:
            config = space.config(point)
            if space.broken(config):
                continue
            asked += 1
            check(config)
        except ValueError as error:
            faults.append(str(error))
    if faults and len(faults) >= asked:
        raise UserError(f"the trainer takes no point of the search space: {faults[0]}")


def name_of(part: Any) -> str | None:
    """What a record says of a sampler, pruner or controller."""
    if part is None or isinstance(part, str):
        return part
    return f"<{getattr(part, '__qualname__', type(part).__qualname__)}>"
