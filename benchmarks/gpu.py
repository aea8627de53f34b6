"""Acceptance on a GPU: is what trains there right, and as fast as it should be?

    make gpu                        (or: python3 benchmarks/gpu.py --seconds 520 --json FILE)

It needs no virtual environment: any Python from 3.11 with torch from 2.6 and the usual scientific
packages. Stages run in order of worth, each in a process of its own with its own deadline. A wrong
result exits with 1; a missed aim of speed is printed as `missed`; what had no time or lacks a
package, a second GPU or data is listed as `not run`. A stage that is not done by its deadline has
`missed` it, but is wrong where ranks wait for each other and may hang. Without CUDA it prints "no
GPU" and exits with 0.
`--device cpu --tiny` runs the same stages with the smallest sizes, which shows only that they work.
Data sets are taken from the folder `$AUTOTUNE_DATA` (`data` below the repository otherwise).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
for folder in (ROOT / "benchmarks", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from gpu_stages.listed import STAGES, Stage, chosen  # noqa: E402

PATIENCE = 10.0  # deadlines on a CPU, as multiples of a GPU's
_RESERVE = 2.0  # seconds kept for the report
_GRACE = 5.0  # seconds a stopped stage has to end
_TAIL = 2000  # characters of a failed stage's output


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.stage:
        return _serve(options)
    try:
        stages = chosen(options.stages)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    has_torch = importlib.util.find_spec("torch") is not None
    if options.device == "cuda" and not _has_gpu(has_torch):
        print("no GPU")
        return 0
    if not has_torch:
        print(f"{sys.executable} has no torch: set PYTHON to one that has", file=sys.stderr)
        return 2
    return _run(stages, options)


def _has_gpu(has_torch: bool) -> bool:
    """Whether torch finds a GPU; without torch, whether the driver of one is there."""
    if not has_torch:
        return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()
    import torch

    return torch.cuda.is_available()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=520.0, help="for all stages (520)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings here")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, without aims")
    names = ", ".join(stage.name for stage in STAGES)
    parser.add_argument(
        "--stages", nargs="+", default=[], metavar="NAME", help=f"only these: {names}"
    )
    for name in ("--stage", "--answer", "--scratch"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser


def _serve(options: argparse.Namespace) -> int:
    """In a stage's process: run it and write its findings."""
    from gpu_stages.findings import Run, write

    (stage,) = chosen([options.stage])
    run = Run(
        kind=options.device,
        tiny=options.tiny,
        folder=Path(options.scratch),
        data_dir=os.environ.get("AUTOTUNE_DATA") or str(ROOT / "data"),
        ends=time.monotonic() + options.seconds,
    )
    write(stage.load()(run), Path(options.answer))
    return 0


def _run(stages: list[Stage], options: argparse.Namespace) -> int:
    about = _stamp(options.device)
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    begun = time.monotonic()
    report: list[dict[str, Any]] = []
    for stage in stages:
        left = options.seconds - (time.monotonic() - begun) - _RESERVE
        entry = _stage(stage, left, options)
        report.append(entry)
        print(f"{stage.name} ({entry['seconds']:.1f} s)", flush=True)
        for line in entry.pop("lines"):
            print(line, flush=True)
    counts = _counts(report)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if options.json is not None:
        seconds = time.monotonic() - begun
        written = {"machine": about, "seconds": seconds, "counts": counts, "stages": report}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 1 if counts.get("wrong") else 0


def _stage(stage: Stage, left: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run one stage; its findings, their lines, and the seconds that it took."""
    from gpu_stages.findings import Finding, Verdict, not_run, read

    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-stage-") as scratch:
        answer, output = Path(scratch, "findings"), Path(scratch, "output")
        if left < stage.least:
            found = [not_run(stage.name, f"no time: {max(left, 0):.0f} s are left")]
        else:
            deadline = stage.limit * (PATIENCE if options.device == "cpu" else 1.0)
            limit = min(deadline, left)
            code = _process(stage, limit, options, answer, output)
            found = read(answer)
            if code is None and limit == deadline:
                text = f"not done by its deadline of {limit:.0f} s\n{_tail(output)}"
                late: Verdict = "wrong" if stage.may_hang else "missed"
                found.append(Finding(stage.name, late, text=text))
            elif code is None:
                found.append(not_run(f"{stage.name}, the rest", f"no time beyond {limit:.0f} s"))
            elif code:
                text = f"its process ended with {code}\n{_tail(output)}"
                found.append(Finding(stage.name, "wrong", text=text))
    return {
        "stage": stage.name,
        "seconds": time.monotonic() - begun,
        "findings": [asdict(finding) for finding in found],
        "lines": [str(finding) for finding in found],
    }


def _process(
    stage: Stage, limit: float, options: argparse.Namespace, answer: Path, output: Path
) -> int | None:
    """Run a stage in a process of its own; its exit code, or None if it had to be ended."""
    command = [sys.executable, __file__, "--stage", stage.name, "--device", options.device]
    command += ["--seconds", str(limit), "--answer", str(answer), "--scratch", str(answer.parent)]
    command += ["--tiny"] if options.tiny else []
    own = {} if options.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    with output.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "AUTOTUNE_EXPERIENCE": "off", **own},
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:  # with whatever processes it has started
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue


def _tail(output: Path) -> str:
    return output.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()


def _stamp(device: str) -> dict[str, str]:
    """What the figures were measured on, without opening a CUDA context."""
    found = {"python": platform.python_version(), "torch": metadata.version("torch")}
    if device == "cuda":
        import torch

        found |= {"cuda": str(torch.version.cuda), "gpus": str(torch.cuda.device_count())}
        found |= {"driver": _driver()}
    return found | {"cores": str(len(os.sched_getaffinity(0))), "system": platform.platform()}


def _driver() -> str:
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return "; ".join(done.stdout.strip().splitlines())


def _counts(report: Sequence[dict[str, Any]]) -> dict[str, int]:
    verdicts = [finding["verdict"] for entry in report for finding in entry["findings"]]
    order = ("wrong", "missed", "right", "met", "measured", "not run")
    return {verdict: verdicts.count(verdict) for verdict in order if verdict in verdicts}


if __name__ == "__main__":
    sys.exit(main())
