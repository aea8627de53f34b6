"""What share of the memory's bandwidth an optimizer's step uses."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gpu_stages.findings import Finding, Run, copy_bandwidth, measured, seconds_of
from gpu_stages.optimizers import trained, usable
from trainers.optimizers import make_optimizer

WORDS = {  # of SGD with momentum
    "sgd": 5,
    "adamw": 7,
    "lars": 7,
    "lamb": 10,
    "nadamw": 7,
    "muon": 5,
    "adafactor": 4,
    "schedulefree_sgd": 5,
    "schedulefree_adamw": 7,
}
"""The least words of 4 bytes that a step reads and writes for each parameter.

LARS reads weights and gradients for the norms, then these and the velocity, and writes weights and
velocity. LAMB reads weights, gradients and both moments and writes the moments, then reads weights
and moments again and writes the weights. Adafactor reads gradients for their mean squares, then
these and the weights, which it writes. Muon's time goes into products of matrices: its share says
what these cost.

What a step moves, as separate operations on lists of tensors, is more: on an H200 LARS has 0.41 and
LAMB 0.32 of the bandwidth, where torch's fused AdamW has 0.82. By that one kernel for the whole
step would save 0.2 and 0.5 ms on ResNet-50, whose step takes tens: it is not written.
"""


def optimizer_bandwidth(run: Run) -> Iterator[Finding]:
    """Each optimizer's step on tensors of ResNet-50's sizes and on a few large ones."""
    ceiling = copy_bandwidth(run)
    yield measured("copy on the device", ceiling / 1e12, "TB/s")
    for label, shapes in (("large tensors", _large(run)), ("ResNet-50's", _resnet50(run))):
        for name in usable():
            model = nn.ParameterList(torch.randn(s, device=run.device) for s in shapes)
            more = {"momentum": 0.9} if name == "sgd" else {}
            optimizer = trained(make_optimizer(name, model, lr=1e-6, weight_decay=1e-4, **more))
            for parameter in model:
                parameter.grad = torch.randn_like(parameter)
            seconds = seconds_of(run, optimizer.step, run.pick(20, 2))
            count = sum(p.numel() for p in model)
            words = WORDS[name]
            share = 4 * words * count / seconds / ceiling
            yield measured(f"{name} on {label}, share of the bandwidth for {words} words", share)
            yield measured(f"{name} on {label}", seconds * 1e6, "us a step")
            del model, optimizer


def _large(run: Run) -> list[tuple[int, ...]]:
    return [(run.pick(4096, 32), run.pick(4096, 32))] * 8


def _resnet50(run: Run) -> list[tuple[int, ...]]:
    """The 161 parameters of ResNet-50, 25.6 million numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    into = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(run.pick(blocks, 1)):
            convs = [(width, into, 1), (width, width, 3), (4 * width, width, 1)]
            convs += [(4 * width, into, 1)] if block == 0 else []
            for out, inputs, size in convs:
                shapes += [(out, inputs, size, size), (out,), (out,)]
            into = 4 * width
    return [*shapes, (1000, 2048), (1000,)] if not run.tiny else shapes[:12]
