"""What somebody tries in the first hour: 30 trials of a plain function, autotune against Optuna.

    python benchmarks/first_hour.py [--trials 30] [--repeats 5] [--backend local] [--json FILE]

Two problems, each a function of a configuration as one writes it first:

    svc      a support vector classifier of scikit-learn's digits; the function returns its accuracy
    torch    a small network on the same data, which reports its accuracy after each of ten epochs

Both sides search with TPE for the best accuracy, stop no trial early, and write no more to the disk
than they do by default. `-mlflow` sides also write to MLflow on SQLite: Optuna by its MLflow
callback, which logs each trial's end, and autotune by default, which logs every report.

CPU seconds are those of the whole script and of all its processes, imports included. `training` is
the part of them inside the function, without its imports. Wall seconds end with the script, when
MLflow is complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _common import (
    Answer,
    Side,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    missing,
    ratios,
    repeats_of,
    serve,
    summary,
)
from trial_cost import wait_for_mirror

AIM = 2.0  # times Optuna's CPU seconds, at most
PROBLEMS = ("svc", "torch")
EPOCHS = 10
Report = Callable[[int, float], None]
SIDES = tuple(
    f"{problem}-{tool}{more}"
    for problem in PROBLEMS
    for more in ("", "-mlflow")
    for tool in ("optuna", "autotune")
)


# --- what is tuned ------------------------------------------------------------------------------


def svc(config: Mapping[str, Any]) -> float:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    begin = time.process_time()
    images, labels = load_digits(return_X_y=True)
    model = SVC(C=config["C"], gamma=config["gamma"])
    accuracy = float(cross_val_score(model, images, labels, cv=3).mean())
    _note(config, time.process_time() - begin)
    return accuracy


def network(config: Mapping[str, Any], report: Report) -> None:
    import torch
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    begin = time.process_time()
    torch.manual_seed(config["seed"])
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for epoch in range(1, EPOCHS + 1):
        for batch in torch.randperm(1400).split(32):  # type: ignore[no-untyped-call]
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        accuracy = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
        report(epoch, accuracy)
    _note(config, time.process_time() - begin)


def _note(config: Mapping[str, Any], seconds: float) -> None:
    """Add to the side's file how many CPU seconds a trial has trained."""
    with open(config["spent"], "a") as file:
        file.write(f"{seconds}\n")


# --- Optuna -------------------------------------------------------------------------------------


def optuna_side(task: Task) -> Answer:
    begin = time.monotonic()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spent = {"spent": _spent(task)}

    def plain(trial: Any) -> float:
        c = trial.suggest_float("C", 0.1, 100, log=True)
        return svc({"C": c, "gamma": trial.suggest_float("gamma", 1e-5, 0.1, log=True), **spent})

    def reporting(trial: Any) -> float:
        accuracies: list[float] = []
        lr = trial.suggest_float("lr", 1e-3, 1, log=True)
        momentum = trial.suggest_float("momentum", 0.5, 0.98)

        def report(epoch: int, accuracy: float) -> None:
            trial.report(accuracy, epoch)
            accuracies.append(accuracy)

        network({"lr": lr, "momentum": momentum, "seed": trial.number, **spent}, report)
        return max(accuracies)

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=task["seed"]),
        pruner=optuna.pruners.NopPruner(),
    )
    objective = plain if task["problem"] == "svc" else reporting
    study.optimize(objective, n_trials=task["trials"], callbacks=_callbacks(task))
    return _answer(task, begin, study.best_value)


def _callbacks(task: Task) -> list[Any]:
    if not task["mlflow"]:
        return []
    from optuna_integration import MLflowCallback

    return [MLflowCallback(f"sqlite:///{task['folder']}/mlflow.db", metric_name="accuracy")]


# --- autotune -----------------------------------------------------------------------------------


def reporting_network(config: dict[str, Any]) -> None:
    import autotune as at

    def report(epoch: int, accuracy: float) -> None:
        at.report(epoch, {"accuracy": accuracy})

    network(config, report)


def autotune_side(task: Task) -> Answer:
    begin = time.monotonic()
    import autotune as at

    spaces: dict[str, dict[str, Any]] = {
        "svc": {"C": at.Float(0.1, 100, log=True), "gamma": at.Float(1e-5, 0.1, log=True)},
        "torch": {"lr": at.Float(1e-3, 1, log=True), "momentum": at.Float(0.5, 0.98)},
    }
    result = at.tune(
        svc if task["problem"] == "svc" else reporting_network,
        {**spaces[task["problem"]], "spent": _spent(task)},
        metric="accuracy",
        trials=task["trials"],
        sampler="tpe",
        pruner="none",
        seed=task["seed"],
        out=Path(task["folder"], "study"),
        tracking_uri=None if task["mlflow"] else "off",
        backend=task["backend"],
    )
    wait_for_mirror()
    assert result.best_value is not None
    return _answer(task, begin, result.best_value)


# --- both ---------------------------------------------------------------------------------------


def _spent(task: Task) -> str:
    return os.path.join(task["folder"], "spent.txt")


def _answer(task: Task, begin: float, best: float) -> Answer:
    """What a side has done; raises where a trial is missing."""
    spent = [float(line) for line in Path(_spent(task)).read_text().split()]
    if len(spent) != task["trials"]:
        raise RuntimeError(f"{len(spent)} of {task['trials']} trials came to their end")
    return {"training": sum(spent), "seconds": time.monotonic() - begin, "best": best}


def task_of(side: str, trials: int, backend: str, repeat: int) -> Task:
    return {
        "problem": side.partition("-")[0],
        "mlflow": side.endswith("-mlflow"),
        "trials": trials,
        "backend": backend,
        "seed": repeat,
    }


def show(runs: Mapping[str, list[Answer]], trials: int) -> None:
    print(f"\n{trials} trials: median (range)")
    for side, answers in runs.items():
        cpu, training, seconds, best = (
            [a[name] for a in answers] for name in ("cpu_seconds", "training", "seconds", "best")
        )
        print(
            f"  {side:22} CPU {summary(cpu, ' s'):32} of which training {summary(training, ' s')}"
        )
        print(f"  {'':22} wall {summary(seconds, ' s'):31} best accuracy {summary(best)}")
    for side in (s for s in runs if "autotune" in s):
        peer = side.replace("autotune", "optuna")
        if peer in runs:
            pairs = [[a["cpu_seconds"] for a in runs[name]] for name in (side, peer)]
            print(f"  {side} / {peer}: CPU {summary(ratios(*pairs))}; aim: at most {AIM:g}")


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--trials", type=int, help="of each side (30)")
    parser.add_argument("--backend", default="local", help="of autotune: local, ray, auto (local)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="only these")
    options = parser.parse_args()
    trials = options.trials or (3 if options.quick else 30)
    sides = list(options.sides or (SIDES[:2] if options.quick else SIDES))
    absent = missing("optuna_integration")
    if absent and any(_is_callback(side) for side in sides):
        print(f"Optuna with MLflow is skipped: {absent} (pip install 'time-to-target[bench]')")
        sides = [side for side in sides if not _is_callback(side)]
    about = introduce()
    runs: dict[str, list[Answer]] = {side: [] for side in sides}
    raw = []
    for repeat, side in in_turns(sides, repeats_of(options)):
        answer = measure(__file__, side, task_of(side, trials, options.backend, repeat))
        runs[side].append(answer)
        raw.append({"side": side, "repeat": repeat, **answer})
    show(runs, trials)
    keep(options.json, about, trials=trials, runs=raw)


def _is_callback(side: str) -> bool:
    return "optuna" in side and side.endswith("-mlflow")


if __name__ == "__main__":
    made: dict[str, Side] = {
        side: autotune_side if "autotune" in side else optuna_side for side in SIDES
    }
    if not serve(made, sys.argv[1:]):
        main()
