"""Classes divided over the ranks compute what one process does, and their states move between both.

The ranks are started once; what they do is in `support/class_ranks.py`.
"""

from __future__ import annotations

import pickle
from typing import Any

import class_ranks
import pytest
import torch
from class_ranks import CASES, CPU, MANY, MARGINS, MOVED, PLANS, STEPS, compared, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from sharders import on_ranks
from torch import Tensor

from trainers.models.margins import USUAL, among, margined, sampled
from trainers.models.recognition import Classes, Margin
from trainers.parallel.classes import rows_of
from trainers.parallel.ranks import Ranks
from trainers.plan import KNOBS
from trainers.recall import recall_at_1
from trainers.retrieval_settings import TAKEN

ALONE = Ranks(0, 1, CPU)
CLOSE = 1e-5


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The trainings of one process, with the copies' first."""
    return {
        name: class_ranks.steps({k: v for k, v in plan.items() if k not in KNOBS})
        for name, plan in PLANS.items()
    }


@pytest.fixture(scope="module")
def two(alone: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    state = pickle.dumps([alone["copies"]["state"]])
    found = on_ranks(2, class_ranks.everything, PLANS, state)
    for rank in found:
        assert not isinstance(rank, str), rank
    return [pickle.loads(rank) for rank in found]


def near(found: Tensor, wanted: Tensor, close: float = CLOSE) -> bool:
    """No number is further away than this share of the tensor's largest."""
    most = wanted.abs().max().item()
    return torch.allclose(found, wanted, rtol=0.0, atol=close * most)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{c[0].kind}-{c[1]}" for c in CASES])
def test_loss_and_gradients_are_those_of_one_process(case: int, two: Any) -> None:
    margin, count = CASES[case]
    wanted, ranks = compared(ALONE, margin, count), [rank["formulas"][case] for rank in two]
    assert sum(rank["loss"] for rank in ranks) == pytest.approx(wanted["loss"], rel=1e-9)
    for name in ("x", "weight"):
        assert near(torch.cat([rank[name] for rank in ranks]), wanted[name], 1e-9), name
    assert torch.allclose(sum(rank["judged"] for rank in ranks), wanted["judged"])
    assert len(ranks[0]["x"]) != len(ranks[1]["x"]), "ranks have different numbers of samples"
    rows = [len(rank["weight"]) for rank in ranks]
    assert rows == [-(-count // 2), count // 2]
    halves = [2 * rank["bytes"] for rank in ranks]
    assert halves == pytest.approx([wanted["bytes"]] * 2, rel=1 / count)
    if count == MANY:
        assert halves == [wanted["bytes"]] * 2


@pytest.mark.parametrize("case", range(2))
def test_sampled_classes_are_compared_with_as_one_process_does(case: int, two: Any) -> None:
    """If it is given the classes that the ranks have chosen."""
    ranks = [rank["samplings"][case] for rank in two]
    chosen = torch.cat([rank["chosen"][0] for rank in ranks])
    wanted = compared(ALONE, MARGINS[2], 101, chosen)
    assert sum(rank["loss"] for rank in ranks) == pytest.approx(wanted["loss"], rel=1e-9)
    for name in ("x", "weight"):
        assert near(torch.cat([rank[name] for rank in ranks]), wanted[name], 1e-9), name
    least = 2 * 7 + (case > 0) * 17, 101
    assert least[0] <= len(chosen) < least[1]
    gradients = wanted["weight"].abs().sum(1) > 0
    assert {*gradients.nonzero()[:, 0].tolist()} == {*chosen.tolist()}


def test_the_choice_is_repeatable_and_another_on_each_rank(two: Any) -> None:
    first, second = (rank["samplings"] for rank in two)
    for rank in (first, second):
        assert torch.equal(rank[1]["chosen"][0], rank[2]["chosen"][0])
    assert {*first[1]["chosen"][0].tolist()} != {c - 51 for c in second[1]["chosen"][0].tolist()}
    assert first[3]["chosen"] == second[3]["chosen"] == []


def test_samples_without_a_label_count_for_nothing(two: Any) -> None:
    margin = MARGINS[2]
    x, y, weight = problem(12)
    head = Classes(12, class_ranks.WIDTH, ALONE, margin, lambda progress: 1.0, 0)
    head.weight = torch.nn.Parameter(weight)
    x.requires_grad_()
    loss = head.loss(x, y, 0.0, "sum")
    loss.backward()
    first, second = (rank["unlabelled"] for rank in two)
    assert first["loss"] == pytest.approx(loss.item())
    assert second["loss"] == 0
    assert near(first["x"], x.grad)
    assert not second["x"].any()
    assert near(torch.cat([first["weight"], second["weight"]]), head.weight.grad)
    assert second["judged"].tolist() == [0, 0, 0]


def test_a_step_whose_gradients_overflow_on_one_rank_is_left_out_by_all(two: Any) -> None:
    assert [rank["overflow"] for rank in two] == [[False, False, True]] * 2


# --- trainings ------------------------------------------------------------------------------------

COMPARED = ("train_loss", "val_loss", "grad_norm", "weight_norm", "update_ratio")


@pytest.mark.parametrize("plan", PLANS)
def test_two_ranks_train_as_one(plan: str, two: Any, alone: Any) -> None:
    wanted = alone[plan]
    for rank in two:
        found = rank["trainings"][plan]
        for metrics, those in zip(found["metrics"], wanted["metrics"], strict=True):
            for key in ("val_loss", *(COMPARED if metrics["progress"] else ())):
                assert metrics[key] == pytest.approx(those[key], rel=CLOSE), key
            for key in ("val_accuracy", "val_recall_at_1"):
                assert metrics[key] == pytest.approx(those[key], abs=0.02), "a tie, at most"
        assert found["ended"].keys() == wanted["ended"].keys()
        for name, value in wanted["ended"].items():
            assert near(found["ended"][name], value), name
    first, second = (rank["trainings"][plan] for rank in two)
    assert all(torch.equal(value, second["ended"][name]) for name, value in first["ended"].items())
    assert wanted["bytes"] == 51 * 8 * 4 * (3 if "adamw" in plan else 2)
    assert first["bytes"] + second["bytes"] == wanted["bytes"]
    assert first["bytes"] / wanted["bytes"] == 26 / 51


def goes_on(again: Any, wanted: Any, exactly: bool) -> None:
    """From the same bits to the same end as without a pause; `exactly`: to the same bits."""
    assert again["begun"].keys() == wanted["saved"].keys()
    assert all(torch.equal(v, wanted["saved"][k]) for k, v in again["begun"].items())
    same = torch.equal if exactly else near
    assert all(same(v, wanted["ended"][k]) for k, v in again["ended"].items())


@pytest.mark.parametrize("plan", MOVED)
def test_a_state_of_two_ranks_goes_on_on_two_and_on_one(plan: str, two: Any) -> None:
    for rank in two:
        goes_on(rank["trainings"][f"again: {plan}"], rank["trainings"][plan], exactly=True)
    own = {k: v for k, v in PLANS[plan].items() if k not in KNOBS}
    whole = two[0]["trainings"][plan]
    goes_on(class_ranks.steps(own, whole["states"]), whole, exactly=False)


def test_a_state_of_one_rank_goes_on_on_two(two: Any, alone: Any) -> None:
    for rank in two:
        goes_on(rank["trainings"]["from one"], alone["copies"], exactly=False)


def test_trainings_with_sampled_classes_are_repeatable_and_ranks_agree(two: Any) -> None:
    (first, again), (second, _) = (rank["sampled"] for rank in two)
    for other in (again, second):
        assert all(torch.equal(v, other["ended"][k]) for k, v in first["ended"].items())
    assert first["ended"]["classes._extra_state"].item() == STEPS
    full = two[0]["trainings"]["copies"]
    assert not near(first["ended"]["classes.weight"], full["ended"]["classes.weight"])


def test_with_bfloat16_ranks_train_nearly_as_with_all_bits(two: Any) -> None:
    for rank in two:
        for found, wanted in zip(
            rank["bf16"]["metrics"], rank["trainings"]["copies"]["metrics"], strict=True
        ):
            assert found["val_loss"] == pytest.approx(wanted["val_loss"], rel=0.02)
            assert found["val_loss"] != wanted["val_loss"]


def test_the_plans_that_are_proved_have_every_key_that_the_trainer_takes() -> None:
    proved = {key for plan in PLANS.values() for key in plan}
    left = {"all_reduce_group_size", "selective_ac_option"}  # of more ranks; how units are chosen
    assert TAKEN.keys() - proved == left


# --- formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", USUAL)
def test_a_margin_of_0_is_the_plain_softmax(kind: str) -> None:
    for count in (5, 30):
        x, y, weight = problem(count)
        cosines = x @ torch.nn.functional.normalize(weight).T
        found = compared(ALONE, Margin(kind, 0.0, 12.0), count)
        plain = torch.nn.functional.cross_entropy(12.0 * cosines, y, reduction="sum")
        assert found["loss"] == pytest.approx(plain.item(), rel=1e-12)
        assert found["judged"].tolist() == pytest.approx(
            [(cosines.argmax(1) == y).sum().item(), plain.item(), len(y)]
        )


@given(st.floats(-1, 1), st.floats(0, 1.49))
def test_margins_are_those_of_their_papers(cosine: float, size: float) -> None:
    x = torch.tensor(cosine, dtype=torch.float64)
    assert margined(x, "none", size) == x
    assert margined(x, "cosface", size) == x - size
    found, angle = margined(x, "arcface", size).item(), x.arccos().item()
    if angle + size < torch.pi - 1e-6:
        assert found == pytest.approx(torch.tensor(angle + size).cos().item(), abs=2e-3)
    assert found <= cosine + 2e-3, "a score never grows"


@given(st.integers(0, 49), st.integers(0, 49), st.floats(0, 1.49))
def test_the_score_with_arcface_falls_with_the_angle(low: int, high: int, size: float) -> None:
    cosines = torch.linspace(-0.99, 0.99, 50, dtype=torch.float64)
    found = margined(cosines, "arcface", size)
    limit = cosines[0:0] if size == 0 else -torch.cos(torch.tensor(size, dtype=torch.float64))
    same = size == 0 or bool((cosines[low] > limit) == (cosines[high] > limit))
    if low < high and same:
        assert found[low] < found[high]


@settings(deadline=None)
@given(st.data())
def test_the_classes_of_the_samples_are_always_among_the_sampled_ones(data: Any) -> None:
    rows = data.draw(st.integers(1, 40))
    targets = torch.tensor(data.draw(st.lists(st.integers(-1, rows - 1), min_size=1, max_size=20)))
    count = data.draw(st.integers(1, 50))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    chosen = sampled(targets, rows, count, random)
    if chosen is None:
        assert max(count, len(targets)) >= rows
        return
    assert len(chosen) == max(count, len(targets)) < rows
    assert chosen.tolist() == sorted({*chosen.tolist()})
    places = among(chosen, targets)
    for place, target in zip(places.tolist(), targets.tolist(), strict=True):
        assert place == -1 if target == -1 else chosen[place] == target


@given(st.integers(1, 400), st.integers(1, 9))
def test_ranks_have_all_rows_once_as_torch_divides_a_tensor(count: int, size: int) -> None:
    rows = [range(*rows_of(count, rank, size)) for rank in range(size)]
    assert [row for part in rows for row in part] == [*range(count)]
    parts = [len(part) for part in torch.arange(count).chunk(size)]
    assert [len(part) for part in rows] == parts + [0] * (size - len(parts))


def test_too_few_classes_for_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="5 classes give some of 4 ranks none: use fewer ranks"):
        Classes(5, 2, Ranks(0, 4, CPU), MARGINS[0], lambda progress: 1.0, 0)


def test_the_first_directions_are_the_same_on_any_number_of_ranks() -> None:
    def made(rank: int, size: int) -> Tensor:
        torch.manual_seed(3)
        return Classes(
            40_001, 2, Ranks(rank, size, CPU), MARGINS[0], lambda progress: 1.0, 0
        ).weight.detach()

    with torch.random.fork_rng():
        parts = torch.cat([made(rank, 3) for rank in range(3)])
        assert torch.equal(parts, made(0, 1))


def test_images_are_found_as_by_a_search_over_all_pairs(two: Any) -> None:
    x, y, _ = problem(3, 21, torch.float32)
    right = 0
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        best = max(others, key=lambda j, i=i: float(x[i] @ x[j]))  # type: ignore[misc]
        right += int(y[best] == y[i])
    assert recall_at_1(x, y, ALONE) == right / len(x)
    assert [rank["recall"] for rank in two] == [right / len(x)] * 2
