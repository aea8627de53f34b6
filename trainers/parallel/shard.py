"""Models whose parameters, gradients and optimizer are sharded over the ranks (`fully_shard`).

Each rank has its part of every tensor; the layers of a model are gathered one after another. Zhao
et al., arXiv 2304.11277, after Rajbhandari et al., arXiv 1910.02054. Gathering is collective, so
all ranks must make the same number of forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.data.stream import Batch
from trainers.memory.compiled import UNITS, is_compiled
from trainers.memory.precision import cast_in
from trainers.parallel import prefetch
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import load
from trainers.readers import flag, one_of
from trainers.technique import Knob, degree

if TYPE_CHECKING:  # an import of half a second, for sharded models only
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

RESHARD: Mapping[str, bool | None] = {"default": None, "always": True, "never": False}

KNOBS: Mapping[str, Knob] = {
    "data_parallel_shard_degree": Knob(1, degree, "exact"),
    "fsdp_reshard_after_forward": Knob("default", one_of(RESHARD), "exact", prefetch.SHARDED),
    "enable_cpu_offload": Knob(False, flag, "exact", prefetch.SHARDED),
}


def check(precision: str, compiled: bool | str, name: str, units: bool) -> None:
    """Raise a ValueError for what does not work with a key and its value, `name`.

    Args:
        units: whether units may be compiled.
    """
    allowed = (False, UNITS) if units else (False,)
    if precision == "fp16" or compiled not in allowed:
        rule = f"takes precision fp32, tf32 or bf16, and compile {' or '.join(map(repr, allowed))}"
        raise ValueError(f"{name} {rule}, got {precision} and {compiled!r}")


def sharded(
    model: nn.Module,
    units: Iterable[nn.Module],
    dtype: torch.dtype | None,
    units_ahead: int | None = None,
    **settings: Any,
) -> FSDPModule:
    """Shard the model in place, with each of its `units` gathered on its own.

    Args:
        dtype: of autocast, in which the weights of the units' linear and convolutional layers are
            gathered: they are cast to it anyway, so that ranks compute what one process does.
            Gradients are summed, and parameters updated, in their own. Units of other libraries
            are gathered as they are. None: no autocast.
        units_ahead: that are gathered before they are needed; None: as torch does.
        settings: of `fully_shard`.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    gathered: list[FSDPModule] = []
    for unit in units:
        cast = None if dtype is None else cast_in(unit)
        if cast is None:
            gathered.append(fully_shard(unit, **settings))
        elif cast:
            policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
            gathered.append(fully_shard(cast, mp_policy=policy, **settings)[0])
    prefetch.ahead(gathered, units_ahead)
    return fully_shard(model, **settings)


class Sharded:
    """A model of which every rank has its part of each tensor.

    Args:
        units: modules that are gathered one after another.
        mesh: one or two dimensions, the last of the ranks that a model is sharded over; None: all.
        reshard: gathered weights are freed after the forward pass (ZeRO-3); None: of units only.
        units_ahead: that are gathered before they are needed; None: as torch does.
        offload: parameters, gradients and the optimizer's state are in the host's memory.
        placement: along which dimension a parameter is sharded; None: the first.
    """

    collective = True
    counts = True
    owned = None
    exchange = update = None

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[nn.Module],
        data: Ranks,
        forward: Forward,
        mesh: DeviceMesh | None = None,
        reshard: bool | None = None,
        units_ahead: int | None = None,
        offload: bool = False,
        placement: Callable[[Any], Any] | None = None,
    ) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy

        settings: dict[str, Any] = {"mesh": mesh, "shard_placement_fn": placement}
        settings |= {} if reshard is None else {"reshard_after_forward": reshard}
        if offload:
            settings["offload_policy"] = CPUOffloadPolicy(pin_memory=data.device.type == "cuda")
        self.data = data
        hooked = not any(map(is_compiled, units))  # hooks of their layers would be compiled too
        dtype = forward.dtype if hooked else None
        self.network: Any = sharded(model, units, dtype, units_ahead, **settings)
        self._forward = forward

    def at(self, progress: float) -> None: ...

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        self.network.set_requires_gradient_sync(False)
        try:
            for part in parts[:-1]:
                self._forward.backward(self.network, part, loss)
        finally:
            self.network.set_requires_gradient_sync(True)
        self._forward.backward(self.network, parts[-1], loss)

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        raise AssertionError("a sharded model needs all ranks")

    def evaluate(self, x: Tensor) -> Tensor | None:
        return self._forward.scores(self.network, x)

    def labels(self, y: Tensor) -> Tensor:
        return y

    def changed(self) -> None:
        self.network.reshard()  # evaluations leave weights gathered

    def state(self) -> dict[str, Any]:
        return dict(self.network.state_dict())

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        return load(state, self.network, optimizer)

    def close(self) -> None:
        del self.network
