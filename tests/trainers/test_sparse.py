"""Rules of sparse updates against torch's optimizers, rows over ranks, and the models."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from torch import Tensor

from trainers import auc
from trainers.models.clicks import MODELS, Batch
from trainers.sparse import exchange, rules, weights
from trainers.sparse.exchange import Blocks, merged, spread
from trainers.sparse.passes import Net, lookup
from trainers.sparse.rules import DENSE, SPARSE, Rates, Rows


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def updated(rule: str, weight: Tensor, steps: list[tuple[Tensor, Tensor]], rates: Rates) -> Rows:
    rows = {**SPARSE, **DENSE}[rule].begun(weight.clone())
    for index, gradient in steps:
        {**SPARSE, **DENSE}[rule].update(rows, index, gradient, rates)
    return rows


def by_torch(optimizer: Any, weight: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
    parameter = torch.nn.Parameter(weight.clone())
    made = optimizer([parameter])
    for index, gradient in steps:
        parameter.grad = torch.sparse_coo_tensor(
            index.unsqueeze(0), gradient, weight.shape, check_invariants=True
        )
        made.step()
    return parameter.detach()


EVERY = [(torch.arange(5), drawn(5, 3, seed=n)) for n in range(6)]
SOME = [(torch.tensor([n % 5, 5 + n % 3]), drawn(2, 3, seed=n)) for n in range(9)]
RATES = Rates(0.1, 0.8, 0.95)


def test_sparse_adam_is_torchs_where_every_row_is_touched() -> None:
    found = updated("sparse_adam", drawn(5, 3, seed=9), EVERY, RATES)
    wanted = by_torch(
        lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95)), drawn(5, 3, seed=9), EVERY
    )
    assert (found.weight - wanted).abs().max() < 1e-6


def test_a_row_of_sparse_adam_is_stepped_as_by_adam_of_its_own() -> None:
    weight = drawn(8, 3, seed=9)
    found = updated("sparse_adam", weight, SOME, RATES).weight
    for row in range(8):
        own = torch.nn.Parameter(weight[row].clone())
        adam = torch.optim.Adam([own], lr=0.1, betas=(0.8, 0.95))
        for index, gradient in SOME:
            if row in index:
                own.grad = gradient[index == row][0]
                adam.step()
        assert (found[row] - own).abs().max() < 1e-6


def test_sgd_is_torchs() -> None:
    found = updated("sgd", drawn(8, 3), SOME, RATES).weight
    assert torch.equal(found, by_torch(lambda p: torch.optim.SGD(p, lr=0.1), drawn(8, 3), SOME))


def test_rowwise_adagrad_of_rows_of_one_number_is_torchs_adagrad() -> None:
    steps = [(index, gradient[:, :1]) for index, gradient in SOME]
    found = updated("rowwise_adagrad", drawn(8, 1), steps, RATES).weight
    wanted = by_torch(lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8), drawn(8, 1), steps)
    assert (found - wanted).abs().max() < 1e-6


def test_rowwise_adagrad_has_one_number_a_row_and_divides_a_row_by_one() -> None:
    weight = drawn(8, 3)
    rows = updated("rowwise_adagrad", weight, SOME[:1], RATES)
    assert rows.state.shape == (8, 1)
    index, gradient = SOME[0]
    moved = rows.weight[index] - weight[index]
    wanted = -0.1 * gradient / gradient.square().mean(1, keepdim=True).sqrt()
    assert (moved - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("rule", SPARSE)
def test_rows_that_are_not_touched_stay(rule: str) -> None:
    weight = drawn(9, 3)
    rows = updated(rule, weight, SOME, RATES)
    assert torch.equal(rows.weight[8], weight[8])
    assert not rows.state[8].any()


def test_duplicates_are_summed_once() -> None:
    rows, total, counts = merged(torch.tensor([4, 1, 4, 4]), torch.tensor([[1.0], [2], [3], [5]]))
    assert rows.tolist() == [1, 4]
    assert total.tolist() == [[2], [9]]
    assert counts.tolist() == [1, 3]


@pytest.mark.parametrize("rows", [1, 2, 7, 300, 26_000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_row_has_one_place_and_one_rank_as_torch_shards_it(rows: int, ranks: int) -> None:
    places = torch.arange(rows) * spread(rows) % rows
    assert len(places.unique()) == rows
    blocks = Blocks(rows, ranks)
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(ranks)]
    spans = [blocks.span(rank) for rank in range(ranks)]
    assert [high - low for low, high in spans if high > low] == chunks
    assert blocks.counts(torch.arange(rows)) == [high - low for low, high in spans]
    if rows >= 300:  # each rank has its part of each tenth of the rows
        tenth = torch.bincount(places[: rows // 10] // blocks.length, minlength=ranks)
        assert tenth.max() - tenth.min() <= rows // 100 + 2


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_first_weights_do_not_depend_on_the_ranks(ranks: int) -> None:
    whole = weights.begun(Blocks(10_000, 1), 3, 1, 0)
    blocks = Blocks(10_000, ranks)
    parts = [weights.begun(blocks, 3, 1, rank) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts), whole)
    assert whole[:, :2].std().item() == pytest.approx(0.1, rel=0.05)
    assert not whole[:, 2].any()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("microbatch", [None, 3])
def test_gradients_are_those_of_the_whole_model(model: str, microbatch: int | None) -> None:
    made = MODELS[model](4, 2, 3, 5)
    table = drawn(12, made.columns).requires_grad_()
    draw = torch.Generator().manual_seed(1)
    batch = Batch(
        torch.randint(0, 12, (10, 4), generator=draw), drawn(10, 2), (drawn(10) > 0).float()
    )
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        made(table[batch.categories], batch.dense), batch.clicks
    )
    loss.backward()
    net, known = Net(made, torch.device("cpu"), microbatch), lookup(batch)
    found = net.gradient(table.detach()[known.rows], net.first, batch, known.index, len(batch))
    assert table.grad is not None
    assert (found.rows - table.grad[known.rows]).abs().max() < 1e-6
    wanted = torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None])
    assert (found.dense[:, 0] - wanted).abs().max() < 1e-6
    assert found.loss / len(batch) == pytest.approx(loss.item(), rel=1e-5)


def test_a_batch_without_samples_has_no_gradient() -> None:
    net = Net(MODELS["dlrm"](4, 2, 3, 5), torch.device("cpu"), None)
    none = Batch(torch.zeros((0, 4), dtype=torch.int64), torch.zeros(0, 2), torch.zeros(0))
    found = net.gradient(torch.zeros(0, 4), net.first, none, lookup(none).index, 1)
    assert not found.dense.any()
    assert found.loss == 0


@pytest.mark.parametrize("module", [rules, exchange, auc], ids=lambda m: m.__name__)
def test_examples_hold(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
