"""How an optimizer of torch goes over the parameters in a step.

| `optimizer_implementation` | the update |
|---|---|
| auto | fused where torch has such a kernel for the optimizer, else as torch chooses |
| fused | one kernel reads and writes each tensor once, or many tensors at a time |
| foreach | an operation at a time, over all tensors: needs room for temporary copies of them |
| for-loop | a tensor at a time, an operation at a time: the least memory |

They differ in the order of an update's operations, and so in its last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainers.readers import one_of
from trainers.technique import Knob

AUTO, FUSED, FOREACH, LOOP = "auto", "fused", "foreach", "for-loop"
KNOBS: Mapping[str, Knob] = {
    "optimizer_implementation": Knob(AUTO, one_of((AUTO, FUSED, FOREACH, LOOP)), "exact"),
}
TAKES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sgd", "adamw"), (FUSED, FOREACH, LOOP)),
    **dict.fromkeys(("nadamw", "adafactor"), (FOREACH, LOOP)),
}
"""What the optimizers of torch can be beside auto."""


def check(implementation: str, optimizer: str, parts: bool) -> None:
    """Raise a ValueError for an optimizer that has no such implementation.

    Args:
        parts: whether a rank has parts of parameters, for which torch has no fused SGD.
    """
    takes = TAKES.get(optimizer, ())
    if parts and optimizer == "sgd":
        takes = (FOREACH, LOOP)
    if implementation != AUTO and implementation not in takes:
        where = " on parts of parameters" if parts else ""
        allowed = ", ".join((AUTO, *takes))
        raise ValueError(
            f"optimizer_implementation of optimizer {optimizer!r}{where} must be one of {allowed}, "
            f"got {implementation!r}"
        )


def settings(implementation: str, optimizer: str) -> dict[str, Any]:
    """The keywords of the optimizer's class for it.

    >>> settings("foreach", "adamw"), settings("for-loop", "nadamw"), settings("auto", "adamw")
    ({'foreach': True, 'fused': False}, {'foreach': False}, {})
    """
    if implementation == AUTO:
        return {}
    found: dict[str, Any] = {"foreach": implementation == FOREACH}
    if FUSED in TAKES[optimizer]:
        found["fused"] = implementation == FUSED
    return found
