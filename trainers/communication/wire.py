"""Gradients of copies of a model sent with 16 bits, as hooks of DDP.

They are divided by the number of ranks, rounded, and summed with 16 bits, while the backward pass
goes on. `fp16` has 11 significant bits and numbers up to 65504, `bf16` has 8 and the range of 32.
Micikevicius et al. 2018, arXiv 1710.03740; Kalamkar et al. 2019, arXiv 1905.12322.
"""
# No annotations as text: DDP looks at those of a communication hook.

from collections.abc import Callable, Iterable, Mapping
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

Hook = Callable[..., torch.futures.Future[Tensor]]


def sent(shapes: Iterable[tuple[int, ...]]) -> int:
    """The bytes that a rank gives to a sum in a step, for parameters of these shapes.

    >>> sent([(4, 3), (4,)])
    32
    """
    return 2 * sum(prod(shape) for shape in shapes)


def bf16_hook(
    state: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """As torch's hook of this kind, which DDP allows with NCCL alone: gloo sums bfloat16 too."""
    gradients = bucket.buffer()
    rounded = gradients.to(torch.bfloat16).div_(state.size())
    begun = dist.all_reduce(rounded, group=state, async_op=True)
    assert begun is not None
    summed: torch.futures.Future[Tensor] = begun.get_future().then(
        lambda done: gradients.copy_(done.value()[0])
    )
    return summed


HOOKS: Mapping[str, Hook] = {"fp16": default_hooks.fp16_compress_hook, "bf16": bf16_hook}
