"""Both scripts as trainers: `autotune run examples/existing_script/study.py:reports`, or `:prints`.

Everything that a study needs is here; the scripts do not know of it.
"""

from __future__ import annotations

import autotune as at

TARGET = at.Target("val_accuracy", 0.9, limit=20)


def reports() -> at.Experiment:
    """The script that calls `autotune.report`: in the process of its rank."""
    train = at.script(
        "train_reports.py",
        args={
            "--lr": "lr",
            "--width": "width",
            "--batch-size": "batch_size",
            "--nesterov": "nesterov",
            "--seed": "seed",
        },
        words=["--epochs", "100"],
    )
    space = at.SearchSpace(
        {
            "lr": at.Float(0.01, 1, log=True),
            "width": at.Choice([16, 32, 64]),
            "batch_size": at.Int(16, 256, power_of_two=True),
            "nesterov": at.Choice([False, True]),
        }
    )
    baseline = {"lr": 0.1, "width": 32, "batch_size": 64, "nesterov": False}
    return at.Experiment("script-reports", train, space, TARGET, baseline=baseline)


def prints() -> at.Experiment:
    """The script that prints lines of JSON: a process of its own."""
    train = at.script(
        "train_prints.py",
        args={"--lr": "lr", "--decay": "decay", "--seed": "seed"},
        words=["--epochs", "100"],
    )
    space = at.SearchSpace(
        {"lr": at.Float(0.05, 5, log=True), "decay": at.Float(1e-6, 1e-2, log=True)}
    )
    baseline = {"lr": 0.5, "decay": 1e-4}
    return at.Experiment("script-prints", train, space, TARGET, baseline=baseline)
