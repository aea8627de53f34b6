"""Constraints: rules between parameters, as functions of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from autotune.errors import UserError, checked, raised_by, shown
from autotune.trial import Config


@dataclass(frozen=True)
class Constraint:
    """A rule between parameters: `holds(config)` must be True, or the trial is INFEASIBLE.

    Raises:
        ValueError: no text, or no function.
    """

    text: str
    holds: Callable[[Config], bool]

    @checked
    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:
            raise ValueError(f"Constraint text must be text but got {shown(self.text)}")
        if not callable(self.holds):
            raise ValueError(f"Constraint holds must be a function but got {shown(self.holds)}")

    def is_broken(self, config: Config) -> bool:
        """Whether the configuration violates it.

        Raises:
            UserError: the function raised, say as a conditional value is missing, or it returned
                neither True nor False.
        """
        try:
            holds: Any = self.holds(config)
        except (Exception, SystemExit) as error:
            raise UserError(raised_by(f"constraint {self.text!r}", error)) from error
        if type(holds).__name__ in ("bool", "bool_"):  # numpy's too
            holds = bool(holds)
        if not isinstance(holds, bool):
            answer = f"must return True or False but got {shown(holds)}"
            raise UserError(f"constraint {self.text!r} {answer}")
        return not holds


def as_constraints(given: Any) -> tuple[Constraint, ...]:
    """The constraints of a space, which `given` must be.

    Raises:
        ValueError: it is not a sequence, or something in it is no Constraint.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"SearchSpace constraints must be a tuple but got {shown(given)}")
    made = tuple(given)
    for one in made:
        if not isinstance(one, Constraint):
            needed = "must each be a Constraint, with a text and a function,"
            raise ValueError(f"SearchSpace constraints {needed} but got {shown(one)}")
    return made
