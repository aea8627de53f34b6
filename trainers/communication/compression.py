"""How copies of a model send fewer bytes of their gradients.

| key | value (default) |
|---|---|
| `gradient_compression` | none, fp16, bf16, powersgd, dgc or one_bit (none) |
| `powersgd_rank` * | columns of the two matrices that are sent (2) |
| `powersgd_start` | the first compressed step (10) |
| `powersgd_warm_start` | each step begins with the matrices of the one before (True) |
| `powersgd_wire` | the matrices in fp32 or fp16 (fp32) |
| `dgc_ratio` * | the share of a gradient's numbers that is sent (0.01) |
| `dgc_warmup_steps` | steps in which it falls to that from 0.25 (0) |
| `dgc_momentum` | the momentum of each rank's own gradients is sent (True) |
| `dgc_clip` | the most that the norm of the gradient may be (not clipped) |
| `dgc_dense_below` | gradients with fewer numbers are sent whole (1024) |
| `one_bit_warmup_steps` | the first compressed step (100) |

Keys marked * take a number or a schedule of progress. A training on one rank sends nothing, and is
the same with all of them. What a rank keeps of its gradients is in its checkpoint, and goes on bit
for bit on as many ranks; on others nothing is kept at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from trainers.communication import dgc, one_bit, powersgd
from trainers.communication.exchange import Exchange, Wire
from trainers.communication.wire import HOOKS
from trainers.parallel.ranks import Ranks
from trainers.parallel.topology import COPIES
from trainers.plan import DEFAULTS as PLAN
from trainers.plan import Plan
from trainers.readers import Key, one_of, shown
from trainers.technique import Knob, require_places

EXCHANGES = ("powersgd", "dgc", "one_bit")
KNOBS: Mapping[str, Knob] = {
    "gradient_compression": Knob("none", one_of(("none", *HOOKS, *EXCHANGES)), "both", COPIES),
    **powersgd.KNOBS,
    **dgc.KNOBS,
    **one_bit.KNOBS,
}
KEYS: Mapping[str, Key] = {key: (knob.default, knob.reader) for key, knob in KNOBS.items()}
MEMORY_KEYS = tuple(key for key, knob in KNOBS.items() if knob.memory)

_ALL = ("tensor_parallel_degree", "pipeline_parallel_degree", "all_reduce_topology")
REFUSES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*HOOKS, "powersgd"), _ALL),
    "dgc": (*_ALL, "shard_optimizer_state", "static_graph", "bucket_cap_mb"),
    "one_bit": (*_ALL, "shard_optimizer_state", "optimizer_state_bits"),
}
"""The keys of plans that must have their defaults. (DGC has no buckets, and no state to share.)"""


def check(
    values: Mapping[str, Any],
    plan: Plan,
    optimizer: str,
    precision: str,
    options: Mapping[str, Any],
) -> None:
    """Raise a ValueError, one line, for a compression that does not go with the rest of a training.

    Args:
        values: of all keys.
        options: of the optimizer.
    """
    require_places(KNOBS, {**vars(plan), **values})
    kind = values["gradient_compression"]
    needs = f"needs gradient_compression other than {kind!r}"
    for key in REFUSES.get(kind, ()):
        if getattr(plan, key) != PLAN[key]:
            raise ValueError(f"{key} {shown(getattr(plan, key))} {needs}, or {PLAN[key]!r}")
    if kind in EXCHANGES and precision == "fp16":  # whose scale of gradients changes
        raise ValueError(f"precision 'fp16' {needs}: errors of other steps have another scale")
    if kind == "dgc":
        dgc.check(optimizer, values["dgc_momentum"], options)
    if kind == "one_bit":
        one_bit.check(optimizer, options)


def exchange(
    values: Mapping[str, Any],
    model: nn.Module,
    ranks: Ranks,
    waiting: Callable[[], AbstractContextManager[None]],
) -> Exchange | None:
    """What is exchanged in place of whole gradients; None: these, whatever their bits.

    Args:
        waiting: measures the time of a part of a step that only communicates.
    """
    kind, wire = values["gradient_compression"], Wire(ranks, waiting)
    own = [values[key] for key in KNOBS if key.startswith(f"{kind}_")]
    if kind == "powersgd":
        return powersgd.PowerSGD(model, wire, *own)
    if kind == "dgc":
        return dgc.DGC(model, wire, *own)
    return one_bit.OneBit(model, wire, *own) if kind == "one_bit" else None
