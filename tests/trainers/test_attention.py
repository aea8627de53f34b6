"""Sparse attention computes what its definition says, and nothing later is ever seen."""

from __future__ import annotations

import doctest
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from trainers import language
from trainers.models import attention
from trainers.models.attention import KINDS, Sparse, causal, made
from trainers.models.gpt import GPT, flops_per_token

TEXT = {"text": "synthetic", "lr": 0.1}
LENGTHS = (1, 7, 16, 33)


def by_hand(q: Tensor, k: Tensor, v: Tensor, kind: str, window: int) -> Tensor:
    """A query at a time, over the keys that the definition names."""
    length, rows = q.shape[-2], []
    for place in range(length):
        if kind == "sliding_window":
            seen = [i for i in range(place + 1) if place - i < window]
        else:
            summary = range(window - max(1, window // 8), window)
            own = place // window
            seen = [i for i in range(place + 1) if i // window == own or i % window in summary]
        scores = q[..., place : place + 1, :] @ k[..., seen, :].mT / q.shape[-1] ** 0.5
        rows.append(scores.softmax(-1) @ v[..., seen, :])
    return torch.cat(rows, -2)


def drawn(length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("window", [1, 4, 16])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_it_is_that_of_its_definition_with_its_gradients(
    kind: str, window: int, length: int
) -> None:
    given = drawn(length)
    found, wanted = Sparse(kind, window)(*given), by_hand(*given, kind, window)
    assert torch.allclose(found, wanted, atol=1e-5)
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((o * weights).sum(), given) for o in (found, wanted)]
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("length", [48, 300])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_mask_for_a_gpu_is_the_same(kind: str, length: int) -> None:
    """FlexAttention without its kernels computes all scores on a CPU, with the mask of a GPU."""
    given, sparse = [part.detach() for part in drawn(length)], Sparse(kind, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its kernels are not used
        found = flex_attention(*given, block_mask=sparse.blocks(length, torch.device("cpu")))
        assert torch.allclose(found, sparse(*given), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_window_as_long_as_the_sequence_sees_everything(kind: str) -> None:
    given = drawn(16)
    assert torch.allclose(Sparse(kind, 16)(*given), causal(*given), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_nothing_later_is_seen(kind: str) -> None:
    model = GPT(11, 2, 16, 2, made(kind, 4))
    tokens = torch.randint(0, 11, (1, 24), generator=torch.Generator().manual_seed(0))
    later = tokens.clone()
    later[:, 17:] = 0
    assert torch.equal(model(tokens)[:, :17], model(later)[:, :17])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("window", [1, 4, 16])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_is_counted_as_seen_is_seen(kind: str, window: int, length: int) -> None:
    sparse, places = Sparse(kind, window), torch.arange(length)
    mask = sparse.sees(places[:, None], places)
    assert sparse.seen(length) == pytest.approx(mask.sum().item() / length)


def test_fewer_operations_are_counted() -> None:
    models = [GPT(11, 2, 16, 2, made(*of)) for of in (("full", None), ("sliding_window", 4))]
    full, less = (flops_per_token(model, 64) for model in models)
    assert full - less == 12 * 2 * 16 * ((64 + 1) / 2 - Sparse("sliding_window", 4).seen(64))


def test_examples() -> None:
    failed, tried = doctest.testmod(attention)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"attention": "sliding_window"}, "'sliding_window' needs attention_window, a number of"),
        (
            {"attention_window": 8},
            "attention_window 8 needs attention sliding_window or bl",
        ),
        ({"attention": "window"}, "must be one of full, sliding_window, block_sparse"),
        ({"attention": "block_sparse", "attention_window": 0}, "a whole number at least 1"),
    ],
)
def test_what_does_not_go_together_is_one_line(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        language.read_settings({**TEXT, **keys})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_was_trained_attends_as_it_was_trained() -> None:
    """The served model gives the scores of the trained one, at another length too."""
    config = {
        **TEXT,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "optimizer": "adamw",
        "sequence_length": 32,
        "train_size": 3000,
        "val_size": 64,
        "batch_size": 4,
        "milestone": 256,
        "attention": "sliding_window",
        "attention_window": 5,
    }
    trainer = language.train(config)
    next(trainer)
    milestone = next(trainer)
    model, _ = language.trained(config, [milestone.state()])
    learner = milestone.evaluate.__self__._learner
    tokens = torch.arange(48).remainder(7)[None]
    assert torch.equal(model(tokens), learner.model(tokens))
    assert not torch.allclose(model(tokens), _full(model, config)(tokens), atol=1e-6), (
        "the window matters"
    )
    trainer.close()


def _full(model: Any, config: dict[str, Any]) -> GPT:
    words = len(model.embedding.weight)
    found = GPT(words, config["layers"], config["width"], config["heads"])
    found.load_state_dict(model.state_dict())
    return found
