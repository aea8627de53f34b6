"""The picture of the house, kept by the imports: who may know whom, and how big rooms get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("autotune", "dashboards", "search_spaces", "trainers")
SIDE_ROOMS = ("samplers", "pruners", "controllers", "pools", "trackers")
LEVELS = {
    "errors": 0,
    "schedules": 1,
    "trial": 1,
    "parameters": 1,
    "storage": 1,
    "knots": 1,
    "schedule_space": 1,
    "couplings": 2,
    "size": 2,
    "space": 3,
    "reporting": 2,
    "standing": 2,
    "experiment": 4,
    "auto": 5,
    "forecast": 3,
    "encoding": 4,
    "ledger": 2,
    "likeness": 2,
    "metrics": 2,
    "calls": 1,
    "folders": 1,
    "lineage": 2,
    "repeats": 3,
    "finals": 4,
    "racing": 4,
    "repeated": 5,
    "memory": 2,
    "keeping": 2,
    "recipes": 5,
    **dict.fromkeys(SIDE_ROOMS, 6),
    "result": 7,
    "record": 7,
    "comparison": 7,
    "driver": 7,
    "loop": 8,
    "warm_start": 8,
    "request": 8,
    "collaborators": 9,
    "study": 10,
}
TOP = 11  # the command line and what serves it: may know everything, known by nobody below
LIBRARIES = {
    "ray": {
        "autotune/backends/ray/pool.py",
        "autotune/backends/ray/cluster.py",
        "autotune/cli/jobs/client.py",
    },
    "optuna": {
        *("autotune/algorithms/samplers/optuna.py", "autotune/algorithms/samplers/optuna_names.py"),
        *(
            "autotune/algorithms/samplers/optuna_space.py",
            "autotune/evaluation/export/optuna_study.py",
        ),
        "autotune/integrations/optuna.py",
    },
    "mlflow": {
        *("autotune/tracking/mlflow_store.py", "autotune/tracking/fetch.py"),
        *("autotune/tracking/model_registry.py", "autotune/tracking/mlflow_reader.py"),
        "autotune/cli/mirror_process.py",
    },
    "dashboards": {
        "autotune/cli/main.py",
        "autotune/study/run.py",
        "autotune/cli/mirror_process.py",
    },
    "lightning": {"autotune/integrations/lightning.py"},
    "transformers": {"autotune/integrations/huggingface.py"},
}
FILES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
IDS = [str(p.relative_to(ROOT)) for p in FILES]


@cache
def imports(path: Path) -> list[str]:
    """Full names of the modules that a file imports, wherever in it."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = ROOT / Path(*(node.module or "").split("."), alias.name)
                is_module = whole.is_dir() or whole.with_suffix(".py").is_file()
                yield f"{node.module}.{alias.name}" if is_module else node.module or ""


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def of(path: Path) -> str:
    parts = path.relative_to(ROOT / "autotune").with_suffix("").parts
    return "" if parts[0] == "__init__" else parts[0]


def within(imported: str, package: str) -> bool:
    return imported == package or imported.startswith(f"{package}.")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_rooms_know_only_rooms_below_them(path: Path) -> None:
    if not path.is_relative_to(ROOT / "autotune") or not of(path):
        return
    own, level = of(path), LEVELS.get(of(path), TOP)
    for imported in imports(path):
        if not within(imported, "autotune") or room(imported) in ("", own):
            continue
        other = LEVELS.get(room(imported), TOP)
        side = own in SIDE_ROOMS and room(imported) in SIDE_ROOMS
        assert not side, f"the side room {own} imports the side room {room(imported)}"
        same = level == other and level in (1, 7, TOP)
        assert other < level or same, f"{own} imports {room(imported)}, which is above it"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_libraries_stay_behind_their_doors(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    for imported in imports(path):
        for library, doors in LIBRARIES.items():
            if within(imported, library) and not name.startswith(f"{library}/"):
                assert name in doors, f"{name} imports {library}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_trainers_know_only_words_and_schedules(path: Path) -> None:
    if not path.is_relative_to(ROOT / "trainers"):
        return
    for imported in imports(path):
        assert not within(imported, "search_spaces")
        if within(imported, "autotune"):
            assert room(imported) in ("trial", "schedules"), f"{path.name} imports {imported}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_reports_know_only_words_and_results(path: Path) -> None:
    if not path.is_relative_to(ROOT / "dashboards"):
        return
    for imported in imports(path):
        if within(imported, "autotune"):
            known = ("comparison", "errors", "likeness", "record", "repeats", "result", "trial")
            assert room(imported) in known, f"{path.name} imports {imported}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_nothing_shipped_imports_tests_or_recipes_from_below(path: Path) -> None:
    for imported in imports(path):
        assert not within(imported, "tests")
        if not path.is_relative_to(ROOT / "search_spaces"):
            assert not within(imported, "search_spaces")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_no_function_is_over_sixty_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring.count("\n")
            assert lines <= 60, f"{node.name} has {lines} lines"


def test_import_autotune_is_light() -> None:
    code = (
        "import sys, autotune; autotune.SearchSpace; autotune.Experiment; autotune.run\n"
        "autotune.Cosine(1, 0)(0.5); autotune.Target('a', 1, limit=1)\n"
        "heavy = {'ray', 'optuna', 'mlflow', 'torch', 'numpy', 'pandas', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_is_there_and_once() -> None:
    import autotune

    assert len(set(autotune.__all__)) == len(autotune.__all__)
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
    assert set(dir(autotune)) == set(autotune._HOME)
    with pytest.raises(AttributeError, match="has no attribute 'Experimnt'"):
        autotune.Experimnt  # noqa: B018
