"""What models say of themselves, against what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainers.models.described import Described, units_of
from trainers.models.flops import per_image
from trainers.models.gpt import GPT, flops_per_token
from trainers.models.images import make_model

TOKENS = torch.arange(14).view(2, 7) % 11


def gpt(layers: int = 4) -> GPT:
    torch.manual_seed(0)
    return GPT(11, layers, width=16, heads=4)


def gradients(model: nn.Module, out: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    out.square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["mlp", "resnet8", "resnet18", "resnet50"])
def test_the_units_of_image_models_have_nearly_all_of_their_weights(name: str) -> None:
    model = make_model(name, (3, 32, 32), 10, None, "batch")
    assert isinstance(model, Described)
    units = units_of(model)
    assert len(units) == {"mlp": 3, "resnet8": 3, "resnet18": 8, "resnet50": 16}[name]
    inside = sum(p.numel() for unit in units for p in unit.parameters())
    assert inside > 0.9 * sum(p.numel() for p in model.parameters())


def test_the_units_of_a_model_that_says_nothing_are_its_blocks() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 8) for _ in range(3)]
    assert units_of(nn.Sequential(nn.Linear(4, 8), *layers)) == layers
    assert len(units_of(gpt())) == 4


def test_flops_are_those_of_products_and_convolutions() -> None:
    """By hand: a resnet8 of width 4 on one channel, at twice the side four times the work."""
    model = make_model("resnet8", (1, 8, 8), 10, 4, "batch")
    first = 64 * 9 * (4 + 16 + 16)  # stem and first block, 8 x 8
    second = 16 * (9 * (4 * 8 + 8 * 8) + 4 * 8)  # with its skip, 4 x 4
    third = 4 * (9 * (8 * 16 + 16 * 16) + 8 * 16)
    head = 16 * 10
    assert model.flops(8) == 6.0 * (first + second + third + head)
    assert model.flops(16) == 6.0 * (4 * (first + second + third) + head)
    assert gpt().flops(7) == flops_per_token(gpt(), 7)


def test_flops_of_a_model_that_gives_views_of_parameters_to_a_layer() -> None:
    """As vision transformers do with learned tokens."""

    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer = nn.Conv2d(1, 4, 2), nn.Linear(4, 3)
            self.tokens = nn.Parameter(torch.zeros(5, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.stem(x).mean() + self.layer(self.tokens.expand(2, 5, 4))

    assert per_image(Learned(), 2) == 6.0 * (16 + 2 * 5 * 4 * 3)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_stages_in_a_row_are_the_model(count: int) -> None:
    model = gpt()
    stages = model.stages(count)
    x = TOKENS
    for stage in stages:
        x = stage(x)
    whole = model(TOKENS)
    assert torch.equal(x, whole)
    found, wanted = gradients(model, x), gradients(model, whole)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    names = {name for stage in stages for name in stage.state_dict()}
    assert names == set(model.state_dict())


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="pipeline_parallel_degree must be at least 1 and at most"):
        gpt().stages(5)


def part(model: GPT, rank: int, ranks: int, heads: str = "heads") -> GPT:
    """A rank's model, whose matrices are divided as the model says; the embedding is whole.

    Args:
        heads: how those are divided that give the heads.
    """
    made = gpt()
    plan = model.tensor_plan()
    for name, module in made.named_modules():
        weight = model.get_submodule(name).weight if name in plan else None
        match heads if plan.get(name) == "heads" else plan.get(name):
            case "columns":
                module.weight = nn.Parameter(weight.chunk(ranks, 0)[rank])
            case "rows":
                module.weight = nn.Parameter(weight.chunk(ranks, 1)[rank])
            case "heads":
                own = weight.unflatten(0, (3, ranks, -1))[:, rank]
                module.weight = nn.Parameter(own.flatten(0, 1))
    for layer in made.layers:
        layer.heads //= ranks
    return made


def summed(parts: list[GPT], layer: int, x: Tensor, turn: Any) -> Tensor:
    """A layer on all ranks: each one's attention, and then its perceptron, is added to the rest."""

    class Zero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_zeros(*x.shape[:-1], 16)

    def only(rank: GPT, left_out: str) -> Tensor:
        found = rank.layers[layer]
        kept = getattr(found, left_out)
        setattr(found, left_out, Zero())
        try:
            return found(x, turn) - x
        finally:
            setattr(found, left_out, kept)

    x = x + sum(only(rank, "down") for rank in parts)
    return x + sum(only(rank, "mix") for rank in parts)


def test_matrices_that_are_divided_as_the_model_says_compute_the_same() -> None:
    model = gpt()
    assert {*model.tensor_plan()} == {
        name for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Embedding)
    }
    parts = [part(model, rank, 2) for rank in range(2)]
    x = model.embedding(TOKENS)
    turn = model._rotation(TOKENS.shape[1], x.device)
    for index, layer in enumerate(model.layers):
        found, x = summed(parts, index, x, turn), layer(x, turn)
        assert torch.allclose(found, x, atol=1e-5)


def test_queries_keys_and_values_must_not_be_divided_as_one_matrix() -> None:
    """A rank would get queries of all heads, and take some of them for keys."""
    model = gpt()
    parts = [part(model, rank, 2, "columns") for rank in range(2)]
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    turn = model._rotation(7, x.device)
    wanted = model.layers[0](x, turn)
    after = [summed(parts, 0, x, turn), summed([part(model, r, 2) for r in range(2)], 0, x, turn)]
    naive, own = ((found - wanted).abs().max() / (wanted - x).abs().max() for found in after)
    assert naive > 0.1
    assert own < 1e-4  # the layer adds little to what it gets
