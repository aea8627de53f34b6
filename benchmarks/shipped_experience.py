"""Make the experience that comes with the package: `autotune/data/experience.json.gz`.

    python benchmarks/shipped_experience.py --data FOLDER [--minutes 200] [--seed 0] [--out FILE]

FOLDER has `lcbench_dev.npz`, `taskset/`, `fashion_mnist/` and `tinyshakespeare/`; what is not there
is left out. Sources: `lcbench` and `taskset` (recorded curves), `farm` (small networks, virtual
seconds) and `recipes` (small studies of the project's trainers, processor seconds). Those that
train stop after `--minutes` of processor time each; they keep every study in `--cache`, and a
second call goes on from there. `docs/experience-data.md` is the data card.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "research"))

import _public_tables
import _published_points
from _recorded import Curves, Study, kept, summary

from autotune.study.experience.document import Summary, document, packed

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1_000_000
_FARM_TRIALS, _RECIPE_TRIALS = 250, 100  # the most of a study
_OPTIMIZERS = ("sgd", "adamw", "lars", "lamb", "nadamw", "muon", "schedulefree")
_LEAST_TRIALS = 5  # fewer tell nothing


class Trained(Protocol):
    """A study whose trials are trained here."""

    @property
    def study(self) -> Study: ...

    def extend(self, curves: Curves, count: int, seed: int) -> None: ...


def recorded(
    source: Callable[[Path, int, int], Iterable[tuple[Study, Curves]]], rows: int
) -> Callable[[argparse.Namespace], list[Summary]]:
    """A source of recorded curves, with at most `rows` of each task."""

    def made(options: argparse.Namespace) -> list[Summary]:
        most = min(rows, options.trials or rows)
        return [summary(*each) for each in source(options.data, most, options.seed)]

    return made


def farm(options: argparse.Namespace) -> list[Summary]:
    """The farm's studies."""
    import _farm_studies

    most = options.trials or _FARM_TRIALS
    return trained(list(_farm_studies.studies(options.data)), most, _farm_studies.BATCH, options)


def recipes(options: argparse.Namespace) -> list[Summary]:
    """Studies of the project's own trainers."""
    import _recipe_studies

    most = options.trials or _RECIPE_TRIALS
    own = list(_recipe_studies.studies(options.data, options.optimizers))
    return trained(own, most, _recipe_studies.BATCH, options)


SOURCES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Summary]]]] = {
    "lcbench": (_public_tables.LCBENCH, recorded(_public_tables.lcbench, 500)),
    "taskset": (_public_tables.TASKSET, recorded(_public_tables.taskset, 400)),
    "farm": ("", farm),
    "recipes": ("", recipes),
}
"""Each source: what it needs in the data folder, and its function."""


def trained(
    studies: Sequence[Trained], most: int, batch: int, options: argparse.Namespace
) -> list[Summary]:
    """Train studies in turns until each has `most` trials, or the processor time is used."""
    options.cache.mkdir(parents=True, exist_ok=True)
    files = [options.cache / f"{own.study.name}.json" for own in studies]
    known = [kept(file) for file in files]
    while sum(curves.cpu for curves in known) < 60 * options.minutes:
        least = min(len(curves.points) for curves in known)
        if least >= most:
            break
        for own, curves, file in zip(studies, known, files, strict=True):
            if len(curves.points) == least:
                own.extend(curves, min(batch, most - least), own.study.seeded(options.seed))
                curves.write(file)
                print(f"  {own.study.name}: {len(curves.points)} trials", flush=True)
            if sum(each.cpu for each in known) >= 60 * options.minutes:
                break
    print(f"  {sum(curves.cpu for curves in known) / 60:.1f} minutes of processor time")
    pairs = zip(studies, known, strict=True)
    return [summary(own.study, c) for own, c in pairs if len(c.points) >= _LEAST_TRIALS]


def content(studies: Sequence[Summary]) -> dict[str, Any]:
    """The document: studies by name, and published settings under `points`."""
    ordered = sorted(studies, key=lambda study: study.name)
    return {**document(ordered), "points": _published_points.documents()}


def made(options: argparse.Namespace) -> Iterator[Summary]:
    """The studies of the chosen sources, with a line for each source."""
    for name in options.sources:
        needed, source = SOURCES[name]
        if not (options.data / needed).exists():
            print(f"{name}: left out, as {needed} is not in {options.data}")
            continue
        begin = time.process_time()
        studies = source(options)
        trials = sum(len(study.points) for study in studies)
        reached = sum(study.reached for study in studies)
        took = time.process_time() - begin
        print(f"{name}: {len(studies)} studies, {trials} trials, {reached} reached, {took:.0f} s")
        yield from studies


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's options."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the recorded data")
    target = ROOT / "autotune" / "data" / "experience.json.gz"
    parser.add_argument("--out", type=Path, default=target, help="the file that is written")
    cache = ROOT / "build" / "experience"
    parser.add_argument("--cache", type=Path, default=cache, help="folder of trained studies")
    parser.add_argument("--minutes", type=float, default=200, help="of a trained source (200)")
    parser.add_argument("--trials", type=int, help="the most of each study")
    parser.add_argument("--seed", type=int, default=0)
    known = {"sources": tuple(SOURCES), "optimizers": _OPTIMIZERS}
    for name, values in known.items():
        text = f"some of {', '.join(values)} (all)"
        parser.add_argument(f"--{name}", default=",".join(values), help=text)
    options = parser.parse_args(arguments)
    for name, values in known.items():
        given = getattr(options, name).split(",")
        setattr(options, name, given)
        for wrong in (one for one in given if one not in values):
            parser.error(f"--{name} must be some of {','.join(values)} but got {wrong!r}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the file; it is not written if it would be too large."""
    options = parsed(arguments)
    data = packed(content(list(made(options))))
    if len(data) > MOST_BYTES:
        sys.exit(f"{len(data):,} bytes are more than {MOST_BYTES:,}: give fewer --trials")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(data)
    print(f"{options.out.name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
