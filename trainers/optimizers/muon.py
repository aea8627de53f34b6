"""Muon for the matrices between layers, AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from trainers.optimizers.buckets import Settings

Adjust = Literal["match_rms_adamw", "original"]
_OWN = ("momentum", "nesterov", "ns_steps", "adjust_lr_fn")


class Muon(Optimizer):
    """Torch's `Muon` on groups with `matrices=True`, torch's `AdamW` on the other ones.

    Muon's step is the momentum with all its singular values made about 1. A kernel of a convolution
    is the matrix with one row per output channel. Every setting may be changed in `param_groups`
    before any step, and the state is that of the two optimizers.

    Args:
        params: groups, as of `trainers.optimizers.groups.matrix_groups`.
        lr: learning rate, >= 0.
        momentum: of Muon, in [0, 1).
        nesterov: of Muon.
        ns_steps: Newton-Schulz iterations, > 0.
        adjust_lr_fn: "match_rms_adamw" multiplies Muon's step by 0.2 sqrt(max(rows, columns)), so
            that learning rate and weight decay of AdamW suit it too; "original" by
            sqrt(max(1, rows / columns)).
        betas, eps: of AdamW.
        weight_decay: >= 0.
        adamw_share: AdamW's learning rate as a share of `lr`, > 0; its groups keep it as
            `lr_share`, for those who set learning rates.
        fused: of AdamW.

    Raises:
        ValueError: torch has no Muon (before 2.9).

    Sources: Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv
    2502.16982.
    """

    def __init__(
        self,
        params: Sequence[Settings],
        lr: float,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: Adjust = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_share: float = 1.0,
        fused: bool = False,
    ) -> None:
        given = locals()
        self._matrices = torch_muon()
        self._rest: AdamW | None = None
        own = {key: given[key] for key in _OWN}
        rest = {"betas": betas, "eps": eps, "fused": fused, "lr_share": adamw_share}
        common = {"lr": lr, "weight_decay": weight_decay}
        groups = [
            {**common, **own, **group}
            if group.get("matrices")
            else {**common, **rest, "lr": lr * adamw_share, **group, "matrices": False}
            for group in params
        ]
        super().__init__(groups, {})

    def add_param_group(self, param_group: Settings) -> None:
        """Adds a group, of AdamW unless it says `matrices=True`."""
        param_group.setdefault("matrices", False)
        super().add_param_group(param_group)
        self._link()

    def __setstate__(self, state: Settings) -> None:
        super().__setstate__(state)
        self._matrices = torch_muon()
        self._link()

    def _link(self) -> None:
        """AdamW gets its groups and the state, which are the same objects."""
        rest = [group for group in self.param_groups if not group["matrices"]]
        self._rest = AdamW(rest) if rest else None
        if self._rest is not None:
            self._rest.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step; returns the closure's loss, if a closure is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["matrices"]:
                self._step_matrices(group)
        if self._rest is not None:
            self._rest.step()
        return loss

    def _step_matrices(self, group: Settings) -> None:
        defaults = self._matrices.defaults
        params = [p for p in group["params"] if p.grad is not None]
        matrices = [_matrix(p) for p in params]
        self._matrices.param_groups = [{**defaults, **group, "params": matrices}]
        states = [self.state[p] for p in params]
        self._matrices.state = dict(zip(matrices, states, strict=True))
        self._matrices.step()
        self._matrices.param_groups, self._matrices.state = [], {}


def torch_muon() -> Any:
    """Torch's Muon, without parameters to speak of; a ValueError if torch has none."""
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise ValueError(f"optimizer 'muon' needs torch 2.9 or later, this is {torch.__version__}")
    return kind([torch.zeros(1, 1)])


def _matrix(parameter: Tensor) -> Tensor:
    """The parameter with its gradient as a matrix of its memory; its columns in memory's order."""
    if parameter.ndim == 2:
        return parameter
    assert parameter.grad is not None
    weight, grad = parameter.detach(), parameter.grad
    if not weight.is_contiguous():  # channels last
        weight, grad = weight.movedim(1, -1), grad.movedim(1, -1)
    matrix = weight.view(len(weight), -1)
    matrix.grad = grad.reshape(matrix.shape)
    return matrix
