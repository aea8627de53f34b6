"""The trainer against a loop written by hand that trains the same model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_stages.findings import Finding, Run, measured, not_run
from trainers.data.images import synthetic
from trainers.image import train
from trainers.models.images import make_model

AIM = 0.97
MILESTONES_AIM = 0.01
WARM = 1  # epochs left out on both sides
MODELS = (("resnet8", 16), ("resnet8", 64), ("resnet18", 64))


def against_a_loop(run: Run) -> Iterator[Finding]:
    """Samples a second of both in turns in one process, and what milestones add."""
    models = MODELS[: run.pick(3, 1)]
    for number, (name, width) in enumerate(models):
        config = _config(run, name, run.pick(width, 4))
        label = f"{name} of width {config['width']}"
        budget = run.left / (len(models) - number) / 2
        ours, plain = _in_turns(run, config, budget)
        rate = config["train_size"] / ours
        yield measured(f"the trainer, {label}", rate, "samples/s")
        yield run.at_least(f"the trainer / by hand, {label}", plain / ours, AIM)
        epochs = min(4.0, budget / (2 * ours) - 2 * WARM)
        if epochs >= 1:
            yield from _milestones(run, config, label, int(epochs))
        else:
            yield not_run(f"a milestone / an epoch, {label}", f"no time: {run.left:.0f} s are left")


def _config(run: Run, model: str, width: int) -> dict[str, Any]:
    return {
        "data": "synthetic",
        "train_size": run.pick(20_480, 64),
        "val_size": run.pick(2048, 16),
        "image_size": run.pick(32, 8),
        "model": model,
        "width": width,
        "batch_size": run.pick(512, 16),
        "lr": 0.05,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "augment": "crop+flip",
        "precision": "bf16",
        "channels_last": True,
        "horizon": 50,
        "seed": 0,
    }


def _in_turns(run: Run, config: dict[str, Any], budget: float) -> tuple[float, float]:
    """The median seconds of an epoch, of the trainer and by hand; three turns, more in budget."""
    ends = time.monotonic() + budget
    sides = {"ours": _ours(run, config), "plain": _plain(run, config)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(WARM + run.pick(7, 1)):
        if turn >= WARM + 3 and time.monotonic() > ends:
            break
        for side in sides if turn % 2 == 0 else reversed(sides):
            seconds[side].append(next(sides[side]))
    for side in sides.values():
        side.close()
    ours, plain = (sorted(values[WARM:]) for values in seconds.values())
    return ours[len(ours) // 2], plain[len(plain) // 2]


def _ours(run: Run, config: dict[str, Any]) -> Iterator[float]:
    """Seconds of each epoch, as the trial's clock counts them."""
    trainer = train(config)
    next(trainer)
    try:
        while True:
            _wait(run)
            begin = time.perf_counter()
            next(trainer)
            _wait(run)
            yield time.perf_counter() - begin
    finally:
        trainer.close()


def _plain(run: Run, config: dict[str, Any]) -> Iterator[float]:
    """Seconds of each epoch of a loop without evaluation, reports or schedules of other knobs."""
    sizes = config["train_size"], config["val_size"], config["image_size"]
    data = synthetic(*sizes, run.device)
    x = data.train_x.to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    model = make_model(config["model"], data.shape, 10, config["width"], "batch").to(run.device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=5e-4, fused=True
    )
    steps = config["train_size"] // config["batch_size"]
    if run.on_gpu:
        torch.backends.cudnn.benchmark = True
    while True:
        _wait(run)
        begin = time.perf_counter()
        order = torch.randperm(len(x), device=run.device)
        images, labels = _augmented(x)[order], data.train_y[order]
        for step in range(steps):
            part = slice(step * config["batch_size"], (step + 1) * config["batch_size"])
            with torch.autocast(run.device.type, torch.bfloat16):
                loss = F.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] *= 0.999
        _wait(run)
        yield time.perf_counter() - begin


def _augmented(x: Tensor) -> Tensor:
    """All images flipped half of the time and shifted, at once."""
    count, _, height, width = x.shape
    flips = torch.rand(count, device=x.device) < 0.5
    x = torch.where(flips[:, None, None, None], x.flip(-1), x)
    pad = max(1, height // 8)
    padded = F.pad(x, (pad, pad, pad, pad), "reflect")
    shift = torch.randint(0, 2 * pad + 1, (2, count, 1), device=x.device)
    rows = shift[0] + torch.arange(height, device=x.device)
    columns = shift[1] + torch.arange(width, device=x.device)
    index = torch.arange(count, device=x.device)[:, None, None]
    taken = padded[index, :, rows[:, :, None], columns[:, None, :]]
    return taken.permute(0, 3, 1, 2)


def _milestones(run: Run, config: dict[str, Any], label: str, epochs: int) -> Iterator[Finding]:
    """What a milestone adds to the clock of training, as a share of an epoch's."""
    many = 8
    seconds = {}
    for count in (1, many):
        milestone = config["train_size"] // count
        trainer = _ours(run, {**config, "milestone": milestone})
        found = [next(trainer) for _ in range((WARM + epochs) * count)][WARM * count :]
        seconds[count] = sum(found) / epochs
        trainer.close()
    added = max(0.0, seconds[many] - seconds[1]) / (many - 1) / seconds[1]
    yield run.at_most(f"a milestone / an epoch, {label}", added, MILESTONES_AIM)


def _wait(run: Run) -> None:
    if run.on_gpu:
        torch.cuda.synchronize(run.device)
