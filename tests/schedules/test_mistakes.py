"""The user's mistakes: one clear line that names the schedule, the place and the number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from curves import step_curve

from autotune.schedules import (
    WSD,
    Constant,
    Cosine,
    Effective,
    Exponential,
    Following,
    InverseSqrt,
    Linear,
    Mirrored,
    OneCycle,
    Piecewise,
    Polynomial,
    Stages,
    Step,
    Until,
    as_schedule,
    from_json,
    scaled,
    stages,
    warmed,
)
from autotune.schedules.plot import draw

NAN = math.nan
NO_OPTIMIZER: Any = None  # never reached
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
    "step_curve": (lambda: step_curve((0.5,), (1,)), "Piecewise: 1 edges need 2 values, got 1"),
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
    "steps": (
        lambda: Constant(1).to_torch(NO_OPTIMIZER, 0),
        "total_steps must be a positive integer",
    ),
    "base": (
        lambda: Following(0.1, Constant(1), 1, 1),  # type: ignore[arg-type]
        r"^Following: base must be a schedule, got 0\.1$",
    ),
    "power, nan": (
        lambda: Following(Constant(1), Constant(1), NAN, 1),
        "^Following: power must be a finite number, got nan$",
    ),
    "reference": (
        lambda: Following(Constant(1), Constant(1), 1, 0),
        "^Following: reference must be greater than 0, got 0$",
    ),
    "no batch": (
        lambda: Following(Constant(1), warmed(Linear(64, -1), 0.1), 1, 64),
        "^Following: other must be greater than 0 everywhere, it goes down to -1$",
    ),
    "no batch at its end": (
        lambda: Following(Constant(1), Stages((0.5,), (Linear(64, 0), Constant(1))), 1, 64),
        "^Following: other must be greater than 0 everywhere, it goes down to 0$",
    ),
    "power, far": (
        lambda: Following(Constant(1), Constant(1000), 400, 1),
        r"^Following: \(other / reference\)\^power is out of range, \(1000 / 1\)\^400$",
    ),
    "reference, far": (
        lambda: Following(Constant(1), Linear(1, 1e200), 0.1, 1e-200),
        r"^Following: .* is out of range, \(1 / 1e-200\)\^0\.1$",
    ),
    "product, far": (
        lambda: Following(Constant(1e300), Linear(1, 1e20), 1, 1),
        r"^Following: .* is out of range, \(1e\+20 / 1\)\^1$",
    ),
    "of": (
        lambda: Mirrored("cosine", 0, 1),  # type: ignore[arg-type]
        "^Mirrored: of must be a schedule, got 'cosine'$",
    ),
    "upside down": (
        lambda: Mirrored(Constant(1), 0.95, 0.85),
        r"^Mirrored: low must be at most high, got 0\.95 and 0\.85$",
    ),
    "upside down by its scale": (
        lambda: scaled(Mirrored(Constant(1), 0.85, 0.95), -1),
        r"^Mirrored: low must be at most high, got -0\.85 and -0\.95$",
    ),
    "until nothing": (
        lambda: Until(Linear(0, 1), (), ()),
        "^Until: edges must hold at least 1 number, got 0$",
    ),
    "until, count": (
        lambda: Until(Linear(0, 1), (0.5,), (1, 2)),
        "^Until: 1 edges need 1 values, got 2$",
    ),
    "momentum": (
        lambda: Effective(Constant(1), Linear(0.5, 1)),
        r"^Effective: momentum must lie in \[0, 1\) everywhere, it goes up to 1$",
    ),
    "negative momentum": (
        lambda: Effective(Constant(1), WSD(-0.5, 1, 0)),
        r"^Effective: momentum must lie in \[0, 1\) everywhere, it goes down to -0\.5$",
    ),
    "no stages": (lambda: stages(), "^stages needs at least 1 part, got 0$"),
    "no pair": (
        lambda: stages((1, 2), 3),  # type: ignore[arg-type]
        "^stages: part 2 must be a length and a schedule or number, got 3$",
    ),
    "no length": (
        lambda: stages((1, 2), (0, 3)),
        "^stages: part 2: length must be greater than 0, got 0$",
    ),
    "length of a single part": (
        lambda: stages((-1, 2)),
        "^stages: part 1: length must be greater than 0, got -1$",
    ),
    "no value": (
        lambda: stages((1, "cosine")),  # type: ignore[arg-type]
        "^stages: part 1: what is not a schedule must be a finite number, got 'cosine'$",
    ),
    "too short": (
        lambda: stages((1, 1), (1e-20, 2), (1, 3)),
        "^stages: part 2: length 1e-20 is too short in a total of 2$",
    ),
    "warming up what is no schedule": (
        lambda: warmed("cosine", 0.1),  # type: ignore[arg-type]
        "^Constant: value must be a finite number, got 'cosine'$",
    ),
    "scaling what is no schedule": (
        lambda: scaled(None, 2),  # type: ignore[arg-type]
        "^Constant: value must be a finite number, got None$",
    ),
    "nothing": (lambda: draw({}), "draw needs at least 1 schedule, got 0"),
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
    "later version": (
        Linear(0, 1).to_json() | {"version": 2, "slope": 3},
        "^Linear: version must be 1, got 2: a later autotune wrote it, and reads it$",
    ),
    "earlier version": (
        Linear(0, 1).to_json() | {"version": 0},
        "^Linear: version must be 1, got 0$",
    ),
    "version, bool": (
        Linear(0, 1).to_json() | {"version": True},
        "^Linear: version must be 1, got True$",
    ),
    "later version within": (
        warmed(Linear(1, 0), 0.5).to_json()
        | {"parts": [Linear(0, 1).to_json(), Linear(1, 0).to_json() | {"version": 7}]},
        "^Stages: part 2: Linear: version must be 1, got 7: a later autotune wrote it, and reads",
    ),
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
    "bad base": (
        Following(Linear(1, 0), Constant(1), 1, 1).to_json()
        | {"base": Linear(1, 0).to_json() | {"end": "0"}},
        "^Following: base: Linear: end must be a finite number, got '0'$",
    ),
    "number as base": (
        Effective(Linear(1, 0), Constant(0)).to_json() | {"base": 1},
        "^Effective: base: a schedule must be a JSON object that names its schedule, got 1$",
    ),
    "deep": (
        Stages((), (Mirrored(warmed(Constant(1), 0.5), 0, 1),)).to_json()
        | {
            "parts": [
                Mirrored(Constant(1), 0, 1).to_json()
                | {"of": Stages((), (Constant(1),)).to_json() | {"parts": [{"schedule": "Step"}]}}
            ]
        },
        "^Stages: part 1: Mirrored: of: Stages: part 1: Step: version must be 1, got None$",
    ),
    "no momentum": (
        {"schedule": "Effective", "version": 1, "base": Constant(1).to_json()},
        "^Effective: its fields must be base, momentum; got base$",
    ),
}


def test_a_document_that_is_nested_without_end_is_refused() -> None:
    document = Constant(1).to_json()
    for _ in range(5000):
        document = {"schedule": "Stages", "version": 1, "edges": [], "parts": [document]}
    with pytest.raises(ValueError, match=r"^a schedule is nested too deeply in others$"):
        from_json(document)


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


def test_documents_of_schedules_within_schedules_stay_readable() -> None:
    """Frozen like those above."""
    text = """{"schedule": "Effective", "version": 1,
        "base": {"schedule": "Following", "version": 1,
            "base": {"schedule": "Constant", "version": 1, "value": 0.1},
            "other": {"schedule": "Linear", "version": 1, "start": 128.0, "end": 256.0},
            "power": 0.5, "reference": 128.0},
        "momentum": {"schedule": "Mirrored", "version": 1,
            "of": {"schedule": "Cosine", "version": 1, "start": 1.0, "end": 0.0},
            "low": 0.85, "high": 0.95}}"""
    schedule = Effective(
        Following(Constant(0.1), Linear(128, 256), 0.5, 128), Mirrored(Cosine(1, 0), 0.85, 0.95)
    )
    assert from_json(json.loads(text)) == schedule
    assert json.loads(text) == schedule.to_json()
