"""The kinds of simulated tasks of `few_trials.py`: recorded curves, the farm, shipped studies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import _few_optimizers
import _few_problems as problems
import _few_shipped
import _few_sources as sources
import farm
from _few_problems import Case

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.errors import UserError

Known = dict[int, list[KnownTask]]
"""The known tasks of each task under test, by its number."""
TABLE_TRIALS, FARM_TRIALS = 300, 128
"""Random configurations of a known task that is made here."""


@dataclass(frozen=True)
class Kind(ABC):
    """Numbered tasks, and what is known of others.

    Args:
        data: the file of recorded curves that was given.
        source: where known tasks are from, as `--source` says it.
        trials: of a known task that is made here.
        quick: few tasks are known.
    """

    data: str | None
    source: str | None = None
    trials: int | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserError: `data` is missing, or `source` cannot be chosen.
        """

    based: ClassVar[bool] = True
    """Whether the tasks have a baseline."""
    own_target: ClassVar[bool] = False
    """Whether the tasks have a target of their own, and no other one."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tasks."""

    @abstractmethod
    def case(self, number: int, target: str) -> Case | None:
        """A task with a target; None where nothing reaches it."""

    @abstractmethod
    def known(self, numbers: Sequence[int]) -> Known:
        """The known tasks of each task.

        Raises:
            UserError: a task under test is among the tasks of a given file, or nothing is shipped.
        """

    @abstractmethod
    def unlike(self, numbers: Sequence[int]) -> Known | None:
        """Known tasks that have nothing to do with each task; None where none are given."""

    def space(self, number: int) -> CanonicalSpace:
        """The space of a task, in canonical names."""
        case = self.case(number, "quantile")
        assert case is not None, "some configurations reach the quantile"
        return CanonicalSpace(case.problem.space)

    def _require_source(self, only: str, problem: str, reason: str) -> None:
        if self.source not in (None, only):
            where = f"with --problem {problem}, {reason}"
            raise UserError(f"--source must be {only} {where}, but got {self.source!r}")


class Recorded(Kind):
    """Tasks of a table of recorded curves, beside which shipped ones of the farm are unlike."""

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("--problem recorded needs --data FILE, a table of curves")

    def names(self) -> list[str]:
        return list(problems.table(str(self.data)).names)

    def case(self, number: int, target: str) -> Case | None:
        return problems.recorded_case(str(self.data), number, target)

    def known(self, numbers: Sequence[int]) -> Known:
        trials, given = self.trials or TABLE_TRIALS, None
        source = sources.chosen(self.source, self.quick)
        if source == "shipped":
            known = sources.shipped()
        else:
            given = None if source == "others" else source
            known = sources.of_table(given or str(self.data), trials)
        tasks = {i: problems.recorded_task(str(self.data), i) for i in numbers}
        return {i: sources.checked(task, known, given) for i, task in tasks.items()}

    def unlike(self, numbers: Sequence[int]) -> Known:
        return dict.fromkeys(numbers, sources.shipped_farm())


class Farm(Kind):
    """Tasks of the farm: known are those of the other family, and unlike those of a table."""

    def __post_init__(self) -> None:
        self._require_source("others", "farm", "whose tasks know those of its other family")

    def names(self) -> list[str]:
        return [task.name for task in farm.tasks()]

    def case(self, number: int, target: str) -> Case | None:
        return problems.trained_case(number, target)

    def known(self, numbers: Sequence[int]) -> Known:
        tasks, known = farm.tasks(), dict[str, list[KnownTask]]()
        for name in {sources.family(tasks[i].name) for i in numbers}:
            others = [task for task in tasks if sources.family(task.name) != name]
            chosen = others[:1] if self.quick else others
            known[name] = sources.of_farm(self.trials or FARM_TRIALS, chosen)
        return {i: known[sources.family(tasks[i].name)] for i in numbers}

    def unlike(self, numbers: Sequence[int]) -> Known | None:
        if not self.data:
            return None
        return dict.fromkeys(numbers, sources.of_table(self.data, self.trials or TABLE_TRIALS))

    def space(self, number: int) -> CanonicalSpace:
        return CanonicalSpace(farm.tasks()[number].space())


class Shipped(Kind):
    """The shipped studies as tables: known are those on other data."""

    based = False
    own_target = True
    problem: ClassVar[str] = "shipped"
    made: ClassVar[ModuleType] = _few_shipped
    """The module that makes the tasks."""

    def __post_init__(self) -> None:
        self._require_source("shipped", self.problem, "whose tasks know the others on other data")

    def names(self) -> list[str]:
        return [task.name for task in self.made.tasks()]

    def case(self, number: int, target: str) -> Case:
        case: Case = self.made.case(number)
        return case

    def known(self, numbers: Sequence[int]) -> Known:
        return {i: _few_shipped.on_other_data(self.made.tasks()[i]) for i in numbers}

    def unlike(self, numbers: Sequence[int]) -> Known:
        return {i: _few_shipped.unlike(self.made.tasks()[i]) for i in numbers}


class Optimizers(Shipped):
    """The shipped problems with several optimizers, from a baseline, too."""

    based = True
    problem = "optimizers"
    made = _few_optimizers


KINDS: Mapping[str, type[Kind]] = {
    "recorded": Recorded,
    "farm": Farm,
    "shipped": Shipped,
    "optimizers": Optimizers,
}
