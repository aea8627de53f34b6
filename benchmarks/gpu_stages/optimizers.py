"""Whether the optimizers compute on the device what they compute on the host in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gpu_stages.findings import Finding, Run, checked, close, distance, not_run
from trainers.optimizers import VARIANTS, make_optimizer, require_optimizer

LR = {
    "sgd": 0.05,
    "adamw": 0.005,
    "lars": 1.0,
    "lamb": 0.01,
    "nadamw": 0.005,
    "muon": 0.005,
    "adafactor": 0.05,
    "schedulefree_sgd": 0.05,
    "schedulefree_adamw": 0.005,
}
ROUNDED = {"muon": 2e-2}
"""Relative distances of an optimizer whose steps are computed in bfloat16."""
SCALED_BY_TORCH = ("nadamw", "muon", "adafactor", "schedulefree_sgd", "schedulefree_adamw")
"""They leave the scale of fp16's gradients to torch's scaler, which waits for the device."""
WAITS = ("adafactor",)
"""torch's read norms of parameters on the host in each step."""
STEPS = 20


def usable() -> list[str]:
    """The optimizers whose library, or whose version of torch, is there."""
    return [name for name in LR if not _lacks(name)]


def _lacks(name: str) -> str:
    try:
        require_optimizer(name)
    except ValueError as error:
        return str(error)
    return ""


def tolerance(name: str, exact: float) -> float:
    """The greatest relative distance of equal steps, `exact` where they are not rounded."""
    return ROUNDED.get(name, exact)


def trained(optimizer: Any) -> Any:
    """The optimizer, ready for steps."""
    getattr(optimizer, "train", lambda: None)()
    return optimizer


def against_float64(run: Run) -> Iterator[Finding]:
    """Each optimizer on the device in fp32 against itself on the host in float64."""
    for name in LR:
        if why := _lacks(name):
            yield not_run(name, why)
            continue
        for variant in (None, *VARIANTS.get(name, ())):
            label = name if variant is None else f"{name} {variant}"
            ends = [
                _stepped(run, name, variant, device, dtype)
                for device, dtype in (
                    (run.device, torch.float32),
                    (torch.device("cpu"), torch.float64),
                )
            ]
            title = f"{label}, {STEPS} steps, against float64"
            yield close(title, distance(*ends), tolerance(name, 1e-5))


def _stepped(
    run: Run, name: str, variant: str | None, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    model = _layers(run).to(device, dtype)
    chosen = {} if variant is None else {"variant": variant}
    optimizer = trained(make_optimizer(name, model, lr=0.0, weight_decay=0.01, **chosen))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LR[name] * 0.1 * (1 - step / (2 * STEPS))
        for parameter in model.parameters():
            parameter.grad = _gradient(parameter.detach(), step)
        optimizer.step()
    _average(optimizer)
    return list(model.parameters())


def _average(optimizer: Any) -> None:
    """The model gets the averages of its weights, if the optimizer is schedule-free."""
    getattr(optimizer, "eval", lambda: None)()


def _layers(run: Run) -> nn.Module:
    """Tensors of different sizes; the last one starts at zero."""
    torch.manual_seed(0)
    width = run.pick(512, 8)
    model = nn.Sequential(
        *(nn.Linear(width, width // k) for k in (1, 2, 4)), nn.Conv2d(3, width, 3), nn.LayerNorm(8)
    )
    nn.init.zeros_(model[-1].weight)
    return model


def _gradient(w: Tensor, step: int) -> Tensor:
    """Of a bowl whose lowest point moves a little with the step."""
    place = torch.arange(w.numel(), dtype=torch.float64).reshape(w.shape)
    bowl, shift = (1 + 0.3 * torch.cos(place)), torch.sin(place + 0.1 * step)
    return bowl.to(w) * (w - shift.to(w))


def scaled_gradients(run: Run) -> Iterator[Finding]:
    """Gradients of fp16's loss scaling: taken off on the device; steps with infinities left out."""
    for name in usable():
        whole, scaled = (_scaled_steps(run, name, scale) for scale in (None, 1024.0))
        yield close(f"{name} with scaled gradients", distance(scaled, whole), 1e-6)
        before, after = _overflowing(run, name)
        same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        yield checked(f"{name} leaves out a step whose gradient is not finite", same)


def _scaled_steps(run: Run, name: str, scale: float | None) -> list[Tensor]:
    model = _layers(run).to(run.device)
    optimizer = trained(make_optimizer(name, model, lr=LR[name] * 0.1, weight_decay=0.01))
    scaler = None if scale is None else torch.amp.GradScaler(run.device.type, init_scale=scale)
    if scaler is not None:
        scaler.scale(torch.zeros((), device=run.device))  # makes its tensors
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = _gradient(parameter.detach(), step) * (scale or 1.0)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
    return list(model.parameters())


def _overflowing(run: Run, name: str) -> tuple[list[Tensor], list[Tensor]]:
    model = _layers(run).to(run.device)
    optimizer = trained(make_optimizer(name, model, lr=LR[name], weight_decay=0.01))
    scaler = torch.amp.GradScaler(run.device.type, init_scale=8.0)
    scaler.scale(torch.zeros((), device=run.device))
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    scaler.step(optimizer)
    scaler.update()
    return before, [p.detach() for p in model.parameters()]
