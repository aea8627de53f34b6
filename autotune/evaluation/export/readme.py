"""The README of an exported trial: what its files are, and how to train it and use schedules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.trial import Report, Target, Trial
from autotune.trial.wording import aim, amount, metric_name, quantity

_README = """\
# Trial {number} of the study {study}

{state} ({reason}): {came}; seed {seed}.{plan}

| file | content |
|---|---|
| `config.json` | the configuration; a schedule is an object with `"schedule"` |
| `schedules.json` | the schedules alone, by name |
| `trial.json` | trainer, target, scaling, seed, versions, every report and change of the trial |
| `train.py` | trains the configuration, without Ray, Optuna or MLflow |
{more}{path}
Train it, and measure it anew on as many fresh seeds as you like:

```
{command}
autotune replay . --repeats 3
```
"""
_PATH = """
A controller turned knobs of this trial at the steps in `turned` of `trial.json`. Its path is in the
schedules here, so that training needs no controller; `turned_from` is what they were before.
"""
_PLAIN = """
A schedule in a loop of your own, where progress runs from 0 to 1 over your training:

```python
import json
from autotune.schedules import from_json

{variable} = from_json(json.load(open("schedules.json"))["{name}"])
{use}
```
"""
_USE_LR = """\
scheduler = lr.to_torch(optimizer, total_steps)  # then scheduler.step() after optimizer.step()
# or by hand, before each step:
for group in optimizer.param_groups:
    group["lr"] = lr(step / total_steps)"""
_USE_OTHER = "value = {variable}(step / total_steps)  # before each step"


def readme(content: Mapping[str, Any], schedules: Mapping[str, Any]) -> str:
    """The text of `README.md`.

    Args:
        content: of `trial.json`.
        schedules: of `schedules.json`.
    """
    target, ranks = Target(**content["target"]), content["scaling"]["num_workers"]
    more = "| `schedules.png` | their picture |\n" if schedules else ""
    if not content["checkpoint_fault"]:
        before = "" if not content["turned"] else ", under the schedules of `turned_from`"
        step = content["checkpoint_step"]
        more += (
            f"| `checkpoint/rank-N.pt` | rank N's state at step {step}{before}: "
            "`torch.load(path, weights_only=True)` |\n"
        )
    text = _README.format(
        number=content["number"],
        study=content["study"],
        state=content["state"],
        reason=content["reason"],
        came=_came(content, target),
        seed=content["seed"],
        plan=f" Plan: {content['plan']}." if content["plan"] else "",
        more=more,
        path=_PATH if content["turned"] else "",
        command="python train.py" if ranks == 1 else f"torchrun --nproc-per-node {ranks} train.py",
    )
    if content["checkpoint_fault"]:
        text += f"\nThere is no checkpoint: {content['checkpoint_fault']}.\n"
    text += _descended(content["lineage"], content["lineage_fault"])
    if not schedules:
        return text
    return text + _plain_use(schedules)


def _came(content: Mapping[str, Any], target: Target) -> str:
    """What the trial came to, in words."""
    seconds = amount(target, content["seconds"])
    if target.timed:
        return f"{aim(target)} {'in' if content['state'] == 'REACHED' else 'not within'} {seconds}"
    reports = [Report(r["step"], r["seconds"], r["metrics"]) for r in content["reports"]]
    best = target.best(Trial(0, {}, reports=tuple(reports)))
    return f"{metric_name(target)} {quantity(best, '')} in {seconds}"


def _descended(lineage: list[dict[str, Any]], fault: str) -> str:
    """A fork's line of descent in words; empty for a trial from scratch."""
    if not lineage:
        return ""
    steps = ", ".join(f"trial {part['trial']} from step {part['from_step']}" for part in lineage)
    if fault:
        return (
            f"\nThe trial is a fork ({steps}). What it descends from cannot be written as one "
            f"configuration: {fault}. `config.json` is its own, from its fork on; `lineage` in "
            "`trial.json` has all of them.\n"
        )
    return (
        f"\nThe trial is a fork ({steps}). `config.json` is the whole line of descent, in "
        "which what changed at a fork is a schedule: trained from scratch, it repeats the line.\n"
    )


def _plain_use(schedules: Mapping[str, Any]) -> str:
    """How to use the learning rate's schedule, or the first one if that has none."""
    knobs = {name: re.sub(r"\W", "_", name.rpartition(".")[2]) for name in schedules}
    name = next((name for name, knob in knobs.items() if knob == "lr"), next(iter(knobs)))
    use = _USE_LR if knobs[name] == "lr" else _USE_OTHER.format(variable=knobs[name])
    return _PLAIN.format(name=name, variable=knobs[name], use=use)
