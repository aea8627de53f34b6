"""Copies that differ between exchanges: real ranks against the papers by hand; states; refusals.

That exchanges in every step are the training of one rank is in `test_conformance.py`.
"""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killed_ranks
import pytest
import torch
from averaged_steps import WEIGHTS, ByHand, exchanges, mean, taken
from killed_ranks import RANKS, file
from torch import Tensor

from autotune.schedules import Constant, Linear, stages
from trainers import language, settings, trained_weights
from trainers.communication import (
    copies,
    hierarchical,
    staleness,
    synchronization,
)
from trainers.communication.synchronization import KINDS, KNOBS
from trainers.optimizers.make import NAMES

ROOT = Path(__file__).parents[2]
STEPS = 14
Taken = Callable[[dict[str, Any]], list[dict[str, Any]]]


def near(found: list[Tensor], wanted: list[Tensor]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)


@pytest.fixture
def on_ranks(on_two_ranks: Callable[..., Any]) -> Taken:
    """`averaged_steps.taken` on two ranks."""

    def run(keys: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = on_two_ranks(keys, STEPS, by_hand=True)
        for rank in found:
            assert "error" not in rank, rank["error"]
        return found

    return run


@pytest.mark.parametrize("module", [copies, hierarchical, staleness, synchronization])
def test_examples(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried or module is synchronization
    assert not failed


# --- against the papers ---------------------------------------------------------------------------

PERIODS = [Constant(3), Linear(1, 5), stages((1, Constant(1)), (2, Constant(4)))]


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("period", PERIODS, ids=["3", "1 to 5", "1, then 4"])
def test_local_sgd_averages_as_its_period_says(period: Any, start: int, on_ranks: Taken) -> None:
    keys = {"synchronization": "local_sgd", "local_sgd_period": period, "local_sgd_start": start}
    found = on_ranks(keys)
    hand, since = ByHand(2), 0
    for step in range(STEPS):
        gradients = hand.gradients()
        early = step < start
        hand.step([mean(gradients)] * 2 if early else gradients)
        since += not early
        due = not early and since >= round(period(step / STEPS))
        if due:
            hand.average()
            since = 0
        assert near([rank["weights"][step] for rank in found], hand.weights), step
        assert near([rank["whole"][step] for rank in found], [hand.mean()] * 2), step
        same = torch.equal(*(rank["weights"][step] for rank in found))
        assert same == (due or early), "bit for bit after an exchange, and only then"
        assert {rank["sent"][step] for rank in found} == {WEIGHTS if due or early else 0}
    if not start:
        due_at = exchanges(period, STEPS)
        assert [bool(sent) for sent in found[0]["sent"]] == due_at


@pytest.mark.parametrize(
    ("period", "lr", "momentum"),
    [(Constant(3), 0.7, 0.9), (Constant(3), 1.0, 0.0), (Linear(1, 5), 0.7, 0.9)],
    ids=["3", "3, mean", "1 to 5"],
)
def test_diloco_is_nesterov_momentum_on_what_ranks_have_changed(
    period: Any, lr: float, momentum: float, on_ranks: Taken
) -> None:
    keys = {"diloco_period": period, "diloco_outer_lr": lr, "diloco_outer_momentum": momentum}
    found = on_ranks({"synchronization": "diloco", **keys})
    hand = ByHand(2)
    whole = torch.nn.Parameter(hand.mean())
    outer = torch.optim.SGD([whole], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for step, due in enumerate(exchanges(period, STEPS)):
        hand.step(hand.gradients())
        if due:
            whole.grad = whole.detach() - hand.mean()
            outer.step()
            hand.weights = [whole.detach().clone() for _ in hand.weights]
            assert torch.equal(*(rank["weights"][step] for rank in found))
        assert near([rank["weights"][step] for rank in found], hand.weights), step
        assert near([rank["whole"][step] for rank in found], [whole.detach()] * 2), step
        assert {rank["sent"][step] for rank in found} == {WEIGHTS if due else 0}


def test_diloco_without_an_outer_optimizer_is_local_sgd(on_ranks: Taken) -> None:
    outer = {"diloco_outer_lr": 1.0, "diloco_outer_momentum": 0.0}
    found = on_ranks({"synchronization": "diloco", "diloco_period": 4, **outer})
    local = on_ranks({"synchronization": "local_sgd", "local_sgd_period": 4})
    for rank, wanted in zip(found, local, strict=True):
        assert near(rank["weights"], wanted["weights"])


def test_geo_sgd_without_delay_is_local_sgd(on_ranks: Taken) -> None:
    """The global weights plus the mean of what has changed are the mean of the weights."""
    found = on_ranks({"synchronization": "geo_sgd", "geo_sgd_period": 4, "geo_sgd_delay": 0})
    local = on_ranks({"synchronization": "local_sgd", "local_sgd_period": 4})
    for rank, wanted in zip(found, local, strict=True):
        assert near(rank["weights"], wanted["weights"])
    for step, due in enumerate(exchanges(Constant(4), STEPS)):
        assert torch.equal(*(rank["weights"][step] for rank in found)) == due
    assert found[0]["metrics"] == {"staleness": 0.0}


@pytest.mark.parametrize(("period", "delay"), [(4, 1), (4, 3), (3, 3), (Linear(2, 6), 2)])
def test_geo_sgd_merges_what_was_pushed_so_many_steps_before(
    period: Any, delay: int, on_ranks: Taken
) -> None:
    keys = {"geo_sgd_period": period, "geo_sgd_delay": delay}
    found = on_ranks({"synchronization": "geo_sgd", **keys})
    schedule = period if callable(period) else Constant(period)
    hand = ByHand(2)
    whole, pushed, at = hand.mean(), list[Tensor](), -1
    for step, due in enumerate(exchanges(schedule, STEPS)):
        hand.step(hand.gradients())
        before = hand.mean()
        if pushed and step == at + delay:
            own = [w - p for w, p in zip(hand.weights, pushed, strict=True)]
            whole = whole + mean([p - whole for p in pushed])
            hand.weights, pushed = [whole + change for change in own], []
            assert near([hand.mean()], [before]), "a merge does not change the mean"
        if due:
            pushed, at = [w.clone() for w in hand.weights], step
        assert near([rank["weights"][step] for rank in found], hand.weights), step
        assert near([rank["whole"][step] for rank in found], [hand.mean()] * 2), step
        assert {rank["sent"][step] for rank in found} == {WEIGHTS if due else 0}
    assert all(rank["metrics"] == {"staleness": float(delay)} for rank in found)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_gradients_are_applied_exactly_at_their_bound(bound: int, on_ranks: Taken) -> None:
    found = on_ranks({"synchronization": "bounded_staleness", "staleness_bound": bound})
    hand = ByHand(2)
    computed: list[Tensor] = []
    for step in range(STEPS):
        computed.append(mean(hand.gradients()))
        if step >= bound:
            hand.step([computed[step - bound]] * 2)
        assert near([rank["weights"][step] for rank in found], hand.weights), step
        assert torch.equal(*(rank["weights"][step] for rank in found))
        assert torch.equal(found[0]["weights"][step], found[0]["whole"][step])
    assert all(rank["metrics"] == {"staleness": float(bound)} for rank in found)
    assert found[0]["sent"] == [WEIGHTS] * STEPS


def test_one_rank_makes_the_steps_without_messages() -> None:
    plain = ByHand(1)
    for _ in range(6):
        plain.step(plain.gradients())
    for kind in KINDS[1:5]:
        outer = {"diloco_outer_lr": 1.0, "diloco_outer_momentum": 0.0} if kind == "diloco" else {}
        found = taken({"synchronization": kind, **outer}, 6)
        assert near(found["weights"][-1:], plain.weights), kind
        assert not any(found["sent"])


@pytest.mark.parametrize(
    ("keys", "formula"),
    [
        ({"synchronization": "local_sgd", "local_sgd_period": 7}, copies.sent(WEIGHTS, 7)),
        ({"synchronization": "diloco", "diloco_period": 2}, copies.sent(WEIGHTS, 2)),
        ({"synchronization": "geo_sgd", "geo_sgd_period": 7}, copies.sent(WEIGHTS, 7)),
        ({"synchronization": "bounded_staleness"}, staleness.sent(WEIGHTS)),
        (
            {
                "synchronization": "hierarchical",
                "hierarchical_inner_period": 2,
                "hierarchical_outer_period": 7,
                "hierarchical_group_size": 2,
            },
            sum(hierarchical.sent(WEIGHTS, 2, 7)),
        ),
    ],
    ids=lambda value: value.get("synchronization") if isinstance(value, dict) else "",
)
def test_the_bytes_given_to_collectives_are_those_of_the_formula(
    keys: dict[str, Any], formula: float, on_ranks: Taken
) -> None:
    for rank in on_ranks(keys):
        assert sum(rank["sent"]) / STEPS == pytest.approx(formula)


# --- evaluations and states -----------------------------------------------------------------------

TOKENS = 256  # of a step
TRAINED = {
    "text": "synthetic",
    "optimizer": "sgd",
    "lr": 0.1,
    "milestone": TOKENS,
    "width": 8,
    "gradient_accumulation_steps": 2,
}
KEYS: dict[str, dict[str, Any]] = {
    "local_sgd": {"local_sgd_period": 3},
    "hierarchical": {"hierarchical_inner_period": 2, "hierarchical_outer_period": 3},
    "diloco": {"diloco_period": 3},
    "geo_sgd": {"geo_sgd_period": 3, "geo_sgd_delay": 2},
    "bounded_staleness": {"staleness_bound": 2},
}
CONFIGS = {kind: {**TRAINED, "synchronization": kind, **keys} for kind, keys in KEYS.items()}
SCHEDULED = {  # averages after steps 1 and 4; with a period that stays, after step 3 too
    "local_sgd, rarer": {
        **CONFIGS["local_sgd"],
        "local_sgd_period": Linear(2, 4),
        "horizon": 8 * TOKENS / 9000,
    }
}


def test_weights_are_averaged_for_an_evaluation_when_it_is_made(on_two_ranks: Any) -> None:
    """Not in the training's time: no step needs it."""
    keys = {**CONFIGS["local_sgd"], "local_sgd_period": 99, "train_size": 9000}
    for rank in on_two_ranks(keys, 3, sent=True):
        assert "error" not in rank, rank["error"]
        assert rank["trained"] == 0
        assert rank["evaluated"] > 4 * rank["words"]


def model(state: dict[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = state["learner"]["model"]
    return found


def own(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["learner"]["optimizer"]["apart"]["own"]
    return found


def alone(config: dict[str, Any], states: list[Any]) -> Any:
    """The first milestone of a training in this process that goes on from a state of two ranks."""
    small = {"layers": 1, "heads": 2, "sequence_length": 32, "train_size": 9000, "val_size": 1000}
    trainer = language.train({"batch_size": 8, **small, **config, "state": states[0]})
    milestone = next(trainer)
    found = milestone.evaluate(), milestone.state()
    trainer.close()
    return found


@pytest.mark.parametrize("kind", [*CONFIGS, *SCHEDULED])
def test_a_state_between_two_exchanges_goes_on_bit_for_bit(
    kind: str, on_two_ranks: Any, same: Any
) -> None:
    """Evaluations and states at every step meanwhile change nothing."""
    config = {**CONFIGS, **SCHEDULED}[kind]
    whole = on_two_ranks(config, 7, save_at=4)
    states = [rank["state"] for rank in whole]
    again = on_two_ranks(config, 3, restore=states)
    at_once = on_two_ranks({**config, "milestone": 7 * TOKENS}, 1, evaluations=0)
    for rank, rest, undisturbed in zip(whole, again, at_once, strict=True):
        for found in (rank, rest, undisturbed):
            assert "error" not in found, found["error"]
        assert same(rest["final"], rank["final"])
        assert same(undisturbed["final"], rank["final"])
        assert rest["metrics"][1]["val_loss"] == rank["metrics"][5]["val_loss"]
        assert rank["freed"]
        assert rank["metrics"][3]["exposed_communication"] > 0
    between = [own(state)["weights"] for state in states]
    assert torch.equal(*between) == (kind == "bounded_staleness")
    with_a_message = [state["learner"]["optimizer"]["apart"] for state in states]
    if kind == "geo_sgd":
        assert all("mean" in apart["own"] for apart in with_a_message), "in flight"
    if kind == "bounded_staleness":
        assert all(len(apart["shared"]["sending"]) == 2 for apart in with_a_message)


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_evaluated_and_saved_is_one_model_with_which_other_ranks_begin(
    kind: str, on_two_ranks: Any, same: Any
) -> None:
    config = CONFIGS[kind]
    ranks = on_two_ranks(config, 4, save_at=4)
    states, val_loss = [r["state"] for r in ranks], ranks[0]["metrics"][4]["val_loss"]
    assert same(model(states[0]), model(states[1]))
    momenta = [state["learner"]["optimizer"]["state"] for state in states]
    assert same(*momenta), "as those who average gradients need it"
    assert same(trained_weights.weights(states), model(states[0])), "is exported"
    flat = torch.cat([value.flatten() for value in model(states[0]).values()])
    if kind != "diloco":
        average = torch.stack([own(state)["weights"] for state in states]).mean(0)
        assert len(flat) == len(average)
        assert torch.allclose(flat, average, rtol=0, atol=1e-7)
    for keys in (config, TRAINED):
        metrics, state = alone(keys, states)
        assert metrics["val_loss"] == pytest.approx(val_loss, rel=1e-6)
        assert same(model(state), model(states[0]))


def test_the_outer_optimizer_and_gradients_in_flight_go_on_on_other_ranks(
    on_two_ranks: Any, same: Any
) -> None:
    for kind in ("diloco", "bounded_staleness"):
        states = [rank["final"] for rank in on_two_ranks(CONFIGS[kind], 4, evaluations=0)]
        shared = states[0]["learner"]["optimizer"]["apart"]["shared"]
        assert same(shared, states[1]["learner"]["optimizer"]["apart"]["shared"])
        _, state = alone(CONFIGS[kind], states)
        assert same(state["learner"]["optimizer"]["apart"]["shared"], shared)
    assert shared["sending"]


def test_a_state_of_averaged_gradients_or_of_another_kind_begins_with_its_model(
    on_two_ranks: Any, same: Any
) -> None:
    before = on_two_ranks(TRAINED, 2, evaluations=0)
    for kind in ("local_sgd", "geo_sgd"):
        states = [rank["final"] for rank in before]
        before = on_two_ranks(CONFIGS[kind], 2, restore=states)
        for rank, state in zip(before, states, strict=True):
            assert "error" not in rank, rank["error"]
            assert len(rank["metrics"]) == 3
            assert same(model(state), model(states[0]))


@pytest.mark.parametrize("optimizer", [n for n in NAMES if not n.startswith("schedulefree")])
def test_every_optimizer_makes_late_and_own_steps(optimizer: str, record: Any) -> None:
    keys = {**TRAINED, "optimizer": optimizer, "lr": 1e-3}
    for kind in ("bounded_staleness", "diloco"):
        found = record({**keys, "synchronization": kind, **KEYS[kind]}, 4)
        losses = [metrics["val_loss"] for metrics in found["metrics"]]
        late = kind == "bounded_staleness"
        assert len({*losses[:3]}) == 1, "nothing arrives, or the outer optimizer has no step, yet"
        assert losses[-1] != losses[0]
        assert found["metrics"][3].get("staleness") == (2.0 if late else None)
        assert "staleness" not in found["metrics"][2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"synchronization": "geo_sgd", "geo_sgd_period": 5, "geo_sgd_delay": 3},
        {"synchronization": "bounded_staleness", "staleness_bound": 3, "momentum": 0.5},
    ],
    ids=lambda keys: keys["synchronization"],
)
def test_a_training_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(
    keys: dict[str, Any], tmp_path: Path, same: Any
) -> None:
    """What was in flight at a checkpoint is in it: not even what is allowed to be lost is lost."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(ROOT / "tests/support/killed_ranks.py")]
    ran = subprocess.run(
        [*program, str(tmp_path), json.dumps(keys)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=1500,
    )
    said = json.loads(ran.stdout)
    assert said["resumed"] == sorted(said["resumed"])
    assert said["resumed"][0] > 0
    for number in range(said["last"] - 1, said["last"] + 1):
        for rank in range(RANKS):
            killed, whole = (
                torch.load(file(tmp_path / name, number, rank), weights_only=True)
                for name in ("killed", "whole")
            )
            assert same(killed, whole)
            assert killed["seen"] == number * killed_ranks.STEPS * killed_ranks.TOKENS


@pytest.mark.slow
def test_running_statistics_are_means_and_validation_may_be_beside(on_two_ranks: Any) -> None:
    net = {"model": "resnet8", "width": 4, "train_size": 200, "val_size": 100, "batch_size": 50}
    config = {**net, "milestone": 100, "synchronization": "local_sgd", "local_sgd_period": 3}
    inline, beside = (
        on_two_ranks({**config, "validation": v}, 2, done=v == "beside")[0]["metrics"]
        for v in ("inline", "beside")
    )
    for one, other in zip(inline, beside, strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=1e-5)
        assert other["val_accuracy"] == one["val_accuracy"]


HOW: dict[str, tuple[dict[str, Any], float]] = {
    "bf16": ({"precision": "bf16"}, 0.02),
    "recomputed": ({"activation_checkpoint_mode": "full"}, 1e-5),
    "compiled": ({"compile": "units"}, 1e-4),
}
"""What goes with all of them, and how near the losses then are to those without it."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*CONFIGS])
@pytest.mark.parametrize("how", [*HOW])
def test_fewer_bits_recomputation_and_compiled_units_go_with_all_of_them(
    kind: str, how: str, on_two_ranks: Any, same: Any
) -> None:
    keys, most = HOW[how]
    plain, other = (on_two_ranks({**CONFIGS[kind], **more}, 5) for more in ({}, keys))
    for one, found in zip(plain, other, strict=True):
        assert "error" not in found, found["error"]
        losses = [[m["val_loss"] for m in rank["metrics"]] for rank in (one, found)]
        assert losses[1] == pytest.approx(losses[0], rel=most)
    assert same(*(model(rank["final"]) for rank in other))


@pytest.mark.slow
def test_memory_is_predicted_with_what_is_kept_beside() -> None:
    texts = {**TRAINED, "width": 64, "layers": 1, "batch_size": 2, "train_size": 9000}

    def needed(kind: str, **more: Any) -> int:
        keys = {"synchronization": kind, **KEYS.get(kind, {}), **more}
        return language.memory({**texts, "val_size": 100, **keys}, ranks=2)

    weights = sum(
        p.numel() for p in language._model(language.read_settings(texts), 40, False).parameters()
    )
    plain, found = needed("every_step"), {kind: needed(kind) for kind in KEYS}
    for kind in KEYS:
        assert found[kind] < plain + 6 * 4 * weights, kind
    more = needed("bounded_staleness", staleness_bound=6)
    assert more > found["bounded_staleness"] + 3 * 4 * weights


# --- what is refused ------------------------------------------------------------------------------

LOCAL = {"synchronization": "local_sgd"}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"synchronization": "gossip"}, "synchronization must be one of every_step, local_sgd, hi"),
        ({"local_sgd_period": 4}, "local_sgd_period 4 needs synchronization 'local_sgd'"),
        ({**LOCAL, "diloco_period": 4}, "diloco_period 4 needs synchronization 'diloco'"),
        ({**LOCAL, "geo_sgd_delay": 2}, "geo_sgd_delay 2 needs synchronization 'geo_sgd'"),
        ({**LOCAL, "staleness_bound": 2}, "2 needs synchronization 'bounded_staleness'"),
        ({"hierarchical_group_size": 2}, "size 2 needs synchronization 'hierarchical'"),
        ({**LOCAL, "local_sgd_period": 0}, "local_sgd_period must be a whole number at least 1"),
        ({**LOCAL, "local_sgd_period": Linear(4, 0)}, "local_sgd_period must be a number at least"),
        ({**LOCAL, "local_sgd_start": -1}, "local_sgd_start must be a whole number at least 0"),
        (
            {"synchronization": "geo_sgd", "geo_sgd_period": Linear(4, 1), "geo_sgd_delay": 2},
            "geo_sgd_period must be at least geo_sgd_delay, 2, but",
        ),
        (
            {"synchronization": "diloco", "diloco_outer_lr": 0},
            "diloco_outer_lr must be a number more than 0, got 0",
        ),
        (
            {"synchronization": "diloco", "diloco_outer_momentum": 1},
            "diloco_outer_momentum must be a number at least 0 and less than 1, got 1",
        ),
    ],
)
@pytest.mark.parametrize(
    ("read", "known"),
    [
        (settings.read_settings, {"data": "digits", "model": "resnet8", "lr": 0.1}),
        (language.read_settings, {"text": "synthetic", "lr": 0.1}),
    ],
)
def test_what_does_not_go_together_is_one_line(
    read: Any, known: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        read({**known, **keys})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_optimizer_that_changes_weights_between_steps_is_refused() -> None:
    says = "synchronization must be 'every_step' with optimizer 'schedulefree_sgd'"
    with pytest.raises(ValueError, match=says):
        language.read_settings({**TRAINED, **LOCAL, "optimizer": "schedulefree_sgd"})


def test_groups_that_do_not_divide_the_ranks_are_refused_before_data_is_read(
    on_two_ranks: Any,
) -> None:
    keys = {"synchronization": "hierarchical", "hierarchical_group_size": 3}
    for rank in on_two_ranks({**TRAINED, **keys}, 1):
        assert rank["error"] == "hierarchical_group_size 3 must divide the 2 ranks"


def test_all_keys_may_change_samples_and_seconds_or_samples_alone() -> None:
    assert {KNOBS[key].effect for key in KNOBS} == {"both", "statistical"}
    statistical = {key for key, knob in KNOBS.items() if knob.effect == "statistical"}
    assert statistical == {"diloco_outer_lr", "diloco_outer_momentum"}
    assert {*KNOBS} <= {*language.train.effects}  # type: ignore[attr-defined]
