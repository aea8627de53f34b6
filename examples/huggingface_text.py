"""A Hugging Face trainer: `autotune run examples/huggingface_text.py:experiment --trials 8`.

A BERT of two layers, with random weights, tells documentation from code, line by line, in Python's
own standard library. `experiment_two_ranks` trains each trial on two processes.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import autotune as at
from autotune.integrations.huggingface import AutotuneCallback
from autotune.integrations.training import world_size

LENGTH, TRAINED, VALIDATED = 40, 2000, 500
MODULES = ("argparse", "ast", "difflib", "inspect", "pathlib", "shutil", "statistics", "tarfile")


def lines() -> list[dict[str, Any]]:
    """Lines of the standard library as bytes: label 1 where they are documentation, 0 elsewhere."""
    found = []
    for module in MODULES:
        text = (Path(sysconfig.get_path("stdlib")) / f"{module}.py").read_text()
        documented: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
                node
            ):
                documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        for number, line in enumerate(text.splitlines(), start=1):
            if len(line.strip()) > 10:
                found.append((line.strip(), int(number in documented)))
    random.Random(0).shuffle(found)
    return [sample(line, label) for line, label in found[: TRAINED + VALIDATED]]


def sample(line: str, label: int) -> dict[str, Any]:
    ids = [min(ord(character), 127) for character in line[:LENGTH]]
    padding = LENGTH - len(ids)
    mask = [1] * len(ids) + [0] * padding
    return {"input_ids": ids + [0] * padding, "attention_mask": mask, "labels": label}


def model(config: dict[str, Any]) -> BertForSequenceClassification:
    width = config["width"]
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=128,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(predicted.predictions.argmax(1) == predicted.label_ids))}


def train(config: dict[str, Any]) -> None:
    data, net = lines(), model(config)
    callback = AutotuneCallback(config, metrics={"val_accuracy": "eval_accuracy"})
    arguments = TrainingArguments(
        seed=config["seed"],
        num_train_epochs=config["epochs"],
        per_device_train_batch_size=config["batch_size"] // world_size(),
        per_device_eval_batch_size=VALIDATED // world_size(),
        dataloader_drop_last=True,  # in validation too: a whole batch for each rank
        eval_strategy="steps",
        eval_steps=max(1, 512 // config["batch_size"]),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
    steps = config["epochs"] * (TRAINED // config["batch_size"])
    trainer = Trainer(
        net,
        arguments,
        train_dataset=data[:TRAINED],
        eval_dataset=data[TRAINED:],
        compute_metrics=accuracy,
        optimizers=(optimizer, config["lr"].to_torch(optimizer, steps)),
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.checkpoint)


def experiment() -> at.Experiment:
    space = at.SearchSpace(
        {
            "lr": at.ScheduleSpace(at.Float(3e-4, 3e-2, log=True), family="linear", final=0.01),
            "batch_size": at.Int(16, 128, power_of_two=True),
            "width": at.Choice([16, 32, 64]),
            "epochs": at.Fixed(5),
        }
    )
    target = at.Target("val_accuracy", 0.9, limit=60)
    baseline = {"lr.peak": 3e-3, "batch_size": 32, "width": 32}
    return at.Experiment("huggingface-text", train, space, target, baseline=baseline)


def experiment_two_ranks() -> at.Experiment:
    from dataclasses import replace

    return replace(experiment(), name="huggingface-text-2", scaling=at.Scaling(num_workers=2))


if __name__ == "__main__":
    torch.manual_seed(0)
    train({"seed": 0, "lr": at.Linear(3e-3, 3e-5), "batch_size": 32, "width": 32, "epochs": 2})
