"""What is searched: what is allowed, what a point becomes, and what errors say."""

from __future__ import annotations

import doctest
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sims import BASELINE, WIDE

from autotune import errors, schedules
from autotune.errors import UserError, unknown
from autotune.space import knotted_schedules, schedule_space
from autotune.space import parameters as parameters_module
from autotune.space import search_space as space_module
from autotune.space.search_space import (
    Choice,
    Constraint,
    Fixed,
    Float,
    Int,
    Parameter,
    ScheduleSpace,
    SearchSpace,
)
from autotune.storage.codec import plain
from autotune.storage.journal import from_line, to_line
from autotune.study.experiment import Experiment
from autotune.trial import Suggested, Target
from autotune.trial.scaling import Scaling

names = st.sampled_from(["lr", "batch_size", "wd", "optimizer", "schedule", "version"])
floats = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)


@st.composite
def parameters(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["float", "log", "int", "step", "log_int", "power", "choice"]))
    if kind in ("float", "log"):
        low, high = sorted(draw(st.tuples(*[positive if kind == "log" else floats] * 2)))
        return Float(low, high, log=kind == "log")
    if kind == "power":
        low, high = sorted(draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
        return Int(2**low, 2**high, power_of_two=True)
    if kind == "choice":
        options = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.floats(-1, 1))
        return Choice(draw(st.lists(options, min_size=1, max_size=4, unique=True)))
    low, high = sorted(draw(st.tuples(st.integers(1, 99), st.integers(1, 99))))
    return Int(
        low, high, log=kind == "log_int", step=draw(st.integers(1, 7)) if kind == "step" else 1
    )


schedule_spaces = st.builds(
    ScheduleSpace,
    st.sampled_from([Float(1e-5, 10, log=True), Float(0.1, 0.2), 0.5]),
    family=st.sampled_from(["wsd", Choice(list(schedules.FAMILIES)), Choice(["cosine", "step"])]),
    final=st.sampled_from([Float(1e-3, 1, log=True), 0.01]),
    warmup=st.sampled_from([Float(0, 0.5), 0.0, 0.2]),
)

counted_spaces = st.builds(
    ScheduleSpace,
    st.sampled_from([Int(1, 8), Int(16, 256, power_of_two=True)]),
    family=st.just(Choice(["constant", "staircase"])),
    knots=st.sampled_from([2, Int(1, 3)]),
    direction=st.sampled_from(["falling", "rising", "free"]),
)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Spaces in which every later entry may depend on an earlier choice."""
    entries: dict[str, Any] = {"mode": Choice(["a", "b", "c"])}
    for name in draw(st.lists(names, unique=True, max_size=5)):
        kinds = st.one_of(
            parameters(), schedule_spaces, counted_spaces, st.builds(Fixed, st.integers())
        )
        entry = draw(kinds)
        when = draw(st.sampled_from([None, {"mode": "a"}, {"mode": ("a", "b")}]))
        entries[name] = type(entry)(**{**vars(entry), "when": when})
    return SearchSpace(entries)


def drawn(data: st.DataObject, parameter: Parameter) -> Any:
    if isinstance(parameter, Choice):
        return data.draw(st.sampled_from(parameter.options))
    if isinstance(parameter, Float):
        return data.draw(st.floats(parameter.low, parameter.high))
    allowed = list(range(parameter.low, min(parameter.high, 300) + 1))
    if parameter.power_of_two:
        allowed = [2**k for k in range(21) if parameter.low <= 2**k <= parameter.high]
    return data.draw(st.sampled_from(allowed[:: parameter.step]))


@given(spaces(), st.data())
def test_a_suggested_point_is_valid_and_its_config_survives_the_journal(
    space: SearchSpace, data: st.DataObject
) -> None:
    point = space.suggest(lambda name, parameter: drawn(data, parameter))
    assert space.check(point) == point
    config = space.config(point)
    event = Suggested(0, plain(config), point, "trial", 1)
    assert event.config == config
    assert from_line(to_line(event)) == event
    assert space.complete(point) == (config, point)
    for name, entry in space.entries.items():
        if isinstance(entry, ScheduleSpace) and name in config:
            assert math.isfinite(config[name](0.3))


def test_conditions_decide_what_exists() -> None:
    sgd = WIDE.check(BASELINE)
    assert "trust" not in WIDE.config(sgd)
    lars = {**BASELINE, "optimizer": "lars", "trust": 0.01}
    assert WIDE.config(lars)["trust"] == 0.01
    assert WIDE.config(lars)["epochs"] == 4
    assert isinstance(WIDE.config(lars)["lr"], schedules.Stages)
    chain = SearchSpace(
        {
            "a": Choice([1, 2]),
            "b": Choice([1, 2], when={"a": 2}),
            "c": Float(0, 1, when={"b": (1, 2)}),
            "s": ScheduleSpace(Float(1, 2), when={"b": 1}),
        }
    )
    assert chain.check({"a": 1}) == {"a": 1}
    assert chain.config({"a": 2, "b": 2, "c": 0.5}) == {"a": 2, "b": 2, "c": 0.5}
    assert set(chain.config({"a": 2, "b": 1, "c": 0.5, "s.peak": 1.5})) == {"a", "b", "c", "s"}


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ({"batchsize": 64}, "unknown parameter 'batchsize'; did you mean 'batch_size'?"),
        ({"batch_size": 65}, "batch_size must be a power of two from 16 to 256 but got 65"),
        ({"batch_size": 512}, "batch_size must be a power of two from 16 to 256 but got 512"),
        ({"batch_size": 64.0}, "batch_size must be a whole number but got 64.0"),
        ({"batch_size": True}, "batch_size must be a whole number but got True"),
        ({"layers": 5}, "layers must be a whole number from 1 to 9 in steps of 3 but got 5"),
        ({"lr.peak": 11}, "lr.peak must be a number from 0.0001 to 10 but got 11"),
        ({"lr.peak": math.nan}, "lr.peak must be a number from 0.0001 to 10 but got nan"),
        ({"lr.peak": "0.1"}, "lr.peak must be a number but got '0.1'"),
        ({"optimizer": "adam"}, "optimizer must be one of 'sgd', 'lars' but got 'adam'"),
        ({"optimizer": "lars"}, "trust is missing: it must be a number from 0.0001 to 0.1"),
        ({"trust": 0.01}, "trust is given but exists only when optimizer is 'lars'"),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(
    point: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError) as error:
        WIDE.check({**BASELINE, **point})
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Float(1, 0), "Float(1, 0) is an empty range: low is above high"),
        (lambda: Float(0, 1, log=True), "Float(0, 1, log=True) needs low above 0"),
        (lambda: Float(0, math.inf), "Float high must be finite but got inf"),
        (lambda: Float("0", 1), "Float low must be a number but got '0'"),
        (lambda: Int(1, 2.5), "Int high must be a whole number but got 2.5"),
        (lambda: Int(4, 1), "Int(4, 1) is an empty range: low is above high"),
        (lambda: Int(1, 9, step=0), "Int step must be >= 1, and 1 when log, but got 0"),
        (lambda: Int(1, 9, step=2, log=True), "Int step must be >= 1, and 1 when log, but got 2"),
        (lambda: Int(3, 64, power_of_two=True), "both ends must be powers of two"),
        (lambda: Int(0, 64, power_of_two=True), "both ends must be powers of two"),
        (lambda: Choice([]), "Choice needs at least one option but got none"),
        (lambda: Choice("sgd"), "Choice needs a list of options but got 'sgd'"),
        (lambda: Choice([1, 1]), "Choice options must differ but got (1, 1)"),
        (lambda: Choice([[1]]), "strings, numbers, booleans or None but got [1]"),
        (lambda: Choice([1.0, math.inf]), "Choice options must be finite but got inf"),
        (
            lambda: ScheduleSpace(0.1, family="cosin"),
            "unknown schedule family 'cosin'; did you mean",
        ),
        (lambda: ScheduleSpace(0.1, warmup=1.0), "warmup must lie in [0, 1) but got 1.0"),
        (lambda: ScheduleSpace(0.1, family="exponential"), "end must be greater than 0"),
        (lambda: ScheduleSpace(Float(0, 1), family="step", final=0.1), "must be greater than 0"),
        (lambda: SearchSpace({"a.b": Fixed(1)}), "without '.' but got 'a.b'"),
        (lambda: SearchSpace({"seed": Fixed(1)}), "'seed' is reserved"),
        (lambda: SearchSpace({"lr": 0.1}), "lr must be a Float, Int, Choice, Fixed or"),
        (
            lambda: SearchSpace({"t": Float(0, 1, when={"optimizer": "lars"})}),
            "t: when: unknown parameter declared before it 'optimizer'",
        ),
        (
            lambda: SearchSpace({"o": Choice(["a", "b"]), "t": Float(0, 1, when={"o": "lars"})}),
            "t: when: o can never be 'lars'",
        ),
        (
            lambda: Int(1, 10**400),
            "Int high must be a whole number but got a whole number of 1329 bits",
        ),
        (
            lambda: Float(0, 10**400),
            "Float high must be finite but got a whole number of 1329 bits",
        ),
        (lambda: Float(-1e308, 1e308), "Float low must be at most 4.49423e+307 but got -1e+308"),
        (lambda: Float(0, 1, effective=3), "Float effective must be a name but got 3"),
        (
            lambda: Float(0, 1, when="b"),
            "Float when must be a dict like {'optimizer': 'lars'} but got",
        ),
        (
            lambda: Int(0, 1, when=["b"]),
            "Int when must be a dict like {'optimizer': 'lars'} but got",
        ),
        (
            lambda: Fixed(0, when={3: 1}),
            "Fixed when must be a dict like {'optimizer': 'lars'} but got",
        ),
        (lambda: Choice([1, 2], when={"b": []}), "Choice when: b must have a value but got []"),
        (lambda: Choice([1, True, 1.0]), "Choice options must differ but got (1, True, 1.0)"),
        (
            lambda: Choice([10**400]),
            "Choice options must be numbers but got a whole number of 1329",
        ),
        (lambda: ScheduleSpace(0.1, follows=["a"]), "ScheduleSpace follows must be a name but got"),
        (lambda: SearchSpace([Fixed(1)]), "SearchSpace entries must be a dict but got [Fixed("),
        (
            lambda: SearchSpace({"microbatch": Int(1, 8)}),
            "'microbatch' may be Fixed only, as autotune",
        ),
        (lambda: SearchSpace({}, (len,)), "must each be a Constraint, with a text and a function,"),
        (
            lambda: SearchSpace({}, Constraint("x", len)),
            "SearchSpace constraints must be a tuple but",
        ),
        (lambda: Constraint("", len), "Constraint text must be text but got ''"),
        (lambda: Constraint("x", True), "Constraint holds must be a function but got True"),
        (
            lambda: SearchSpace({"n": Fixed(3), "t": Float(0, 1, when={"n": (4, 5)})}),
            "t: when: n is fixed at 3 and can never be 4 or 5",
        ),
        (
            lambda: SearchSpace(
                {
                    "a": Choice([1, 2]),
                    "b": Choice([3, 4], when={"a": 2}),
                    "t": Float(0, 1, when={"a": 1, "b": 3}),
                }
            ),
            "t: when: a is 1 and b is 3 can never hold, as it needs two different values of a",
        ),
    ],
)
def test_wrong_spaces_are_refused_at_once(make: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert says in str(error.value)


def test_complete_takes_points_and_configurations() -> None:
    config, params = WIDE.complete(BASELINE)
    assert params == BASELINE
    assert config == WIDE.config(BASELINE)
    assert WIDE.complete({**BASELINE, "epochs": 4}) == (config, params)
    outside = {"lr": schedules.Linear(1, 0), "batch_size": 7, "layers": 2, "optimizer": "sgd"}
    assert WIDE.complete(outside) == ({"epochs": 4, **outside}, None)
    with pytest.raises(ValueError, match="unknown parameter 'bs'"):
        WIDE.complete({"lr": schedules.Linear(1, 0), "bs": 7})


def test_complete_takes_a_plain_number_for_a_schedule() -> None:
    config, _ = WIDE.complete({"lr": 0.1, "batch_size": 7, "layers": 2, "optimizer": "sgd"})
    assert config["lr"] == schedules.Constant(0.1)


def test_complete_names_the_fixed_value_that_a_point_contradicts() -> None:
    with pytest.raises(ValueError, match="epochs is fixed at 4 but got 8"):
        WIDE.complete({**BASELINE, "epochs": 8})


def test_constraints_say_which_is_broken() -> None:
    rules = (
        Constraint("batch below 64", lambda c: c["batch"] < 64),
        Constraint("odd", lambda c: c["batch"] % 2 == 1),
    )
    space = SearchSpace({"batch": Int(1, 100)}, constraints=rules)
    assert space.broken({"batch": 3}) == ""
    assert space.broken({"batch": 70}) == "batch below 64"
    assert space.broken({"batch": 4}) == "odd"


def test_a_constraint_returns_true_or_false() -> None:
    import numpy as np

    def broken(holds: Any) -> str:
        return SearchSpace({}, (Constraint("rule", lambda c: holds),)).broken({})

    assert [broken(holds) for holds in (True, np.True_, False, np.False_)] == [
        "",
        "",
        "rule",
        "rule",
    ]
    for holds, shown in ((None, "None"), ("yes", "'yes'"), ([1], r"\[1\]")):
        with pytest.raises(UserError, match=f"'rule' must return True or False but got {shown}"):
            broken(holds)


def test_a_large_range_is_counted_without_its_numbers() -> None:
    space = SearchSpace({"a": Int(1, 2**62, step=3), "b": Int(1, 2**62, power_of_two=True)})
    assert space.size().points == ((2**62 - 1) // 3 + 1) * 63


def test_unknown_is_one_line_with_the_nearest_name() -> None:
    assert unknown("sampler", "tpee", ["tpe", "gp"]) == (
        "unknown sampler 'tpee'; did you mean 'tpe'? (allowed: gp, tpe)"
    )
    assert "did you mean" not in unknown("sampler", "zzz", ["tpe", "gp"])
    assert unknown("study", "zzz", []) == "unknown study 'zzz': there is none"


# --- the experiment ---------------------------------------------------------------------------


def train(config: dict[str, Any]) -> Any: ...


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "a b"}, "name must be letters, digits, '-', '_' and '.', but got 'a b'"),
        ({"name": "../x"}, "name must be"),
        ({"train": 3}, "Experiment train must be a function, not what it returns, but got 3"),
        ({"train": lambda: 1}, "Experiment train must take one argument, the configuration, but"),
        ({"space": {}}, "Experiment space must be a SearchSpace but got {}"),
        ({"target": 0.9}, "Experiment target must be a Target but got 0.9"),
        ({"baseline": {"rat": 1}}, "Experiment baseline: unknown parameter 'rat'"),
        ({"configs": [{"rate": 5}]}, "Experiment configs: rate must be a number from 0 to 1"),
        ({"configs": [3]}, "Experiment configs: must be a dict of parameters but got 3"),
        ({"configs": "rate"}, "Experiment configs must be a list but got 'rate'"),
        ({"baseline": "x"}, "Experiment baseline: must be a dict of parameters but got 'x'"),
        ({"baseline": {3: 1}}, "Experiment baseline: must be a dict of parameters but got {3: 1}"),
        ({"knobs": [["lr"]]}, "Experiment knobs must be some of lr, batch_size, momentum but got"),
    ],
)
def test_a_wrong_experiment_is_refused_at_once(change: dict[str, Any], says: str) -> None:
    fine = {
        "name": "x",
        "train": train,
        "space": SearchSpace({"rate": Float(0, 1)}),
        "target": Target("acc", 0.9, limit=1),
    }
    Experiment(**fine)
    with pytest.raises(UserError) as error:
        Experiment(**{**fine, **change})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number >= 1 but got 0"),
        ({"num_workers": True}, "num_workers must be a whole number >= 1 but got True"),
        ({"cpus_per_worker": 0}, "cpus_per_worker must be more than 0 but got 0"),
        ({"cpus_per_worker": -1}, "cpus_per_worker must be a number >= 0 but got -1"),
        ({"cpus_per_worker": math.nan}, "cpus_per_worker"),
        ({"cpus_per_worker": math.inf}, "cpus_per_worker must be a number >= 0 but got inf"),
        (
            {"num_workers": 2**63},
            "num_workers must be a whole number >= 1 but got a whole number of",
        ),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker above 1 must be whole but got 1.5"),
        ({"gpus_per_worker": math.inf}, "gpus_per_worker must be a number >= 0 but got inf"),
        ({"accelerator": ""}, "accelerator must be a kind of GPU, as 'H100', got ''"),
        ({"accelerator": "H100", "gpus_per_worker": 0}, "'H100' needs GPUs, but gpus_per_worker"),
        ({"max_concurrent_trials": 0}, "max_concurrent_trials must be a whole number >= 1"),
    ],
)
def test_a_wrong_scaling_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Scaling(**arguments)


def test_fractions_are_shared() -> None:
    assert not Scaling().shared
    assert not Scaling(gpus_per_worker=2).shared
    assert Scaling(cpus_per_worker=0.5).shared
    assert Scaling(gpus_per_worker=0.25).shared


def test_a_configuration_gets_only_the_fixed_values_that_belong_to_it() -> None:
    space = SearchSpace(
        {
            "optimizer": Choice(("sgd", "lars")),
            "eps": Fixed(1e-8, when={"optimizer": "lars"}),
            "lr": ScheduleSpace(Float(0.1, 1)),
        }
    )
    outside = {"lr": schedules.Linear(5, 0)}
    assert space.complete({"optimizer": "sgd", **outside})[0] == {"optimizer": "sgd", **outside}
    assert space.complete({"optimizer": "lars", **outside})[0]["eps"] == 1e-8


@pytest.mark.parametrize(
    "module", [parameters_module, knotted_schedules, schedule_space, space_module, errors]
)
def test_the_examples_in_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# --- a number of which the effective value is searched --------------------------------------------

EFFECTIVE = SearchSpace(
    {
        "lr": Float(0.1, 10, log=True, effective="momentum"),
        "optimizer": Choice(("sgd", "adam")),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
    }
)


def test_the_effective_value_is_searched_and_the_value_itself_configured() -> None:
    assert list(EFFECTIVE.parameters()) == ["lr.effective", "optimizer", "momentum"]
    point = {"lr.effective": 2.0, "optimizer": "sgd", "momentum": 0.75}
    assert EFFECTIVE.config(point) == {"lr": 0.5, "optimizer": "sgd", "momentum": 0.75}
    assert EFFECTIVE.config({"lr.effective": 2.0, "optimizer": "adam"})["lr"] == 2.0
    for drawn in EFFECTIVE.sample(50):
        config = EFFECTIVE.config(drawn)
        effective = config["lr"] / (1 - config.get("momentum", 0.0))
        assert effective == pytest.approx(drawn["lr.effective"])


def test_a_configuration_has_its_place_in_a_space_of_effective_values() -> None:
    given_config = {"lr": 0.1, "optimizer": "sgd", "momentum": 0.9}
    config, params = EFFECTIVE.complete(given_config)
    assert config == given_config
    assert params is not None
    assert params["lr.effective"] == pytest.approx(1.0)
    assert EFFECTIVE.complete({"lr": 0.1, "optimizer": "adam"})[1] == {
        "lr.effective": 0.1,
        "optimizer": "adam",
    }
    outside = {"lr": 9.0, "optimizer": "sgd", "momentum": 0.9}
    assert EFFECTIVE.complete(outside) == (outside, None)
    point = {"lr.effective": 2.0, "optimizer": "adam"}
    assert EFFECTIVE.complete(point)[1] == point
    fixed = SearchSpace({"lr": Float(0.1, 10, effective="momentum"), "momentum": Fixed(0.5)})
    assert fixed.complete({"lr": 1.0}) == ({"lr": 1.0, "momentum": 0.5}, {"lr.effective": 2.0})


def test_what_follows_an_effective_value_follows_the_value_itself() -> None:
    space = SearchSpace(
        {
            "lr": Float(1.0, 10.0, effective="momentum"),
            "momentum": Fixed(0.5),
            "wd": ScheduleSpace(0.1, family="constant", follows="lr", rule="linear"),
        }
    )
    config = space.config({"lr.effective": 4.0})
    assert config["lr"] == 2.0
    assert config["wd"].reference == 2.0


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"momentun": Float(0, 0.9)}, "lr: effective: unknown entry 'momentum'; did you mean"),
        ({"momentum": Float(0, 1.0)}, r"lr: effective: momentum must lie in \[0, 1\)"),
        ({"momentum": Choice((0.5, 0.9))}, "must be a schedule or a number"),
        ({"momentum": ScheduleSpace(Float(0.5, 0.9))}, "must be a plain number"),
        ({"momentum": Float(0.5, 0.9, effective="m"), "m": Fixed(0.1)}, "must be a plain number"),
    ],
)
def test_an_effective_value_needs_a_momentum(entries: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SearchSpace({"lr": Float(0.1, 1, effective="momentum"), **entries})
