"""What training several small models of one shape in one process would save (`torch.func`).

    python benchmarks/research/fused_trials.py [--repeats 5]

Models of `trainers.models.images` on scikit-learn's digits, SGD with momentum, one thread. Three
sides take turns in one process, each for a second in each of `--repeats` rounds:

    trainer   `trainers.image`, one training, as a trial is run; its own clock, without evaluation
    by hand   one model in a loop that does nothing else: forward, backward, torch's fused SGD
    fused     k models at once: the gradients by `vmap` of `grad`, each with its own batch, rate
              and momentum

The factors are samples per second of all models of the fused side together, over those of another
side: geometric mean over the rounds with a 95 % interval. More than 1 over `by hand` is what fusion
itself saves; over `trainer`, with a loop that does nothing else, is an upper bound of what a study
could gain, before its trials end at different times. Nothing here has run on a GPU.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _shared import arguments, bootstrap, introduce, keep, repeats_of
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from trainers import image
from trainers.models.images import make_model

CASES = [  # model, width, batch size
    ("mlp", 64, 32),
    ("mlp", 64, 128),
    ("mlp", 256, 32),
    ("mlp", 256, 128),
    ("resnet8", 8, 64),
    ("resnet8", 32, 64),
]
MODELS = (4, 8, 16)
Side = Callable[[float], float]  # trains for so many seconds; samples per second


def config(model: str, width: int, batch: int) -> dict[str, Any]:
    return {
        "data": "digits",
        "model": model,
        "width": width,
        "norm": "group",
        "batch_size": batch,
        "lr": 0.05,
        "momentum": 0.9,
        "milestone": batch * 20,
    }


def trainer(of: dict[str, Any]) -> Side:
    training = image.train(of)
    first = next(training)
    seen = [first.step]

    def train(seconds: float) -> float:
        began, before = time.perf_counter(), seen[0]
        while time.perf_counter() - began < seconds:
            seen[0] = training.send(None).step
        return (seen[0] - before) / (time.perf_counter() - began)

    return train


def fresh(of: dict[str, Any]) -> nn.Module:
    return make_model(of["model"], (1, 8, 8), 10, of["width"], of["norm"]).train()


def batches(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        for chosen in torch.randperm(len(images)).split(size):
            if len(chosen) == size:
                yield images[chosen], labels[chosen]


def by_hand(of: dict[str, Any], images: Tensor, labels: Tensor) -> Side:
    model, size = fresh(of), of["batch_size"]
    optimizer = torch.optim.SGD(model.parameters(), of["lr"], of["momentum"], fused=True)
    stream = batches(images, labels, size)

    def step() -> int:
        x, y = next(stream)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        return size

    return lambda seconds: repeated(step, seconds)


def fused(of: dict[str, Any], images: Tensor, labels: Tensor, count: int) -> Side:
    models, size = [fresh(of) for _ in range(count)], of["batch_size"]
    with torch.no_grad():
        params, buffers = stack_module_state(models)  # type: ignore[arg-type]
    params = {key: value.detach() for key, value in params.items()}
    moments = [torch.zeros_like(value) for value in params.values()]
    rates = torch.linspace(0.01, 0.05, count)
    momenta = torch.linspace(0.8, 0.95, count)
    each = [r.view(-1, *[1] * (v.dim() - 1)) for v in params.values() for r in (-rates, momenta)]
    stream = batches(images, labels, size)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], (p, b), (x,)), y)

    gradients = vmap(grad(loss))

    def step() -> int:
        found = [next(stream) for _ in range(count)]
        x, y = (torch.stack(column) for column in zip(*found, strict=True))
        with torch.no_grad():
            slopes = gradients(params, buffers, x, y)
            for i, (key, value) in enumerate(params.items()):
                moments[i].mul_(each[2 * i + 1]).add_(slopes[key])
                value.addcmul_(each[2 * i], moments[i])
        return size * count

    return lambda seconds: repeated(step, seconds)


def repeated(step: Callable[[], int], seconds: float) -> float:
    samples, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        samples += step()
    return samples / (time.perf_counter() - began)


def agree(of: dict[str, Any], images: Tensor, labels: Tensor) -> float:
    """The largest difference of a gradient by `vmap` from that by `backward`, of its largest."""
    models = [fresh(of) for _ in range(3)]
    params, buffers = stack_module_state(models)  # type: ignore[arg-type]
    x, y = images[: of["batch_size"]], labels[: of["batch_size"]]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], (p, b), (x,)), y)

    slopes = vmap(grad(loss))(params, buffers)
    worst = 0.0
    for i, model in enumerate(models):
        nn.functional.cross_entropy(model(x), y).backward()
        for key, value in model.named_parameters():
            assert value.grad is not None
            apart = (slopes[key][i] - value.grad).detach().abs().max()
            worst = max(worst, float(apart / value.grad.abs().max().clamp(1e-9)))
    return worst


def factor(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap(logs, statistics.fmean, 2000)
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


def main() -> int:
    options = arguments(__doc__ or "", repeats=5).parse_args()
    about, rows = introduce(), []
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    for case in CASES[:1] if options.quick else CASES:
        rows.append(compared(case, images, labels, repeats_of(options), options.quick))
    keep(options.json, about, runs=rows)
    return 0


def compared(
    case: tuple[str, int, int], images: Tensor, labels: Tensor, repeats: int, quick: bool
) -> dict[str, Any]:
    """Samples per second of each side in each round; prints the factors."""
    of, seconds = config(*case), 0.05 if quick else 1.0
    sides: dict[str, Side] = {"trainer": trainer(of), "by hand": by_hand(of, images, labels)}
    sides |= {f"fused {k}": fused(of, images, labels, k) for k in MODELS}
    for side in sides.values():
        side(seconds / 4)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            rates[name].append(side(seconds))
    apart = agree(of, images, labels)
    print("{} {}, batch {}".format(*case), f"(gradients differ by {apart:.1e} at most)")
    for name in ("trainer", "by hand"):
        print(f"  {name:10} {statistics.median(rates[name]):9.0f} samples/s")
    for k in MODELS:
        factors = (
            "over {}: {:.2f} ({:.2f} to {:.2f})".format(n, *factor(rates[f"fused {k}"], rates[n]))
            for n in ("trainer", "by hand")
        )
        print(f"  fused {k:<4} {'; '.join(factors)}", flush=True)
    return {"case": case, "apart": apart, "rates": rates}


if __name__ == "__main__":
    sys.exit(main())
