"""Ranks on a slow network train as on any other, and what was made for it is removed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune.trial import State
from trainers import language
from trainers.models.gpt import GPT

ROOT = Path(__file__).parents[2]
TRAINING = """
import json, sys, time
import torch, torch.distributed as dist
from trainers import language

torch.set_num_threads(1)
dist.init_process_group("gloo")
found = {}
for keys in json.loads(sys.argv[1]):
    trainer = language.train(keys)
    name = keys.get("gradient_compression", "none")
    found[name] = [next(trainer).evaluate()["val_loss"] for _ in range(3)]
    trainer.close()
message = torch.ones(250_000)
dist.barrier()
begun = time.perf_counter()
dist.all_reduce(message)
found["seconds"] = time.perf_counter() - begun
print(json.dumps(found))
dist.destroy_process_group()
"""
TEXT: dict[str, Any] = {
    "text": "synthetic",
    "optimizer": "sgd",
    "lr": 0.1,
    "layers": 1,
    "heads": 1,
    "width": 16,
    "batch_size": 8,
    "sequence_length": 16,
    "train_size": 5000,
    "val_size": 200,
    "milestone": 384,
}
KINDS = [
    TEXT,
    {**TEXT, "gradient_compression": "powersgd", "powersgd_start": 2, "powersgd_rank": 1},
    {**TEXT, "gradient_compression": "dgc", "dgc_dense_below": 50},
]


@pytest.fixture(scope="module")
def links() -> Any:
    """The module of benchmarks; skips where no slow link can be made."""
    path = ROOT / "benchmarks" / "_slow_link.py"
    spec = importlib.util.spec_from_file_location("autotune_slow_link", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        with module.slow_link(1000):
            pass
    except OSError as error:
        pytest.skip(f"cannot make a slow link: {error}")
    return module


def spaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if "autotune-slow" in line]


def of_process(pid: int) -> list[str]:
    return [name for name in spaces() if f"-{pid}-" in name]


@pytest.mark.slow
def test_two_ranks_train_alike_on_a_slow_link_and_on_loopback(
    links: Any, monkeypatch: pytest.MonkeyPatch, on_two_ranks: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    given = ["-c", TRAINING, json.dumps(KINDS)]
    with links.slow_link(10) as link:
        slow, before = links.answers(link, 2, given), link.sent()
    assert before > 1_000_000, "it went over the cable"
    for one in slow:
        assert one.pop("seconds") > 0.5, "a megabyte, at 10 Mbit/s"
        assert len(one) == len(KINDS)
    for keys in KINDS:
        for one, other in zip(slow, on_two_ranks(keys, 2), strict=True):
            losses = [metrics["val_loss"] for metrics in other["metrics"]]
            assert one[keys.get("gradient_compression", "none")] == losses


@pytest.mark.slow
def test_a_study_runs_its_trials_over_a_slow_link(
    links: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pools = importlib.import_module("_slow_pool")
    fixed = {key: at.Fixed(value) for key, value in TEXT.items() if key != "lr"}
    steps = 4 * TEXT["milestone"]
    made = at.Experiment(
        "slow-link",
        language.train,
        at.SearchSpace({**fixed, "lr": at.Float(0.01, 0.1, log=True)}),
        at.Target("val_loss", mode="min", limit_steps=steps),
        scaling=at.Scaling(num_workers=2, cpus_per_worker=1),
    )
    with links.slow_link(100) as link:
        options: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
        pool = pools.SlowLinkPool(language.train, link)
        trials = at.run(made, trials=2, backend=pool, out=tmp_path / "study", **options).trials
        sent = link.sent()
    assert [trial.state for trial in trials] == [State.COMPLETED] * 2
    assert [trial.reports[-1].step for trial in trials] == [steps] * 2
    weights = 4 * sum(p.numel() for p in GPT(20, 1, width=16, heads=1).parameters())
    assert sent > 2 * weights * steps / (8 * 16), "each step's gradients went over the cable"
    assert not of_process(os.getpid())


def test_a_link_is_removed_after_its_use_and_after_an_error(
    links: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with links.slow_link(100) as link:
        assert [*link.spaces] == sorted(of_process(os.getpid()))
        sides = [link.command(rank, 4)[-1] for rank in range(4)]
        assert sides == [name for name in link.spaces for _ in range(2)]
    assert not of_process(os.getpid())
    monkeypatch.setattr(links, "_ADDRESSES", ("10.213.8.1", "nowhere"))
    with pytest.raises(OSError, match=r"^ip .*nowhere/24"), links.slow_link(100):
        pass
    assert not of_process(os.getpid())
    with pytest.raises(ValueError, match="mbit must be a finite number more than 0, got 0"):
        links.slow_link(0).__enter__()


def test_a_link_is_removed_when_its_process_is_told_to_end(links: Any) -> None:
    code = (
        f"import sys, time\nsys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "from _slow_link import slow_link\n"
        "with slow_link(100):\n    print('made', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    assert len(of_process(process.pid)) == 2
    process.terminate()
    assert process.wait(timeout=120) == 143
    assert not of_process(process.pid)
