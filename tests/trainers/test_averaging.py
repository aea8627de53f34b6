"""Copies that differ between exchanges: against the papers by hand, on real ranks; states; refusals.

That exchanges in every step are the training of one rank is in `test_conformance.py`.
"""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from averaged_steps import WEIGHTS, ByHand, exchanges, mean, taken
from torch import Tensor

from autotune.schedules import Constant, Linear, stages
from trainers.communication import (
    diloco,
    geo_sgd,
    hierarchical,
    local_sgd,
    staleness,
    synchronization,
)
from trainers.communication.synchronization import KINDS

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


@pytest.mark.parametrize(
    "module", [local_sgd, hierarchical, diloco, geo_sgd, staleness, synchronization]
)
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


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0)])
def test_diloco_is_nesterov_momentum_on_what_ranks_have_changed(
    lr: float, momentum: float, on_ranks: Taken
) -> None:
    keys = {"diloco_period": 3, "diloco_outer_lr": lr, "diloco_outer_momentum": momentum}
    found = on_ranks({"synchronization": "diloco", **keys})
    hand = ByHand(2)
    whole = torch.nn.Parameter(hand.mean())
    outer = torch.optim.SGD([whole], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for step, due in enumerate(exchanges(Constant(3), STEPS)):
        hand.step(hand.gradients())
        if due:
            whole.grad = whole.detach() - hand.mean()
            outer.step()
            hand.weights = [whole.detach().clone() for _ in hand.weights]
            assert torch.equal(*(rank["weights"][step] for rank in found))
        assert near([rank["weights"][step] for rank in found], hand.weights), step
        assert near([rank["whole"][step] for rank in found], [whole.detach()] * 2), step
    assert sum(found[0]["sent"]) == WEIGHTS * (STEPS // 3)


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
        ({"synchronization": "local_sgd", "local_sgd_period": 7}, local_sgd.sent(WEIGHTS, 7)),
        ({"synchronization": "diloco", "diloco_period": 2}, diloco.sent(WEIGHTS, 2)),
        ({"synchronization": "geo_sgd", "geo_sgd_period": 7}, geo_sgd.sent(WEIGHTS, 7)),
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
        assert sum(rank["sent"]) / STEPS == formula
