"""Matrices divided over the ranks: tensor, sequence and loss parallel.

A model says how each of its matrices may be divided (`tensor_plan`). A rank has some of the heads,
some of the perceptron's columns and some of the vocabulary's scores. Shoeybi et al. 2019, arXiv
1909.08053; norms and residuals divided along the sequence: Korthikanti et al. 2022, arXiv
2205.05198.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn

from trainers.parallel import matrices
from trainers.parallel import mesh as meshes
from trainers.parallel.protocol import Loss, Parallel
from trainers.parallel.ranks import Ranks
from trainers.parallel.shared import Shared
from trainers.parallel.states import whole
from trainers.readers import flag
from trainers.readers import whole as count
from trainers.technique import Knob, When

if TYPE_CHECKING:  # an import of half a second, for divided models only
    from torch.distributed.device_mesh import DeviceMesh

_WHERE = When(
    "tensor_parallel_degree other than 1", lambda plan: plan["tensor_parallel_degree"] != 1
)
KNOBS: Mapping[str, Knob] = {
    "tensor_parallel_degree": Knob(1, count(1), "exact"),
    "enable_sequence_parallel": Knob(False, flag, "exact", _WHERE),
    "enable_loss_parallel": Knob(False, flag, "exact", _WHERE),
}


def check(degree: int, loss_parallel: bool, optimizer: str, smoothed: bool) -> None:
    """Raise a ValueError for what does not work with divided matrices."""
    if degree > 1 and optimizer in ("muon", "adafactor"):
        raise ValueError(
            f"tensor_parallel_degree must be 1 with optimizer {optimizer!r}, whose steps are of "
            f"whole matrices, got {degree}"
        )
    if loss_parallel and smoothed:
        raise ValueError("enable_loss_parallel True needs label_smoothing 0 all along")


def check_model(degree: int, shards: int, heads: int, width: int) -> None:
    """Raise a ValueError for a model that cannot be divided among so many ranks."""
    if heads % degree:
        raise ValueError(f"tensor_parallel_degree must divide the heads, {heads}, got {degree}")
    if degree > 1 and shards > 1 and width % shards:
        raise ValueError(
            f"data_parallel_shard_degree must divide the width, {width}, where "
            f"tensor_parallel_degree is not 1, got {shards}"
        )


def divide(model: Any, mesh: DeviceMesh, in_parts: bool) -> None:
    """Divide a model's matrices in place.

    Args:
        model: a `GPT`.
        mesh: of all ranks, with the dimensions "dp_shard" and "tp".
        in_parts: sequence parallel.

    Raises:
        ValueError: they cannot be divided so; one line.
    """
    across, within = meshes.part(mesh, "dp_shard"), meshes.part(mesh, "tp")
    shards, degree = across.size(), within.size()
    width = model.embedding.embedding_dim
    check_model(degree, shards, width // model.head_width, width)
    matrices.divide(model, within, in_parts)


def divided(inner: Parallel, data: Ranks, place: Ranks, in_parts: bool, by_class: bool) -> Shared:
    """A divided model on ranks that have the same batch.

    Args:
        inner: the model among the ranks of the data.
        data: these.
        place: this rank among those that the matrices are divided over.
        in_parts: sequence parallel; sequences are made multiples of the ranks.
        by_class: loss parallel; else scores are gathered before the loss.
    """
    return Shared(
        inner,
        data,
        counts=place.rank == 0,
        multiple=place.size if in_parts else 1,
        loss=(lambda loss: loss) if by_class else _of_whole_scores,
        inside=_loss_parallel if by_class else nullcontext,
        after=_add_up,
    )


def _of_whole_scores(loss: Loss) -> Loss:
    return lambda out, y: loss(whole(out), y)


@contextmanager
def _loss_parallel() -> Iterator[None]:
    """Torch's, which would stay on in the process after an error."""
    from torch.distributed.tensor.parallel import loss_parallel

    entered = loss_parallel()
    entered.__enter__()
    try:
        yield
    finally:
        entered.__exit__(None, None, None)


def _add_up(network: nn.Module) -> None:
    """The gradient of a whole weight is a sum over the ranks where they had parts of a sequence."""
    for parameter in network.parameters():
        weight: Any = parameter
        if weight.grad is not None and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)
