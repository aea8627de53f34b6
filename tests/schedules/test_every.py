"""What holds for every schedule, for their texts and pictures, and for the package."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import math
import pickle
import pkgutil
import subprocess
import sys
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from curves import (
    CASES,
    Case,
    edges,
    every,
    first_of,
    largest_of,
    last_of,
    progresses,
    quick,
    values,
)
from hypothesis import given
from hypothesis import strategies as st

from autotune import schedules
from autotune.schedules import (
    FAMILIES,
    WSD,
    Constant,
    Cosine,
    Effective,
    Exponential,
    Following,
    InverseSqrt,
    Linear,
    LinearCosine,
    Mirrored,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Spliced,
    Stages,
    Step,
    Until,
    as_schedule,
    edges_of,
    from_json,
    scaled,
    warmed,
)
from autotune.schedules.plot import draw

ULP = sys.float_info.epsilon


def test_every_family_has_a_case() -> None:
    assert set(CASES) == set(get_args(Schedule))


# What holds for every family and composition.


@every
@quick
@given(data=st.data())
def test_exact_at_both_ends_and_held_after_one(case: Case, data: st.DataObject) -> None:
    schedule = data.draw(case.some)
    first, last = first_of(schedule), last_of(schedule)
    if case.composed:  # the formula, in another order
        slack = 1e-12 * largest_of(schedule)
        first, last = pytest.approx(first, abs=slack), pytest.approx(last, abs=slack)
    assert schedule(0) == schedule(0.0) == schedule(-0.0)
    assert schedule(0) == first
    assert schedule(1) == schedule(1.0)
    assert schedule(1) == last
    for late in (math.nextafter(1.0, 2.0), 1.5, 1e9, math.inf):
        assert schedule(late) == schedule(1.0)


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
    slack = 1e-11 * largest_of(schedule) * factor + 1e-300
    assert scaled(schedule, factor)(x) == pytest.approx(schedule(x) * factor, abs=slack)
    assert scaled(schedule, 1.0) == schedule


@pytest.mark.parametrize("kind", [k for k in CASES if CASES[k].monotone], ids=lambda k: k.__name__)
@quick
@given(data=st.data(), a=progresses, b=progresses)
def test_monotone(kind: Any, data: st.DataObject, a: float, b: float) -> None:
    schedule = data.draw(CASES[kind].some)
    sign = 1.0 if schedule(1.0) >= schedule(0.0) else -1.0
    slack = ULP * largest_of(schedule)  # the C library's pow and cos
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
    largest = largest_of(schedule)
    for at in (x, 1.0 - 1e-9, *(knot - 1e-9 for knot in knots if knot > 0.0)):
        assert abs(schedule(at + 1e-9) - schedule(at)) <= 0.01 * largest


@every
@quick
@given(data=st.data(), xs=st.lists(progresses, min_size=1, max_size=4))
def test_it_jumps_at_its_edges_only(case: Case, data: st.DataObject, xs: list[float]) -> None:
    """Compositions too: between neighbours of `edges_of` a small step moves the value little."""
    schedule = data.draw(case.some)
    largest = largest_of(schedule)
    step = 1e-9
    for low, high in pairwise((0.0, *edges_of(schedule), 1.0)):
        if high - low < 10 * step:
            continue
        for at in (low, *(low + (high - low - 2 * step) * x for x in xs), high - 2 * step):
            assert abs(schedule(at + step) - schedule(at)) <= 0.01 * largest, (at, low, high)


@quick
@given(data=st.data(), a=progresses, b=progresses)
def test_what_is_made_of_monotone_schedules_is_monotone(
    data: st.DataObject, a: float, b: float
) -> None:
    kind = data.draw(st.sampled_from([k for k in CASES if CASES[k].monotone]))
    base = data.draw(CASES[kind].some)
    knots = sorted(data.draw(st.lists(values, min_size=3, max_size=3)))
    rising = (
        Piecewise((0.3,), tuple(knots)),
        Piecewise((0.3, 0.6), tuple(knots), kind="constant"),
        Stages((0.3,), (Linear(knots[0], knots[1]), Cosine(knots[1], knots[2]))),
    )
    opposite, way = Mirrored(base, 0.85, 0.95), base(1.0) - base(0.0)
    for schedule, sign in ((opposite, -1.0 if way > 0 else 1.0), *((s, 1.0) for s in rising)):
        slack = 1e-9 * largest_of(schedule)
        assert sign * schedule(min(a, b)) <= sign * schedule(max(a, b)) + slack


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
    "linearcosine 0.4 -> 0": LinearCosine(0.4, 0),
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
    "0-50% of (linear 0 -> 1), 50-100% of (constant 2)": Spliced(
        (0.5,), (Linear(0, 1), Constant(2))
    ),
    "linear 2 -> 0": Following(Linear(1, 0), Constant(512), 0.5, 128),
    "(linear 1 -> 0) x ((linear 256 -> 512) / 128)^0.5": Following(
        Linear(1, 0), Linear(256, 512), 0.5, 128
    ),
    "mirrored (cosine 1 -> 0) (low 0.85, high 0.95)": Mirrored(Cosine(1, 0), 0.85, 0.95),
    "until (linear 64 -> 128) (edges 50% 75%, values 32 -> 512)": Until(
        Linear(64, 128), (0.5, 0.75), (32, 512)
    ),
    "0-10%: linear 0 -> 0.1, 10-100%: constant 0.1": Effective(
        warmed(Constant(1), 0.1), Constant(0.9)
    ),
    "0-50%: (0-10%: linear 0 -> 0.1, 10-100%: constant 0.1), 50-100%: constant 1": Stages(
        (0.5,), (Effective(warmed(Constant(1), 0.1), Constant(0.9)), Constant(1))
    ),
    "(constant 1) x (1 - (linear 0.5 -> 0.9))": Effective(Constant(1), Linear(0.5, 0.9)),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str) -> None:
    assert str(TEXTS[text]) == text


def test_text_fits_a_tracker() -> None:
    many = Piecewise(tuple(i / 100 for i in range(1, 100)), tuple(range(101)))
    assert len(str(many)) == 250
    assert str(many).endswith("...")


# The rest of the public names.


def test_plot_and_draw() -> None:
    ax: Any = pytest.importorskip("matplotlib.figure").Figure().subplots()
    assert Linear(0, 1).plot(ax) is ax
    assert np.asarray(ax.lines[0].get_ydata())[-1] == 1.0
    assert ax.get_title() == "linear 0 -> 1"
    figure = draw({"lr": WSD(0, 1, 0), "momentum": Constant(0.9)})
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
    modules = [module.name for module in pkgutil.iter_modules(schedules.__path__)]
    assert {"families", "compose", "making", "analysis"} <= set(modules)
    for name in ("autotune.schedules", *(f"autotune.schedules.{module}" for module in modules)):
        assert doctest.testmod(importlib.import_module(name)).failed == 0, name
