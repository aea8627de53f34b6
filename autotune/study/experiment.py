"""An experiment: everything that a study is about, as one value."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from autotune.errors import UserError, checked, raised_by, shown, text_of, unknown
from autotune.space.search_space import SearchSpace
from autotune.space.variants import key_of
from autotune.storage.manifest import STUDY_NAME
from autotune.trial import KNOBS, Config, FailurePolicy, Limit, Target
from autotune.trial.limit import measured_by
from autotune.trial.scaling import Scaling
from autotune.trial.trainer import may_never_end, said

_ALIKE = 0.87  # a name so like that of a metric that is measured is taken for a mistake
_SAMPLED = 20  # points of the space that the trainer checks


@dataclass(frozen=True)
class Experiment:
    """What is tuned: a name, a trainer, a search space and a target.

    Args:
        name: the study's name, also of its folder and its MLflow experiment.
        train: the trainer, a function of its configuration: a generator of `Milestone`s, one that
            calls `autotune.report`, or one that returns the target's metric or a dict of metrics.
        space: what is searched.
        target: the metric and the value that trials race to, or the metric alone.
        scaling: what one trial runs on.
        baseline: the configuration to beat, run first; None for no baseline.
        configs: further configurations to run before the search begins.
        failure: what to do about workers that die, hang or fail.
        knobs: what a controller may turn while a trial runs: some of `lr`, `batch_size`,
            `momentum`.
        canonical: what parameters are called in other studies, by their names here, as in
            {"eta": "lr"}: by these names experience is found and used. Usual names are known.
        limits: the most that metrics may be where a trial has its result; a trial that breaks one
            is INFEASIBLE.

    Raises:
        UserError: naming the argument, its value and what is allowed.
    """

    name: str
    train: Callable[[dict[str, Any]], Any]
    space: SearchSpace
    target: Target
    _: KW_ONLY
    scaling: Scaling = field(default_factory=Scaling)
    baseline: Mapping[str, Any] | None = None
    configs: Sequence[Mapping[str, Any]] = ()
    failure: FailurePolicy = field(default_factory=FailurePolicy)
    knobs: Sequence[str] = ("lr",)
    canonical: Mapping[str, str] = field(default_factory=dict)
    limits: Sequence[Limit] = ()

    @checked
    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not STUDY_NAME.fullmatch(self.name):
            allowed = "letters, digits, '-', '_' and '.',"
            raise ValueError(f"Experiment name must be {allowed} but got {shown(self.name)}")
        if not callable(self.train):
            needed = "must be a function, not what it returns,"
            raise ValueError(f"Experiment train {needed} but got {shown(self.train)}")
        if not _takes_configuration(self.train):
            needed = "must take one argument, the configuration,"
            raise ValueError(f"Experiment train {needed} but got {shown(self.train)}")
        for name, kind in (
            ("space", SearchSpace),
            ("target", Target),
            ("scaling", Scaling),
            ("failure", FailurePolicy),
        ):
            if not isinstance(getattr(self, name), kind):
                got = shown(getattr(self, name))
                raise ValueError(f"Experiment {name} must be a {kind.__name__} but got {got}")
        if not self.target.limited and may_never_end(self.train):
            raise ValueError(
                "Experiment target has no limit, but its trainer is a generator, which may never "
                f"end: Target({self.target.metric!r}, limit=SECONDS), or limit_steps=STEPS"
            )
        knobs = self.knobs
        if not _is_list(knobs) or not knobs or not all(knob in KNOBS for knob in knobs):
            allowed = ", ".join(KNOBS)
            raise ValueError(f"Experiment knobs must be some of {allowed} but got {shown(knobs)}")
        self._check_canonical()
        self._check_limits()
        if not _is_list(self.configs):
            raise ValueError(f"Experiment configs must be a list but got {shown(self.configs)}")
        for i, given in enumerate(self.given()):
            label = "baseline" if self.baseline is not None and i == 0 else "configs"
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                needed = "must be a dict of parameters"
                raise ValueError(f"Experiment {label}: {needed} but got {shown(given)}")
            try:
                self.space.complete(given)
            except ValueError as error:
                raise ValueError(f"Experiment {label}: {error}") from None

    def _check_canonical(self) -> None:
        """Refuse what is no dict of names of the space, or calls two parameters the same."""
        canonical = self.canonical
        if not isinstance(canonical, Mapping):
            needed = "must be a dict like {'eta': 'lr'}"
            raise ValueError(f"Experiment canonical {needed} but got {shown(canonical)}")
        entries = self.space.entries
        keys = (key_of(name, entry.when) for name, entry in entries.items())
        known = [*dict.fromkeys([*entries, *self.space.parameters(), *keys])]
        for name, meant in canonical.items():
            if name not in known:
                raise ValueError(f"Experiment canonical: {unknown('parameter', name, known)}")
            if not isinstance(meant, str) or not meant.strip():
                needed = f"{name!r} must be a parameter's name, as in 'lr',"
                raise ValueError(f"Experiment canonical: {needed} but got {shown(meant)}")
            if others := [n for n, m in canonical.items() if m == meant and n != name]:
                raise ValueError(
                    f"Experiment canonical: {name!r} and {others[0]!r} are both {meant!r}"
                )

    def _check_limits(self) -> None:
        """Refuse what is no list of limits, and two on one metric."""
        limits = self.limits
        if not _is_list(limits) or not all(isinstance(limit, Limit) for limit in limits):
            raise ValueError(f"Experiment limits must be a list of Limit but got {shown(limits)}")
        names = [limit.metric for limit in limits]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"Experiment limits has two limits on {twice[0]!r}")

    def given(self) -> list[Mapping[str, Any]]:
        """The configurations to run before the search, the baseline first."""
        return [*([self.baseline] if self.baseline is not None else []), *self.configs]


def _takes_configuration(train: Callable[..., Any]) -> bool:
    """Whether it can be called with a configuration alone, as far as that can be seen."""
    try:
        signature = inspect.signature(train, follow_wrapped=False)
    except (ValueError, TypeError):  # it has none
        return True
    try:
        signature.bind({})
    except TypeError:
        return False
    return True


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)


def _fault_of(check: Callable[[Config], object], config: Config) -> str:
    """Why the trainer refuses the configuration, or an empty string."""
    try:
        check(config)
    except ValueError as error:
        return text_of(error) or "it raised a ValueError"
    except (Exception, SystemExit) as error:
        raise UserError(raised_by("trainer's check", error)) from error
    return ""


def refusal(experiment: Experiment) -> Callable[[Config], str] | None:
    """Says why the trainer refuses a configuration (empty: it takes it); None without a `check`.

    The function raises a UserError if a check raises anything but a ValueError.
    """
    names = ["check"]
    measured = measured_by(experiment.train)
    if any(limit.metric in measured for limit in experiment.limits):
        names.append("check_measured")
    checks = [c for c in (said(experiment.train, n) for n in names) if c is not None]
    if not checks:
        return None

    def faults(config: Config) -> str:
        return next((fault for one in checks if (fault := _fault_of(one, config))), "")

    return faults


def check_trainer(experiment: Experiment) -> None:
    """Let the trainer's `check`, if it has one, look at the given configurations and the space.

    Raises:
        UserError: the trainer refuses a given configuration, or every sampled point of the space;
            or a limit's metric is written almost as one that the trainer measures.
    """
    measured = measured_by(experiment.train)
    for name in (limit.metric for limit in experiment.limits):
        near = difflib.get_close_matches(name, measured, n=1, cutoff=_ALIKE)
        if name not in measured and near:
            raise UserError(unknown("limited metric", name, measured))
    fault_of, space = refusal(experiment), experiment.space
    if fault_of is None:
        return
    for number, given in enumerate(experiment.given()):
        first = number == 0 and experiment.baseline is not None
        if fault := fault_of(space.complete(given)[0]):
            raise UserError(f"{'baseline' if first else 'configs'}: {fault}")
    faults, checked = [], 0
    for point in space.sample(_SAMPLED):
        try:
            config = space.config(point)
        except ValueError as error:  # its schedules contradict each other
            fault = text_of(error)
        else:
            if space.broken(config):
                continue
            fault = fault_of(config)
        checked += 1
        faults += [fault] if fault else []
    if faults and len(faults) >= checked:
        raise UserError(f"the trainer refuses every configuration of the search space: {faults[0]}")
