"""The blocks of any model, and what else plans and checkpoints need of it."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest
import torch
from torch import nn

from trainers.memory.precision import cast_in
from trainers.models import blocks as blocks_module
from trainers.models.blocks import blocks
from trainers.models.library import without_dropout


def test_examples() -> None:
    failed, tried = doctest.testmod(blocks_module)
    assert tried
    assert not failed


def conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU())


class Squeeze(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)


class Mobile(nn.Module):
    """A block with a sequence inside it, one part of which has parts."""

    def __init__(self, inner: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(8, 8), Squeeze(8, inner), conv(8, 8))


class Stage(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(8, 8, 1)
        self.blocks = nn.ModuleList(Mobile() for _ in range(count))


class Basic(nn.Module):
    """One layer with its normalisation."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, 4, 3), nn.BatchNorm2d(4)


class Mixed(nn.Module):
    """A model whose blocks are its attributes, and have layers in sequences."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Sequential(Basic(8), Basic(4)), Basic(8)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.mixed_1, self.mixed_2, self.head = self.Block(), self.Block(), nn.Linear(8, 2)


MODELS: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "blocks of stages": (
        nn.Sequential(conv(3, 8), Stage(1), Stage(3), nn.Linear(8, 2)),
        {"Stage": 1, "Mobile": 3},
    ),
    "sequences of blocks": (
        nn.Sequential(conv(3, 8), nn.Sequential(Mobile(), Mobile()), nn.Sequential(Mobile())),
        {"Mobile": 3},
    ),
    "a part with most parameters": (nn.Sequential(Mobile(200), Mobile(200)), {"Mobile": 2}),
    "one block": (nn.ModuleDict({"layers": nn.ModuleList([Mobile()])}), {"Mobile": 1}),
    "attributes": (Mixed(), {"Block": 2}),
    "no blocks": (nn.Sequential(conv(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)), {"Conv2d": 1}),
    "a layer": (nn.Linear(2, 2), {}),
}
MODELS["no blocks"][1]["Linear"] = 2


@pytest.mark.parametrize(("model", "found"), MODELS.values(), ids=MODELS)
def test_blocks_are_found(model: nn.Module, found: dict[str, int]) -> None:
    units = blocks(model)
    assert Counter(type(unit).__name__ for unit in units) == found
    inside = [module for unit in units for module in unit.modules()]
    assert len(set(map(id, inside))) == len(inside), "none within another one"


def test_without_dropout_no_random_numbers_are_drawn() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    model.drop_rate = 0.3  # as functions of libraries read it
    x = torch.randn(2, 5, 16)
    assert not torch.equal(model(x), model(x))
    before = torch.get_rng_state()
    assert torch.equal(without_dropout(model)(x), model(x))
    assert torch.equal(torch.get_rng_state(), before)
    assert model.drop_rate == 0.0


def test_layers_of_other_libraries_are_not_gathered_on_their_own() -> None:
    """They may be read without being called, as those of some attentions are."""
    assert cast_in(Mobile()) is None
    layers = conv(3, 8)
    assert cast_in(layers) == [layers[0]]
