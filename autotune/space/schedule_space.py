"""Search spaces of schedules: the parameters are the fields of its families.

As flat parameters they are `NAME.family`, `NAME.peak`, ...; each exists only for the families that
have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any

from autotune import schedules
from autotune.errors import checked, shown, unknown
from autotune.space.knotted_schedules import KNOTTED, Direction, Knots
from autotune.space.parameters import Choice, Fixed, Float, Int, Parameter, When, bounds, options

RULES: Mapping[str, float] = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""How a learning rate follows the batch size: the power of the batch size's growth."""

_SIMPLE = tuple(schedules.FAMILIES)
FAMILIES = (*_SIMPLE, "one_cycle", *KNOTTED, "mirror")
_OWN: Mapping[str, tuple[str, ...]] = {
    "peak": FAMILIES,
    "final": tuple(f for f in FAMILIES if f not in ("constant", "staircase")),
    "warmup": (*_SIMPLE, *KNOTTED),
    "power": ("polynomial",),
    "decay": ("wsd",),
    "start": ("one_cycle",),
    "peak_at": ("one_cycle",),
    "knots": KNOTTED,
}
"""The families that have each field, in the order in which the fields are drawn."""


@dataclass(frozen=True)
class ScheduleSpace:
    """A search space for a schedule; the trainer gets the schedule.

    Each field is a parameter or a fixed value:

    Args:
        peak: the greatest value. An `Int` (say of powers of two) is for counts: batch size, image
            size, sequence length.
        family: names of `FAMILIES`. `constant`, `linear`, `cosine`, `linear_cosine`, `polynomial`,
            `exponential`, `inverse_sqrt`, `step` and `wsd` go from `peak` to `final * peak`;
            `one_cycle` rises from `start * peak` to `peak` first; `piecewise` joins `knots` inner
            points by lines; `staircase` changes its value at `knots` edges; `mirror` moves between
            `peak` and `final * peak`, opposite to the schedule named by `mirrors`.
        final: the last value (the first, where `direction` is rising) as a share of the peak.
        warmup: share of the horizon for a linear rise from 0 first; not for `one_cycle`.
        power, decay, start, peak_at: of `polynomial`, `wsd`, `one_cycle`, as in `schedules`; the
            `start` is a share of the peak, at most all of it.
        knots: the number of inner knots or edges, for `piecewise` and `staircase`.
        direction: whether it goes from the peak down (`falling`), up to it (`rising`: it begins
            at `final * peak`), or, for knots, is free between the two (`free`: each knot has its
            own value). `one_cycle` and `wsd` only fall.
        mirrors: the schedule that the family `mirror` moves opposite to, as a momentum that falls
            while the learning rate rises (Smith and Topin, arXiv 1708.07120). It mirrors the
            searched shape, before that schedule follows another or compensates this momentum.
        follows: another schedule; this one is scaled whenever that one changes, as a learning rate
            with the batch size, by `rule`: none, sqrt or linear.
        reference: the value of the followed one at which the searched peak holds, > 0: a larger
            batch then has a larger learning rate in the whole trial. None: where it starts.
        effective: a momentum (or first beta); the searched peak is then that of the effective
            learning rate, peak / (1 - momentum).
        when: the condition of the schedule, as for `Float`.

    Raises:
        ValueError: an unknown family, or bounds that no schedule of a family can have.
    """

    peak: Float | Int | float
    _: KW_ONLY
    family: Choice | str = "cosine"
    final: Float | float = 0.0
    warmup: Float | float = 0.0
    power: Float | float = 2.0
    decay: Float | float = 0.2
    start: Float | float = 0.04
    peak_at: Float | float = 0.3
    knots: Int | int = 2
    direction: Direction = "falling"
    mirrors: str | None = None
    follows: str | None = None
    rule: Choice | str = "linear"
    reference: float | None = None
    effective: str | None = None
    when: When | None = None

    @checked
    def __post_init__(self) -> None:
        self._check_kinds()
        for name in self.families:
            if name not in FAMILIES:
                raise ValueError(unknown("schedule family", name, FAMILIES))
        for rule in options(self.rule):
            if rule not in RULES:
                raise ValueError(unknown("rule", rule, RULES))
        if self.direction not in ("falling", "rising", "free"):
            raise ValueError(
                f"ScheduleSpace direction must be falling, rising or free, got {self.direction!r}"
            )
        if ("mirror" in self.families) != (self.mirrors is not None):
            raise ValueError("ScheduleSpace: family 'mirror' and mirrors=NAME belong together")
        self._check_shares()
        self._check_counted()
        self._check_reference()
        if set(KNOTTED) & set(self.families):
            self._knotted.check()
        for name in self.families:
            if name != "mirror":
                self._check_corners(name)

    @property
    def steady_rule(self) -> str:
        """The rule for changes by a controller only: the fixed rule, or none if it is searched."""
        return self.rule if isinstance(self.rule, str) else "none"

    @property
    def span(self) -> tuple[float, float]:
        """The range of its schedules' values, before couplings."""
        low, high = bounds(self.peak)
        ends = [low, high]
        if set(self.families) - {"constant"} and not self._only_levels():
            ends += [low * bounds(self.final)[0], high * bounds(self.final)[0]]
        if bounds(self.warmup)[1] > 0:
            ends.append(0.0)
        if "one_cycle" in self.families:
            ends.append(min(low * bounds(self.start)[0], high * bounds(self.start)[0]))
        return min(ends), max(ends)

    @property
    def _knotted(self) -> Knots:
        return Knots(self.peak, self.final, self.knots, self.direction)

    def _only_levels(self) -> bool:
        return isinstance(self.peak, Int) and set(self.families) <= {"constant", "staircase"}

    @property
    def families(self) -> tuple[str, ...]:
        """The families that are searched."""
        return options(self.family)

    # --- validation ---------------------------------------------------------------------------

    def _check_kinds(self) -> None:
        """Raise a ValueError for a field of the wrong type."""
        numbers: dict[str, Any] = {"peak": Float | Int, "knots": Int}
        for field in _OWN:
            value, kind = getattr(self, field), numbers.get(field, Float)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number and not isinstance(value, kind):
                named = "Float or Int" if field == "peak" else kind.__name__
                raise ValueError(
                    f"ScheduleSpace {field} must be a number or {named} but got {shown(value)}"
                )
        for field in ("family", "rule"):
            value = getattr(self, field)
            if not isinstance(value, str | Choice):
                raise ValueError(
                    f"ScheduleSpace {field} must be a name, or a Choice of names, but got {value!r}"
                )
        for field in ("mirrors", "follows", "effective"):
            value = getattr(self, field)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"ScheduleSpace {field} must be a name but got {shown(value)}")
        if self.when is not None and not isinstance(self.when, Mapping):
            raise ValueError(f"ScheduleSpace when must be a dict but got {shown(self.when)}")

    def _check_shares(self) -> None:
        for name in ("warmup", "peak_at", "decay"):
            low, high = bounds(getattr(self, name))
            if not 0 <= low <= high < 1:
                raise ValueError(
                    f"ScheduleSpace {name} must lie in [0, 1) but got {getattr(self, name)!r}"
                )
        for name, more in (("start", ""), ("final", "; for values that grow, direction='rising'")):
            low, high = bounds(getattr(self, name))
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"ScheduleSpace {name} must lie in [0, 1], a share of the peak, but got "
                    f"{getattr(self, name)!r}{more}"
                )

    def _check_reference(self) -> None:
        if self.reference is None:
            return
        number = isinstance(self.reference, int | float) and not isinstance(self.reference, bool)
        if not number or not 0 < self.reference < float("inf"):
            given = shown(self.reference)
            raise ValueError(f"ScheduleSpace reference must be a number > 0 but got {given}")
        if self.follows is None:
            raise ValueError("ScheduleSpace: reference needs follows=NAME")

    def _check_counted(self) -> None:
        if not isinstance(self.peak, Int):
            return
        between = [f for f in self.families if f not in ("constant", "staircase")]
        if self.peak.power_of_two and between:
            raise ValueError(
                f"ScheduleSpace {between[0]} takes values between powers of two: a peak with "
                "power_of_two=True needs family 'constant' or 'staircase'"
            )
        if "piecewise" in self.families:
            raise ValueError("ScheduleSpace piecewise needs a Float peak; 'staircase' takes an Int")

    def _check_corners(self, family: str) -> None:
        """Build the schedules at the corners of the box, so that no point of it can fail."""
        drawn = dict(self._shape_fields())
        if family in KNOTTED:
            drawn |= {name: parameter for name, (parameter, _) in self._knotted.fields()}
        drawn["end"] = self._knotted.free_value()
        low = {k: p.low if isinstance(p, Float | Int) else options(p)[0] for k, p in drawn.items()}
        knots = options(self.knots)[-1]
        for peak, final in product(bounds(self.peak), bounds(self.final)):
            at = f"with peak {peak!r} and final {final!r}"
            given = {**low, "family": family, "peak": peak, "final": final, "knots": knots}
            given["warmup"] = bounds(self.warmup)[1]
            try:
                least = schedules.extremes(self.build(given))[0]
            except ValueError as error:
                raise ValueError(f"ScheduleSpace {family} {at}: {error}") from None
            if isinstance(self.peak, Int) and least < 1:
                raise ValueError(
                    f"ScheduleSpace {family} {at}: whole numbers must stay at least 1, "
                    f"but it goes down to {least:g}"
                )

    # --- its parameters -----------------------------------------------------------------------

    def parameters(self, name: str, changes: When | None = None) -> dict[str, Parameter | Fixed]:
        """Its parameters by flat name, in the order in which they are drawn.

        `changes` is the condition under which the followed schedule is not constant, which is that
        of the parameter `rule`; None if it is always constant.
        """
        named: list[tuple[str, Any, dict[str, Any]]] = [("family", self.family, {})]
        for field, value in self._shape_fields():
            having = tuple(f for f in self.families if self._has(f, field))
            when = {} if having == self.families else {f"{name}.family": having}
            if having:
                named.append((field, value, when))
        family = {f"{name}.family": tuple(f for f in self.families if f in KNOTTED)}
        if family[f"{name}.family"]:
            for field, (value, knots) in self._knotted.fields():
                named.append((field, value, {**family, f"{name}.knots": knots}))
        if self.direction == "free" and "piecewise" in self.families:
            named.append(("end", self._knotted.free_value(), {f"{name}.family": "piecewise"}))
        if self.follows is not None and self.reference is not None:
            named.append(("rule", self.rule, {}))
        elif self.follows is not None and changes is not None:
            named.append(("rule", self.rule, dict(changes)))
        return {
            f"{name}.{field}": _when(value, {**(self.when or {}), **when})
            for field, value, when in named
        }

    def _has(self, family: str, field: str) -> bool:
        if field == "peak" and family in KNOTTED:
            return self.direction != "free" and not isinstance(self.peak, Int)
        if field == "final" and family == "piecewise":
            return self.direction != "free"
        return family in _OWN[field]

    def _shape_fields(self) -> Iterator[tuple[str, Any]]:
        return ((field, getattr(self, field)) for field in _OWN)

    # --- building -----------------------------------------------------------------------------

    def build(self, values: Mapping[str, Any]) -> schedules.Schedule:
        """Build the schedule of drawn fields (by field name), before couplings."""
        family = values["family"]
        rising = self.direction == "rising"
        shape = (
            self._knotted.build(values) if family in KNOTTED else _simple(family, values, rising)
        )
        return schedules.warmed(shape, values.get("warmup", 0.0))


def _simple(family: str, values: Mapping[str, Any], rising: bool) -> schedules.Schedule:
    peak = values["peak"]
    final = peak * values["final"] if "final" in values else peak
    start, end = (final, peak) if rising and family != "constant" else (peak, final)
    match family:
        case "polynomial":
            return schedules.Polynomial(start, end, values["power"])
        case "wsd":
            return schedules.WSD(peak, peak, final, warmup=0.0, decay=values["decay"])
        case "one_cycle":
            return schedules.OneCycle(peak * values["start"], peak, final, values["peak_at"])
        case _:
            return schedules.FAMILIES[family](start, end)


def _when(value: Any, when: When) -> Parameter | Fixed:
    if isinstance(value, Float | Int | Choice):
        return replace(value, when=when or None)
    return Fixed(value, when=when or None)
