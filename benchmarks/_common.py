"""What the benchmarks share: sides in processes of their own, spreads, the machine.

A script compares sides. It measures each in a fresh process, in turns (`in_turns`), so that none
inherits another's warm caches and a change in the machine's load meets all of them. The process
is this same script with `--side NAME`; it gets a task and gives an answer as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from _cpu_meter import CpuMeter

ROOT = Path(__file__).parents[1]
os.environ["AUTOTUNE_EXPERIENCE"] = "off"  # what was run before decides no benchmark
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

Task = dict[str, Any]
Answer = dict[str, Any]
Side = Callable[[Task], Answer]

MIRROR = "autotune.cli.mirror_process"  # its CPU time is counted apart, too
_PACKAGES = ("autotune", "torch", "ray", "optuna", "mlflow", "tensorboardX", "numpy")
_QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SideError(RuntimeError):
    """A side's process failed; the message has the end of what it printed."""


def measure(script: str, side: str, task: Task, limit_seconds: float = 3600) -> Answer:
    """Run one side in a process of its own; its answer, with CPU seconds under `cpu_seconds`.

    Moments that the side answers under `windows`, name -> [begin, end] on the monotonic clock,
    come back as seconds and CPU seconds of all its processes.

    Raises:
        SideError: the process failed.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as place:
        answer = Path(place, "answer.json")
        command = [sys.executable, script, "--side", side, "--answer", str(answer)]
        task = {**task, "folder": place}
        with open(Path(place, "output"), "w+b") as output:
            process = subprocess.Popen(
                [*command, "--task", json.dumps(task)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_QUIET},
            )
            meter = CpuMeter(process.pid, MIRROR)
            thread = threading.Thread(target=meter.run, daemon=True)
            thread.start()
            code = process.wait(limit_seconds)
            meter.stop()
            thread.join()
            if code or not answer.exists():
                output.seek(0)
                text = output.read().decode(errors="replace")[-3000:]
                raise SideError(f"{side}: exit code {code}\n{text}")
        found: Answer = json.loads(answer.read_text())
    return {**found, **_windows(found, meter), "cpu_seconds": sum(meter.seconds.values())}


def _windows(found: Answer, meter: CpuMeter) -> Answer:
    windows = {}
    for name, (begin, end) in found.get("windows", {}).items():
        cpu, mirror = meter.between(begin, end)
        windows[name] = {"seconds": end - begin, "cpu_seconds": cpu, "mirror_cpu_seconds": mirror}
    return {"windows": windows}


def serve(sides: Mapping[str, Side], arguments: Sequence[str]) -> bool:
    """In a side's process: do its task and write the answer; False in the script's own process."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--side")
    parser.add_argument("--task", type=json.loads)
    parser.add_argument("--answer", type=Path)
    options, _ = parser.parse_known_args(arguments)
    if options.side is None:
        return False
    options.answer.write_text(json.dumps(sides[options.side](options.task)))
    return True


def in_turns(names: Sequence[str], repeats: int) -> Iterator[tuple[int, str]]:
    """All names in each repeat, there and back again: a b c, c b a, a b c, ..."""
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            yield repeat, name


def arguments(doc: str, repeats: int) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--repeats", type=int, help=f"of each side, in turns ({repeats})")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all raw numbers here")
    parser.set_defaults(full_repeats=repeats)
    return parser


def repeats_of(options: argparse.Namespace) -> int:
    """How often each side is measured: as asked, else once in a quick run, else as usual."""
    if options.repeats is not None:
        return int(options.repeats)
    return 1 if options.quick else int(options.full_repeats)


def missing(*modules: str) -> str:
    """Why a peer is skipped: the modules that are not installed, or an empty string."""
    absent = [m for m in modules if not _installed(m)]
    return f"{', '.join(absent)} not installed" if absent else ""


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)


def summary(values: Sequence[float], unit: str = "", digits: int = 3) -> str:
    """Median and range as text.

    >>> summary([2.0, 1.0, 4.0], " s")
    '2 s (1 to 4, n=3)'
    """
    if not values:
        return "-"
    middle, low, high = (f"{v:.{digits}g}" for v in spread(values))
    return f"{middle}{unit} ({low} to {high}, n={len(values)})"


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """`over` divided by `under`, repeat by repeat: each pair was measured close in time."""
    return [a / b for a, b in zip(over, under, strict=True)]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{p: _version(p) for p in _PACKAGES},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    if package == "autotune":
        import autotune

        return autotune.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def introduce() -> dict[str, Any]:
    """Print the machine, and warn where others are using it."""
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items() if v is not None), flush=True)
    if about["load"] > 0.5 * about["cores"]:
        print(f"the machine is busy (load {about['load']}): these figures are rough", flush=True)
    return about


def keep(path: Path | None, about: Mapping[str, Any], **raw: Any) -> None:
    """Write the machine and the raw numbers as JSON, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps({"machine": about, **raw}, indent=1) + "\n")
        print(f"raw numbers in {path}")


def start_ray(cpus: int) -> None:
    """Start Ray with so many CPUs, in the same way for every side."""
    import logging

    import ray

    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=256 * 2**20,
    )
