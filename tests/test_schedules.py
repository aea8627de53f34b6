"""Schedules: one row of `CASES` per family, and one row of `PUBLISHED` per published schedule."""

from __future__ import annotations

import copy
import doctest
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import schedule_plot, schedules
from autotune.schedules import (
    FAMILIES,
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Stages,
    Step,
    as_schedule,
    from_json,
    scaled,
    warmed,
)

quick = settings(max_examples=40, deadline=None)
ULP = sys.float_info.epsilon

# One row per family: how to make any of it, and what it claims.

values = st.floats(-1e3, 1e3) | st.integers(-512, 512)
above_zero = st.floats(1e-2, 1e2) | st.integers(1, 512)
shapes = st.sampled_from(get_args(schedules.Shape))
progresses = st.floats(0.0, 1.0)


def edges(least: int = 0, most: int = 4) -> st.SearchStrategy[tuple[float, ...]]:
    hundredths = st.lists(st.integers(1, 99), min_size=least, max_size=most, unique=True)
    return hundredths.map(lambda chosen: tuple(edge / 100 for edge in sorted(chosen)))


def with_edges(
    make: Callable[[tuple[float, ...], tuple[Any, ...]], Any], item: Any, more: int
) -> Any:
    def of(chosen: tuple[float, ...]) -> Any:
        count = len(chosen) + more
        items = st.lists(item, min_size=count, max_size=count)
        return items.map(lambda given_items: make(chosen, tuple(given_items)))

    return edges().flatmap(of)


@dataclass(frozen=True)
class Case:
    some: st.SearchStrategy[Schedule]
    monotone: bool = False
    continuous: bool = False


def held(chosen: tuple[float, ...], items: tuple[float, ...]) -> Piecewise:
    return Piecewise(chosen, items, kind="constant")


percents = st.integers(1, 50).map(lambda percent: percent / 100)
CASES = {
    Constant: Case(st.builds(Constant, values), True, True),
    Linear: Case(st.builds(Linear, values, values), True, True),
    Cosine: Case(st.builds(Cosine, values, values), True, True),
    Polynomial: Case(st.builds(Polynomial, values, values, st.floats(0.5, 4.0)), True, True),
    Exponential: Case(st.builds(Exponential, above_zero, above_zero), True, True),
    InverseSqrt: Case(st.builds(InverseSqrt, *2 * (st.floats(0.1, 100.0),)), True, True),
    Step: Case(st.builds(Step, above_zero, above_zero, edges(least=1)), monotone=True),
    OneCycle: Case(
        st.builds(OneCycle, values, values, values, st.floats(0.01, 0.99), shapes), continuous=True
    ),
    WSD: Case(
        st.builds(WSD, values, values, values, st.just(0.0) | percents, percents, shapes),
        continuous=True,
    ),
    Piecewise: Case(with_edges(Piecewise, values, 2) | with_edges(held, values, 1)),
}
leaves = st.one_of([case.some for case in CASES.values()])
CASES[Stages] = Case(
    st.recursive(leaves, lambda some: with_edges(Stages, some, 1), max_leaves=6).map(
        lambda some: some if isinstance(some, Stages) else Stages((), (some,))
    )
)
every = pytest.mark.parametrize("case", CASES.values(), ids=[kind.__name__ for kind in CASES])


def numbers_of(schedule: Schedule) -> Iterator[float]:
    """Every value that a schedule was made of."""
    for field in fields(schedule):
        own = getattr(schedule, field.name)
        if field.name == "parts":
            for part in own:
                yield from numbers_of(part)
        elif field.name in ("value", "start", "peak", "end"):
            yield own
        elif field.name == "values":
            yield from own


def first_of(schedule: Schedule) -> float:
    if isinstance(schedule, Stages):
        return first_of(schedule.parts[0])
    if isinstance(schedule, WSD) and schedule.warmup == 0.0:
        return schedule.peak
    return next(numbers_of(schedule))


def last_of(schedule: Schedule) -> float:
    if isinstance(schedule, Stages):
        return last_of(schedule.parts[-1])
    return list(numbers_of(schedule))[-1]


def test_every_family_has_a_case() -> None:
    assert set(CASES) == set(get_args(Schedule))


# What holds for every family and composition.


@every
@quick
@given(data=st.data())
def test_exact_at_both_ends_and_held_after_one(case: Case, data: st.DataObject) -> None:
    schedule = data.draw(case.some)
    assert schedule(0) == schedule(0.0) == schedule(-0.0) == first_of(schedule)
    assert schedule(1) == schedule(1.0) == last_of(schedule)
    for late in (math.nextafter(1.0, 2.0), 1.5, 1e9, math.inf):
        assert schedule(late) == schedule(1.0)


@every
@quick
@given(data=st.data(), x=progresses)
def test_never_outside_its_values(case: Case, data: st.DataObject, x: float) -> None:
    schedule = data.draw(case.some)
    assert type(schedule(x)) is float
    assert min(numbers_of(schedule)) <= schedule(x) <= max(numbers_of(schedule))


@every
@quick
@given(data=st.data(), xs=st.lists(progresses, max_size=8))
def test_arrays_give_the_same_values(case: Case, data: st.DataObject, xs: list[float]) -> None:
    schedule = data.draw(case.some)
    flat = np.array([*xs, *xs])
    for array in (flat, flat.reshape(2, -1), flat.reshape(2, 1, -1)):
        assert schedule(array).shape == array.shape
        assert schedule(array).dtype == np.float64
        assert schedule(array).ravel().tolist() == [schedule(x) for x in flat.tolist()]


@every
@quick
@given(data=st.data())
def test_a_value_that_survives_every_journey(case: Case, data: st.DataObject) -> None:
    schedule = data.draw(case.some)
    document = json.loads(json.dumps(schedule.to_json(), allow_nan=False))
    twins = (
        from_json(document),
        pickle.loads(pickle.dumps(schedule)),
        copy.deepcopy(schedule),
        eval(repr(schedule)),
    )
    for twin in twins:
        assert twin == schedule
        assert hash(twin) == hash(schedule)
        assert str(twin) == str(schedule)
        assert twin.to_json() == document
    assert 0 < len(str(schedule)) <= 250
    assert "\n" not in str(schedule)


@every
@quick
@given(data=st.data(), x=progresses, factor=st.floats(0.01, 100.0))
def test_scaling_scales_the_values(
    case: Case, data: st.DataObject, x: float, factor: float
) -> None:
    schedule = data.draw(case.some)
    largest = max(map(abs, numbers_of(schedule)))
    assert scaled(schedule, factor)(x) == pytest.approx(
        schedule(x) * factor, rel=1e-12, abs=1e-12 * largest * factor + 1e-300
    )
    assert scaled(schedule, 1.0) == schedule


@pytest.mark.parametrize("kind", [k for k in CASES if CASES[k].monotone], ids=lambda k: k.__name__)
@quick
@given(data=st.data(), a=progresses, b=progresses)
def test_monotone(kind: Any, data: st.DataObject, a: float, b: float) -> None:
    schedule = data.draw(CASES[kind].some)
    sign = 1.0 if schedule(1.0) >= schedule(0.0) else -1.0
    slack = ULP * max(map(abs, numbers_of(schedule)))  # the C library's pow and cos
    for x, later in ((min(a, b), max(a, b)), (a, math.nextafter(a, 2.0))):
        assert sign * schedule(x) <= sign * schedule(later) + slack


@pytest.mark.parametrize(
    "kind", [k for k in CASES if CASES[k].continuous], ids=lambda k: k.__name__
)
@quick
@given(data=st.data(), x=progresses)
def test_continuous(kind: Any, data: st.DataObject, x: float) -> None:
    schedule = data.draw(CASES[kind].some)
    knots = [getattr(schedule, "peak_at", 0.5), getattr(schedule, "warmup", 0.5)]
    knots.append(1.0 - getattr(schedule, "decay", 0.5))
    largest = max(map(abs, numbers_of(schedule)))
    for at in (x, 1.0 - 1e-9, *(knot - 1e-9 for knot in knots if knot > 0.0)):
        assert abs(schedule(at + 1e-9) - schedule(at)) <= 0.01 * largest


@quick
@given(data=st.data(), chosen=edges(least=1), x=progresses)
def test_a_linear_piecewise_is_stages_of_lines(
    data: st.DataObject, chosen: tuple[float, ...], x: float
) -> None:
    count = len(chosen) + 2
    knots = data.draw(st.lists(values, min_size=count, max_size=count))
    lines = tuple(Linear(a, b) for a, b in pairwise(knots))
    assert Piecewise(chosen, tuple(knots))(x) == Stages(chosen, lines)(x)
    for edge, value in zip(chosen, knots[1:], strict=False):
        assert Piecewise(chosen, tuple(knots))(edge) == value


@quick
@given(schedule=CASES[Stages].some, warmup=st.floats(0.01, 0.99), x=progresses)
def test_a_warm_up_is_a_stage(schedule: Schedule, warmup: float, x: float) -> None:
    warm = warmed(schedule, warmup)
    assert warm(0.0) == 0.0
    assert warm(warmup) == schedule(0.0)
    assert warm(1.0) == schedule(1.0)
    assert warm(warmup / 2) == pytest.approx(schedule(0.0) / 2)
    if x >= warmup:
        assert warm(x) == schedule((x - warmup) / (1.0 - warmup))
    assert warmed(schedule, 0) is schedule


def test_at_an_edge_the_later_part_holds() -> None:
    before = math.nextafter(0.3, 0.0)
    stages = Stages((0.3, 0.6), (Constant(1), Constant(2), Constant(3)))
    assert [stages(x) for x in (before, 0.3, 0.6, 1.0)] == [1.0, 2.0, 3.0, 3.0]
    assert stages(before) == Piecewise((0.3, 0.6), (1, 2, 3), kind="constant")(before)
    assert Step(1.0, 0.01, edges=(0.3, 0.6))(0.6) == 0.01
    assert WSD(0, 1, 0, warmup=0.3, decay=0.4)(0.3) == 1.0
    assert OneCycle(0, 1, 0)(0.3) == 1.0


def test_values_may_be_anything_finite() -> None:
    assert Linear(-1e300, 1e300)(0.5) == 0.0
    numpy_values: Any = (np.float32(0.5), np.int64(2))
    assert json.dumps(Linear(*numpy_values).to_json()) == json.dumps(Linear(0.5, 2).to_json())
    assert Linear(5e-324, 0.0)(0.3) in (0.0, 5e-324)
    assert Constant(-3) == as_schedule(-3) == Constant(-3.0)
    assert as_schedule(Linear(1, 0)) == Linear(1.0, 0.0)
    with pytest.raises(FrozenInstanceError):
        Constant(1.0).value = 2.0  # type: ignore[misc]


def test_scalars_of_any_kind_give_floats() -> None:
    halves: Any = (np.float32(0.5), np.float64(0.5), np.array(0.5))
    for progress in halves:
        value = Linear(0.0, 0.1)(progress)
        assert type(value) is float
        assert value == 0.05
    assert Linear(0, 1)(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_go_from_start_to_end(name: str) -> None:
    schedule = FAMILIES[name](0.5, 0.25)
    assert schedule(0.0) == 0.5
    assert schedule(1.0) == (0.5 if name == "constant" else 0.25)


TEXTS = {
    "constant 0.1": Constant(0.1),
    "linear 0 -> 1": Linear(0, 1),
    "cosine 0.4 -> 1e-05": Cosine(0.4, 1e-5),
    "polynomial 0.4 -> 0 (power 2)": Polynomial(0.4, 0),
    "exponential 1 -> 0.001": Exponential(1, 1e-3),
    "inversesqrt 1 -> 0.5": InverseSqrt(1, 0.5),
    "step 1 -> 0.01 (edges 50% 75%)": Step(1, 0.01),
    "onecycle 0.04 -> 1 -> 0 (peak_at 30%, shape cosine)": OneCycle(0.04, 1, 0),
    "wsd 0 -> 1 -> 0 (warmup 10%, decay 20%, shape linear)": WSD(0, 1, 0),
    "piecewise 0 -> 1 -> 0 (kind linear, edges 12.5%)": Piecewise((0.125,), (0, 1, 0)),
    "0-10%: linear 0 -> 1, 10-100%: cosine 1 -> 0": warmed(Cosine(1, 0), 0.1),
    "0-10%: linear 0 -> 0, 10-100%: (0-50%: linear 0 -> 1, 50-100%: constant 1)": warmed(
        warmed(Constant(1), 0.5), 0.1
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str) -> None:
    assert str(TEXTS[text]) == text


def test_text_fits_a_tracker() -> None:
    many = Piecewise(tuple(i / 100 for i in range(1, 100)), tuple(range(101)))
    assert len(str(many)) == 250
    assert str(many).endswith("...")


# The user's mistakes: one clear line that names the schedule, the place and the number.

NAN = math.nan
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "before": (
        lambda: Linear(0, 1)(-0.1),
        r"linear 0 -> 1: progress must be at least 0, got -0\.1",
    ),
    "nan progress": (lambda: Linear(0, 1)(NAN), "progress must be at least 0, got nan"),
    "array": (lambda: Linear(0, 1)(np.array([0.5, NAN])), "progress must be at least 0, got nan"),
    "nan": (lambda: Cosine(0.1, NAN), "Cosine: end must be a finite number, got nan"),
    "inf": (lambda: Constant(math.inf), "Constant: value must be a finite number, got inf"),
    "huge": (lambda: Constant(10**400), "Constant: value must be a finite number, got 1000"),
    "text": (lambda: Linear("1", 0), "Linear: start must be a finite number, got '1'"),  # type: ignore[arg-type]
    "bool": (lambda: as_schedule(True), "Constant: value must be a finite number, got True"),
    "power": (lambda: Polynomial(1, 0, 0), "Polynomial: power must be greater than 0, got 0"),
    "floor": (lambda: Exponential(1, 0), r"Exponential: end must be greater than 0, got 0\.0"),
    "sign": (lambda: InverseSqrt(-1, 1), r"InverseSqrt: start must be greater than 0, got -1\.0"),
    "range": (lambda: Step(1e-200, 1e200), "Step: end / start is out of range"),
    "no edge": (lambda: Step(1, 0.1, ()), "Step: edges must hold at least 1 number, got 0"),
    "order": (
        lambda: Stages((0.5, 0.2), (Constant(1),) * 3),
        r"Stages: edges: number 2 must be more than 0\.5, got 0\.2",
    ),
    "twice": (
        lambda: Step(1, 0.1, (0.5, 0.5)),
        r"Step: edges: number 2 must be more than 0\.5, got 0\.5",
    ),
    "edge at 1": (
        lambda: Piecewise((1.0,), (0, 1, 2)),
        r"Piecewise: edges: number 1 must lie in \(0, 1\), got 1\.0",
    ),
    "negative edge": (lambda: warmed(Constant(1), -0.1), r"must lie in \(0, 1\), got -0\.1"),
    "nan edge": (lambda: Step(1, 0.1, (NAN,)), "edges: number 1 must be a finite number, got nan"),
    "edges": (lambda: Step(1, 0.1, 0.5), r"Step: edges must be a tuple, got 0\.5"),  # type: ignore[arg-type]
    "too few parts": (
        lambda: Stages((0.1,), (Constant(1),)),
        "Stages: 1 edges need 2 parts, got 1",
    ),
    "not a part": (
        lambda: Stages((0.1,), (Constant(1), 0.5)),  # type: ignore[arg-type]
        r"Stages: parts: part 2 must be a schedule, got 0\.5",
    ),
    "knots": (lambda: Piecewise((0.5,), (1, 2)), "Piecewise: 1 edges need 3 values, got 2"),
    "held": (lambda: held((0.5,), (1,)), "Piecewise: 1 edges need 2 values, got 1"),
    "knot": (
        lambda: Piecewise((), (1, NAN)),
        "Piecewise: values: number 2 must be a finite number",
    ),
    "kind": (lambda: Piecewise((), (1, 2), "cubic"), "kind must be one of linear, constant"),  # type: ignore[arg-type]
    "shape": (lambda: WSD(0, 1, 0, shape="sin"), "WSD: shape must be one of linear, cosine, sqrt"),  # type: ignore[arg-type]
    "peak": (
        lambda: OneCycle(0, 1, 0, peak_at=1),
        r"OneCycle: peak_at must lie in \(0, 1\), got 1",
    ),
    "overlap": (lambda: WSD(0, 1, 0, warmup=0.7, decay=0.4), r"at most 1; got 0\.7 and 0\.4"),
    "no decay": (lambda: WSD(0, 1, 0, decay=0), r"decay more than 0.*; got 0\.1 and 0\.0"),
    "cool": (lambda: WSD(0, 1, 0, warmup=-0.1), r"warmup must be at least 0.*; got -0\.1 and 0\.2"),
    "steps": (lambda: Constant(1).to_torch(sgd(1.0), 0), "total_steps must be a positive integer"),
    "nothing": (lambda: schedule_plot.draw({}), "draw needs at least 1 schedule, got 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


DOCUMENTS: dict[str, tuple[Any, str]] = {
    "unknown": ({"schedule": "cosin"}, "unknown schedule 'cosin', did you mean 'Cosine'"),
    "case": ({"schedule": "wsd"}, "unknown schedule 'wsd', did you mean 'WSD'"),
    "anonymous": ({"start": 1}, "must be a JSON object that names its schedule, got {'start': 1}"),
    "number": (0.5, r"must be a JSON object that names its schedule, got 0\.5"),
    "version": (Linear(0, 1).to_json() | {"version": 2}, "Linear: version must be 1, got 2"),
    "unversioned": ({"schedule": "Linear"}, "Linear: version must be 1, got None"),
    "missing": (
        {"schedule": "Linear", "version": 1, "start": 0},
        "Linear: its fields must be start, end; got start",
    ),
    "extra": (
        Linear(0, 1).to_json() | {"x": 1},
        "its fields must be start, end; got start, end, x",
    ),
    "bad value": (Linear(0, 1).to_json() | {"end": None}, "Linear: end must be a finite number"),
    "bad parts": (
        Stages((), (Constant(1),)).to_json() | {"parts": 1},
        "Stages: parts must be a tuple",
    ),
    "bad part": (
        Stages((), (Constant(1),)).to_json() | {"parts": [{"schedule": "Constnt"}]},
        "Stages: part 1: unknown schedule 'Constnt', did you mean 'Constant'",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_bad_documents(name: str) -> None:
    document, message = DOCUMENTS[name]
    with pytest.raises(ValueError, match=message):
        from_json(document)


def test_documents_of_version_1_stay_readable() -> None:
    """Frozen: journals hold these. A new version must still read them."""
    text = """{"schedule": "Stages", "version": 1, "edges": [0.1], "parts": [
        {"schedule": "Linear", "version": 1, "start": 0.0, "end": 1.0},
        {"schedule": "OneCycle", "version": 1, "start": 1.0, "peak": 2.0, "end": 0.0,
         "peak_at": 0.3, "shape": "linear"}]}"""
    schedule = Stages((0.1,), (Linear(0, 1), OneCycle(1, 2, 0, shape="linear")))
    assert from_json(json.loads(text)) == schedule
    assert json.loads(text) == schedule.to_json()


# Published schedules, reproduced to 1e-12: torch's schedulers, then Hugging Face's formulas.

torch = pytest.importorskip("torch")
rates = torch.optim.lr_scheduler
LR, N = 0.4, 40
LINES: Any = "linear"


def sgd(lr: float, groups: int = 1) -> Any:
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def trace(optimizer: Any, scheduler: Any, steps: int, knob: str = "lr") -> list[float]:
    """What the first group sees at step 0, 1, ..., `steps`."""
    seen = [optimizer.param_groups[0][knob]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0][knob])
    return seen


def sequential(optimizer: Any) -> Any:
    warm = rates.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return rates.SequentialLR(
        optimizer, [warm, rates.CosineAnnealingLR(optimizer, T_max=30)], milestones=[10]
    )


def one_cycle(optimizer: Any, **settings: Any) -> Any:
    return rates.OneCycleLR(optimizer, max_lr=LR, total_steps=N + 1, **settings)


TURN = (0.3 * (N + 1) - 1) / N  # torch's peak, in progress
PUBLISHED: dict[str, tuple[Schedule, Callable[[Any], Any]]] = {
    "ConstantLR": (
        Piecewise((0.25,), (LR / 3, LR), kind="constant"),
        lambda o: rates.ConstantLR(o, factor=1 / 3, total_iters=10),
    ),
    "LinearLR": (
        Stages((0.25,), (Linear(LR / 4, LR), Constant(LR))),
        lambda o: rates.LinearLR(o, start_factor=0.25, total_iters=10),
    ),
    "CosineAnnealingLR": (
        Cosine(LR, 0.01),
        lambda o: rates.CosineAnnealingLR(o, T_max=N, eta_min=0.01),
    ),
    "CosineAnnealingWarmRestarts": (
        Stages((0.25, 0.75), (Cosine(LR, 0), Cosine(LR, 0), Linear(LR, LR / 2))),
        lambda o: rates.CosineAnnealingWarmRestarts(o, T_0=10, T_mult=2),
    ),
    "PolynomialLR": (Polynomial(LR, 0, 3), lambda o: rates.PolynomialLR(o, N, power=3)),
    "PolynomialLR, power 1": (Linear(LR, 0), lambda o: rates.PolynomialLR(o, N, power=1)),
    "ExponentialLR": (Exponential(LR, LR * 0.9**N), lambda o: rates.ExponentialLR(o, gamma=0.9)),
    "StepLR": (Step(LR, LR / 1000, (0.3, 0.6, 0.9)), lambda o: rates.StepLR(o, 12, gamma=0.1)),
    "MultiStepLR": (Step(LR, LR / 100), lambda o: rates.MultiStepLR(o, [20, 30], gamma=0.1)),
    "SequentialLR": (Stages((0.25,), (Linear(LR / 10, LR), Cosine(LR, 0))), sequential),
    "OneCycleLR, cos": (OneCycle(LR / 25, LR, LR / 25e4, TURN), one_cycle),
    "OneCycleLR, linear": (
        OneCycle(LR / 25, LR, LR / 25e4, TURN, shape="linear"),
        lambda o: one_cycle(o, anneal_strategy="linear"),
    ),
    "OneCycleLR, three phases": (
        Stages(
            (TURN, 2 * TURN),
            (Cosine(LR / 25, LR), Cosine(LR, LR / 25), Cosine(LR / 25, LR / 25e4)),
        ),
        lambda o: one_cycle(o, three_phase=True),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_in_torch(name: str) -> None:
    schedule, make = PUBLISHED[name]
    theirs, ours = sgd(LR), sgd(123.0)
    steps = 29 if name == "CosineAnnealingWarmRestarts" else N
    expected = trace(theirs, make(theirs), steps)
    assert [schedule(i / N) for i in range(steps + 1)] == pytest.approx(expected, rel=0, abs=1e-12)
    assert trace(ours, schedule.to_torch(ours, N), steps) == [
        schedule(i / N) for i in range(steps + 1)
    ]


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_momentum_of_one_cycle_as_in_torch(shape: Any) -> None:
    momentum = OneCycle(0.95, 0.85, 0.95, TURN, shape)
    optimizer = sgd(LR)
    scheduler = one_cycle(optimizer, anneal_strategy=shape[:3] if shape == "cosine" else shape)
    expected = trace(optimizer, scheduler, N, knob="momentum")
    assert [momentum(i / N) for i in range(N + 1)] == pytest.approx(expected, rel=0, abs=1e-12)


def warm_then(warmup: int, after: Callable[[int], float]) -> Callable[[int], float]:
    return lambda step: LR * (step / max(1, warmup) if step < warmup else after(step))


def hugging_face_wsd(shape: str, floor: float, warmup: int = 16, decay_from: int = 96) -> Any:
    def after(step: int) -> float:
        x = max(0.0, (step - decay_from) / (T - decay_from))
        left: dict[str, float] = {
            "linear": 1 - x,
            "cosine": (1 + math.cos(math.pi * x)) / 2,
            "sqrt": 1 - math.sqrt(x),
        }
        return (1 - floor) * left[shape] + floor

    return warm_then(warmup, after)


# A power of two, so that steps / T are exact: the square root amplifies an ulp at its edge.
T, W = 128, 16
HUGGING_FACE: dict[str, tuple[Schedule, Callable[[int], float]]] = {
    "constant": (as_schedule(LR), lambda step: LR),
    "constant_with_warmup": (warmed(Constant(LR), W / T), warm_then(W, lambda s: 1.0)),
    "linear": (warmed(Linear(LR, 0), W / T), warm_then(W, lambda s: (T - s) / (T - W))),
    "linear without warm-up": (warmed(Linear(LR, 0), 0), warm_then(0, lambda s: (T - s) / T)),
    "cosine": (
        warmed(Cosine(LR, 0), W / T),
        warm_then(W, lambda s: 0.5 * (1 + math.cos(math.pi * (s - W) / (T - W)))),
    ),
    "cosine_with_min_lr": (
        warmed(Cosine(LR, LR / 10), W / T),
        warm_then(W, lambda s: 0.45 * (1 + math.cos(math.pi * (s - W) / (T - W))) + 0.1),
    ),
    "cosine_with_restarts": (
        warmed(Stages((0.5,), (Cosine(LR, 0), Cosine(LR, 0))), W / T),
        warm_then(
            W,
            lambda s: (
                0.5 * (1 + math.cos(math.pi * (2 * (s - W) / (T - W) % 1.0))) if s < T else 0.0
            ),
        ),
    ),
    "polynomial": (
        warmed(Polynomial(LR, 1e-7, 2), W / T),
        warm_then(W, lambda s: ((LR - 1e-7) * (1 - (s - W) / (T - W)) ** 2 + 1e-7) / LR),
    ),
    "inverse_sqrt": (
        warmed(InverseSqrt(LR, LR / math.sqrt(T / W)), W / T),
        warm_then(W, lambda s: 1 / math.sqrt(s / W)),
    ),
    "inverse_sqrt, time scale 50": (
        warmed(InverseSqrt(LR, LR / math.sqrt((T - W + 50) / 50)), W / T),
        warm_then(W, lambda s: 1 / math.sqrt((s + 50 - W) / 50)),
    ),
    "wsd": (WSD(0, LR, 0, W / T, 0.25, "cosine"), hugging_face_wsd("cosine", 0.0)),
    "wsd, linear": (WSD(0, LR, 0, W / T, 0.25), hugging_face_wsd("linear", 0.0)),
    "wsd, 1-sqrt": (WSD(0, LR, LR / 10, W / T, 0.25, "sqrt"), hugging_face_wsd("sqrt", 0.1)),
    "wsd, by stages": (
        Stages((W / T, 0.75), (Linear(0, LR), Constant(LR), Cosine(LR, 0))),
        hugging_face_wsd("cosine", 0.0),
    ),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_as_in_hugging_face(name: str) -> None:
    schedule, formula = HUGGING_FACE[name]
    expected = [formula(step) for step in range(T + 1)]
    assert [schedule(step / T) for step in range(T + 1)] == pytest.approx(
        expected, rel=0, abs=1e-12
    )


def test_dawnbench_records() -> None:
    """ImageNet in 18:05 (fast.ai, 40 epochs) and 2:38 (Alibaba, 28 epochs), from their entries."""
    levels = (1.88, 0.2507, 0.02507, 0.0376)
    fast = Stages(
        tuple(epoch / 40 for epoch in (6, 16, 19, 31)),
        (Linear(1.88, 3.76), *map(Constant, levels)),
    )
    epochs = (0, 3, 6, 15, 16, 18, 19, 30, 31, 39, 40)
    levels_seen = [1.88, 2.82, 1.88, 1.88, 0.2507, 0.2507, 0.02507, 0.02507, *[0.0376] * 3]
    assert [fast(epoch / 40) for epoch in epochs] == pytest.approx(levels_seen)
    batch = Piecewise(
        tuple(epoch / 40 for epoch in (6, 16, 19, 37)),
        (8192, 16384, 8192, 24576, 16384),
        kind="constant",
    )
    assert [batch(epoch / 40) for epoch in (5, 6, 18, 36, 37)] == [8192, 16384, 8192, 24576, 16384]
    alibaba = warmed(Linear(25.0, 0.2), 0.5)
    assert [alibaba(epoch / 28) for epoch in (0, 7, 14, 21, 28)] == [0.0, 12.5, 25.0, 12.6, 0.2]
    assert len(str(fast)) < 250


def test_to_torch_sets_every_group_and_resumes_from_its_step() -> None:
    schedule = warmed(Cosine(0.3, 0.0), 0.1)
    optimizer = sgd(0.7, groups=3)
    optimizer.param_groups[1]["lr"] = 99.0
    scheduler = schedule.to_torch(optimizer, 10)
    trace(optimizer, scheduler, 4)
    assert {group["lr"] for group in optimizer.param_groups} == {schedule(4 / 10)}

    again = sgd(0.7, groups=3)
    resumed = schedule.to_torch(again, 10)
    resumed.load_state_dict(scheduler.state_dict())
    again.load_state_dict(optimizer.state_dict())
    assert trace(again, resumed, 8) == [schedule((4 + i) / 10) for i in range(9)]


# The rest of the door.


def test_plot_and_draw() -> None:
    ax: Any = pytest.importorskip("matplotlib.figure").Figure().subplots()
    assert Linear(0, 1).plot(ax) is ax
    assert np.asarray(ax.lines[0].get_ydata())[-1] == 1.0
    assert ax.get_title() == "linear 0 -> 1"
    figure = schedule_plot.draw({"lr": WSD(0, 1, 0), "momentum": Constant(0.9)})
    assert [ax.get_ylabel() for ax in figure.axes] == ["lr", "momentum"]


def test_plot_makes_its_own_figure() -> None:
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert Linear(0, 1).plot() is plt.gca()
    assert len(plt.get_fignums()) == len(before) + 1
    plt.close()


def test_importing_and_calling_is_light() -> None:
    code = (
        "import sys; from autotune.schedules import Cosine, warmed; warmed(Cosine(1, 0), 0.1)(0.5);"
        "print([m for m in ('numpy', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_doctests() -> None:
    assert doctest.testmod(schedules).failed == 0
