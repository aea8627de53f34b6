"""Whether training on the device is right: precisions, resume, microbatches, no waiting."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gpu_stages.findings import Finding, Run, checked, close, distance, not_run
from gpu_stages.optimizers import LR, SCALED_BY_TORCH, STEPS, WAITS, tolerance, usable
from trainers import image, language

Config = dict[str, Any]


def precisions_of(run: Run, optimizer: str = "sgd") -> tuple[str, ...]:
    """The precisions of the trainers there in which nothing waits for the device."""
    there = ("fp32", "tf32", "bf16", "fp16") if run.on_gpu else ("fp32", "bf16", "fp16")
    return tuple(p for p in there if p in ("fp32", "bf16") or optimizer not in SCALED_BY_TORCH)


def images(run: Run, **more: Any) -> Config:
    """A small residual network on synthetic images."""
    size = {"train_size": run.pick(4096, 96), "val_size": run.pick(1024, 32)}
    model = {"model": "resnet8", "width": run.pick(32, 4), "image_size": run.pick(32, 8)}
    common = {"batch_size": run.pick(128, 16), "horizon": 4, "channels_last": run.on_gpu}
    return {"data": "synthetic", "lr": 0.05, "seed": 1, **size, **model, **common, **more}


def words(run: Run, **more: Any) -> Config:
    """A small language model on a synthetic text."""
    model = {"layers": run.pick(4, 1), "width": run.pick(256, 16), "heads": run.pick(4, 2)}
    size = {"train_size": run.pick(200_000, 4000), "val_size": run.pick(8192, 256)}
    length = {"sequence_length": run.pick(128, 16), "batch_size": run.pick(32, 8)}
    return {"text": "synthetic", "lr": 0.05, "seed": 1, **model, **size, **length, **more}


# --- precisions -----------------------------------------------------------------------------------

ERRORS = {"fp32": (0.0, 5e-6), "tf32": (1e-5, 2e-3), "bf16": (1e-4, 2e-2), "fp16": (1e-5, 5e-3)}
"""The least and the greatest relative error of a product in each precision."""
CONVOLUTIONS = {name: (0.0, high) for name, (_, high) in ERRORS.items()} | {"fp32": (0.0, 2e-5)}
"""Of a convolution: cuDNN chooses its algorithm, which may be more exact or, in fp32, less."""


def precisions(run: Run) -> Iterator[Finding]:
    """The error of a product and of a convolution in each precision is that of its name."""
    if not run.on_gpu:
        yield not_run("tf32", "a CPU has none")
    for name in precisions_of(run):
        for kind, error in _errors(run, name).items():
            low, high = (ERRORS if kind == "product" else CONVOLUTIONS)[name]
            text = f"a relative error of {error:.2g}, {low:g} to {high:g} expected"
            yield checked(f"{kind} in {name}", low <= error <= high, text)


def _errors(run: Run, precision: str) -> dict[str, float]:
    from trainers.memory.precision import DTYPES, numerics

    torch.manual_seed(0)
    side = run.pick(1024, 64)
    a, b = torch.randn(side, side), torch.randn(side, side)
    x, w = torch.randn(8, 32, 16, 16), torch.randn(32, 32, 3, 3)
    dtype = DTYPES.get(precision, torch.float32)
    with numerics(precision, False, run.device):
        product = a.to(run.device, dtype) @ b.to(run.device, dtype)
        convolved = nn.functional.conv2d(x.to(run.device, dtype), w.to(run.device, dtype))
    exact = a.double() @ b.double(), nn.functional.conv2d(x.double(), w.double())
    found = (distance([ours], [e]) for ours, e in zip((product, convolved), exact, strict=True))
    return dict(zip(("product", "convolution"), found, strict=True))


# --- resume and microbatches ----------------------------------------------------------------------


def resumed(run: Run) -> Iterator[Finding]:
    """Training that goes on from a state ends in the same bits; with `deterministic`."""
    for name in usable():
        for precision in precisions_of(run, name):
            more = {"optimizer": name, "lr": LR[name], "precision": precision}
            config = images(run, **more, deterministic=True, augment="crop+flip+cutout")
            yield _resumed(image.train, config, f"images, {name}, {precision}")
    for precision in precisions_of(run):
        config = words(run, optimizer="adamw", lr=1e-3, precision=precision, deterministic=True)
        yield _resumed(language.train, {**config, "milestone": 2048}, f"text, {precision}")


def _resumed(train: Any, config: Config, label: str) -> Finding:
    first, saved = _ended(train, config, milestones=2, save_at=1)
    second, _ = _ended(train, {**config, "state": saved}, milestones=1, save_at=None)
    apart = _apart(first, second)
    return checked(f"resume, {label}", not apart, apart or "bit for bit")


def _ended(
    train: Any, config: Config, milestones: int, save_at: int | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    trainer, saved = train(config), None
    try:
        for number in range(milestones + 1):
            milestone = next(trainer)
            milestone.evaluate()
            if number == save_at:
                saved = copy.deepcopy(milestone.state())
        return copy.deepcopy(milestone.state()), saved
    finally:
        trainer.close()


def _apart(a: Any, b: Any, path: str = "state") -> str:
    """Where two states differ, or an empty text."""
    if isinstance(a, Tensor) and a.device != b.device:
        return f"{path} is on {a.device} and on {b.device}"
    if isinstance(a, Tensor):
        return "" if torch.equal(a, b) else f"{path} differs by {float((a - b).abs().max()):.3g}"
    if isinstance(a, dict):
        parts = (_apart(a[k], b[k], f"{path}[{k!r}]") for k in a)
    elif isinstance(a, list | tuple):
        parts = (_apart(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    else:
        return "" if a == b else f"{path} is {a!r} and {b!r}"
    return next((part for part in parts if part), "")


def microbatches(run: Run) -> Iterator[Finding]:
    """A step in microbatches is the step of the whole batch."""
    same = 1e-4 if run.on_gpu else 1e-5
    for name in usable():
        ends = []
        for most in (None, run.pick(48, 5)):
            config = images(run, norm="group", optimizer=name, lr=LR[name] * 0.1, microbatch=most)
            config = {**config, "milestone": config["batch_size"], "max_epochs": 1}
            state, _ = _ended(image.train, config, milestones=1, save_at=None)
            ends.append(list(state["learner"]["model"].values()))
        yield close(f"{name} in microbatches", distance(*ends), tolerance(name, same))


# --- waiting for the device -----------------------------------------------------------------------


def never_waits(run: Run) -> Iterator[Finding]:
    """Twenty steps of each optimizer and precision, over two epochs, never wait for the device."""
    for name in usable():
        if name in WAITS:
            yield not_run(name, "torch's waits in each step")
            continue
        for precision in precisions_of(run, name):
            more = {"optimizer": name, "lr": LR[name], "precision": precision}
            epoch = {"train_size": run.pick(1024, 96)}
            pictures = images(run, **more, **epoch, augment="crop+flip+cutout")
            pictures["milestone"] = STEPS * pictures["batch_size"]
            text = words(run, **more)
            text["milestone"] = STEPS * text["batch_size"] * text["sequence_length"]
            for label, train, config in (
                ("images", image.train, pictures),
                ("text", language.train, text),
            ):
                yield _unwaiting(run, train, config, f"{label}, {name}, {precision}")


def _unwaiting(run: Run, train: Any, config: Config, label: str) -> Finding:
    trainer = train(config)
    done = "no wait" if run.on_gpu else "made; whether they wait, a CPU cannot tell"
    try:
        next(trainer)
        _wait_is("error", run)
        begun = next(trainer).step
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return checked(f"{STEPS} steps, {label}", False, str(error).partition("\n")[0])
    finally:
        _wait_is("default", run)
        trainer.close()
    return checked(f"{STEPS} steps, {label}", begun >= config["milestone"], done)


def _wait_is(mode: str, run: Run) -> None:
    if run.on_gpu:
        torch.cuda.set_sync_debug_mode(mode)
