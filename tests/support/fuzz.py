"""Study folders that are damaged at random, and commands of random words, by seed.

Whatever it is given, a command ends with one of its exit codes and no traceback, and a driver with
a result or one line. `fault_of` says what went wrong instead.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from older_studies import STUDIES

import autotune as at
from autotune.cli import main
from autotune.cli.console import BROKEN, DONE, UNREACHED, USER
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON

DATA = Path(__file__).parents[1] / "storage" / "data"
CASE_SECONDS = 300  # guards against a hang
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 0.5, 2**31, 2**63, 10**400, 1e308, math.nan, math.inf),
    *("", "x", "nan", "caf\udce9", "a\0b", "../../up", "\x1b[31m", "x" * 5000),
    *([], [1], [[], {}], {}, {"a": 1}, {"schedule": "Cosine", "version": 1}, {"kind": "Int"}),
)
WORDS = (
    *(
        "",
        "x",
        "-1",
        "0",
        "3",
        "1e999",
        "nan",
        "9" * 30,
        "é",
        "caf\udce9",
        "--",
        "-",
        "a b",
        "../x",
    ),
    *("x=1", "=", "a:b", "x#1", "trial:0", "http://[::1", "file:///", "[]", "policy(x=1)"),
)


# --- damage ---------------------------------------------------------------------------------------


def damage(folder: Path, random: Random) -> str:
    """Change a study folder's journal or manifest, and say how."""
    return damage_file(folder / random.choice([JOURNAL, JOURNAL, EXPERIMENT_JSON]), random)


def damage_file(path: Path, random: Random) -> str:
    """Change a file of JSON, or of a JSON document a line, and say how."""
    how = random.choice([_bytes, _cut, _lines, _retyped, _retyped, _retyped, _retyped, _removed])
    data = path.read_bytes()
    path.write_bytes(how(data, random) if data else b"\n")
    return f"{path.name} {how.__name__}"


def _bytes(data: bytes, random: Random) -> bytes:
    """Some bytes are others."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 8])):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def _lines(data: bytes, random: Random) -> bytes:
    """A line is there twice, elsewhere, or not at all."""
    rows = data.splitlines(keepends=True)
    row = rows[random.randrange(len(rows))]
    if random.random() < 0.5:
        rows.remove(row)
    if random.random() < 0.7:
        rows.insert(random.randrange(len(rows) + 1), row)
    return b"".join(rows)


def _retyped(data: bytes, random: Random) -> bytes:
    """A value is another one."""
    return _changed(data, random, lambda owner, key: owner.__setitem__(key, random.choice(VALUES)))


def _removed(data: bytes, random: Random) -> bytes:
    """A value is not there."""
    return _changed(data, random, lambda owner, key: owner.__delitem__(key))


def _changed(data: bytes, random: Random, change: Callable[[Any, Any], None]) -> bytes:
    """The document, or one line of it, with a change somewhere within."""
    is_journal = b"\n{" in data
    rows = data.splitlines() if is_journal else [data]
    number = random.randrange(len(rows))
    try:
        document = json.loads(rows[number])
    except ValueError:  # damaged before
        return data
    places = list(_places(document))
    if not places:
        return data
    change(*random.choice(places))
    rows[number] = json.dumps(document, indent=None if is_journal else 2).encode()
    return b"\n".join([*rows, b""])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place in a document, as its owner and its key."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(inner)


# --- commands and drivers -------------------------------------------------------------------------


def fault_of_study(place: Path, seed: int) -> str:
    """What goes wrong with a damaged study, or an empty string."""
    random = Random(seed)
    name = random.choice([*STUDIES])
    folder = place / "study"
    shutil.copytree(DATA / name, folder)
    done = [damage(folder, random) for _ in range(random.choice([1, 1, 1, 2]))]
    reading = [
        ["status", str(folder)],
        ["status", str(folder), "--json"],
        ["best", str(folder), "--json"],
        ["trials", str(folder)],
        ["trials", str(folder), "--csv"],
        ["list", str(place)],
        ["export", str(folder), "--to", str(place / "out"), "--trial", "0"],
        ["report", str(folder), "--to", str(place / "report.html")],
        ["compare", str(folder), "--csv", str(place / "table.csv")],
        ["scale", str(folder)],
        ["resume", str(folder)],
        ["confirm", str(folder)],
    ]
    for words in reading:
        if fault := fault_of(words):
            return f"seed {seed}, {name}, {', '.join(done)}: {words[0]}: {fault}"
    if fault := _fault(lambda: _driven(name, folder)):
        return f"seed {seed}, {name}, {', '.join(done)}: a driver: {fault}"
    return ""


def _driven(name: str, folder: Path) -> int:
    """Go on with the study; a driver that ends with one line has done what it should."""
    try:
        STUDIES[name](folder)
    except (at.UserError, at.StudyError):
        return DONE
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if Path(last.filename).parent != Path(__file__).parent:
            raise
        # The simulated trainer, which a real pool would have let fail.
    return DONE


def fault_of_words(place: Path, seed: int) -> str:
    """What goes wrong with a command of random words, or an empty string."""
    random = Random(seed)
    name = random.choice(
        ["status", "best", "export", "report", "compare", "scale", "replay", "confirm"]
    )
    shutil.copytree(DATA / random.choice([*STUDIES]), place / "study")
    flags = [row[0] for row in main.COMMANDS[name][2] if row[0].startswith("--")]
    words = [random.choice([str(place / "study"), str(place), random.choice(WORDS)])]
    for _ in range(random.randrange(4)):
        words += [random.choice(flags)] if flags and random.random() < 0.7 else []
        words += [random.choice(WORDS)]
    with contextlib.chdir(place):  # words may name files to write
        fault = fault_of([name, *words])
    return f"seed {seed}, {[name, *words]}: {fault}" if fault else ""


def fault_of(words: list[str]) -> str:
    """What goes wrong with a command line, or an empty string."""
    return _fault(lambda: main.main(words))


def _fault(work: Callable[[], int]) -> str:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(CASE_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = work()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else USER
    except Exception:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if code not in (DONE, USER, UNREACHED, BROKEN):
        return f"exit code {code}: {said}"
    if code == USER and said.count("\n") != 1:
        return f"not one line: {said}"
    return said if "Traceback" in said else ""


def _late(*_: Any) -> None:
    raise TimeoutError(f"not done in {CASE_SECONDS} s")


if __name__ == "__main__":
    import tempfile

    kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    find = {"study": fault_of_study, "words": fault_of_words}[kind]
    for number in range(first, last):
        with tempfile.TemporaryDirectory() as at_:
            if told := find(Path(at_), number):
                print(told, "\n", flush=True)
