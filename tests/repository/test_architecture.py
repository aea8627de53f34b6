"""The picture in docs/architecture.md and the imports: direction of folders, no cycles."""

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
FOLDERS = (  # from the ground up: a folder imports only from folders before it
    "trial",
    "schedules",
    "space",
    "storage",
    "algorithms",
    "backends",
    "tracking",
    "integrations",
    "study",
    "evaluation",
    "cli",
)
ROOT_FILES = {
    "data",
    "__init__.py",
    "__init__.pyi",
    "__main__.py",
    "blas_threads.py",
    "errors.py",
    "py.typed",
}
LIBRARIES = {  # which files may import a library
    "ray": {
        "autotune/backends/ray/actors.py",
        "autotune/backends/ray/cluster.py",
        "autotune/backends/ray/pool.py",
        "autotune/cli/jobs/client.py",
    },
    "optuna": {
        "autotune/algorithms/samplers/optuna.py",
        "autotune/algorithms/samplers/optuna_names.py",
        "autotune/algorithms/samplers/optuna_space.py",
        "autotune/evaluation/export/optuna_study.py",
        "autotune/integrations/optuna.py",
    },
    "mlflow": {
        "autotune/tracking/fetch.py",
        "autotune/tracking/mlflow_reader.py",
        "autotune/tracking/mlflow_store.py",
        "autotune/tracking/model_registry.py",
        "autotune/tracking/own_store.py",
    },
    "dashboards": {
        "autotune/cli/compare.py",
        "autotune/cli/main.py",
        "autotune/cli/mirror_process.py",
        "autotune/cli/studies_server.py",
    },
    "lightning": {"autotune/integrations/lightning.py"},
    "transformers": {"autotune/integrations/huggingface.py"},
}
OTHER_PACKAGES = {  # what a package beside autotune/ may import of it
    "trainers": {"trial", "schedules"},
    "dashboards": {"trial", "algorithms", "errors", "evaluation", "storage", "study"},
}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of the modules that a file imports, wherever in it."""
    return tuple(_imports(path))


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


def within(imported: str, package: str) -> bool:
    return imported == package or imported.startswith(f"{package}.")


def own_imports(folder: str) -> Iterator[tuple[Path, str]]:
    """What the files of a folder import of `autotune`, with the folder (or file) below it."""
    for path in files(folder):
        for imported in imports(path):
            if within(imported, "autotune"):
                yield path, imported.partition("autotune.")[2].partition(".")[0]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of a graph, or nothing.

    >>> circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}), circle({"a": {"b"}, "b": set()})
    (['b', 'c', 'b'], [])
    """
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_the_root_is_the_eleven_folders() -> None:
    found = {p.name for p in (ROOT / "autotune").iterdir() if p.name != "__pycache__"}
    assert found - ROOT_FILES == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_its_idea_and_imports_only_what_is_below(folder: str) -> None:
    document = ast.get_docstring(
        ast.parse((ROOT / "autotune" / folder / "__init__.py").read_text())
    )
    assert document
    known = {"blas_threads", "errors", folder, *FOLDERS[: FOLDERS.index(folder)]}
    wrong = {(p.name, o) for p, o in own_imports(f"autotune/{folder}") if o not in known}
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_round(package: str) -> None:
    names = {name_of(path): path for path in files(package)}
    graph = {name: set(imports(path)) & set(names) - {name} for name, path in names.items()}
    assert circle(graph) == []


@pytest.mark.parametrize("package", sorted(OTHER_PACKAGES))
def test_other_packages_know_only_their_part_of_autotune(package: str) -> None:
    wrong = {(p.name, o) for p, o in own_imports(package) if o not in OTHER_PACKAGES[package]}
    assert not wrong


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_only_these_files_import(library: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        if package != library
        for path in files(package)
        if any(within(imported, library) for imported in imports(path))
    }
    assert found <= LIBRARIES[library]


def test_nothing_shipped_imports_tests_or_recipes() -> None:
    for package in PACKAGES:
        for path in files(package):
            for imported in imports(path):
                assert not within(imported, "tests"), path
                if package != "search_spaces":
                    assert not within(imported, "search_spaces"), path


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_over_sixty_lines(package: str) -> None:
    for path in files(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - docstring.count("\n")
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


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
    with pytest.raises(AttributeError, match="Experimnt"):
        autotune.Experimnt  # noqa: B018
