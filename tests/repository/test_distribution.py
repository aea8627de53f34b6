"""The distribution: its name, which differs from the package's, its version and its metadata."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from documents import ROOT

import autotune
from autotune.study import versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {PROJECT["name"]: "1.2.3"}
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    assert autotune.__version__ == "1.2.3"
    assert versions.version_of("autotune") == "1.2.3"


def test_source_that_is_not_installed_has_its_project_s_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert autotune.__version__ == PROJECT["version"] == versions.version_of("autotune")
    assert versions.version_of("torch") is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "9"\n')
    monkeypatch.setattr(versions, "_CHECKOUT", tmp_path)
    assert autotune.__version__ == "unknown"


def test_the_command_prints_the_version() -> None:
    command = [sys.executable, "-m", "autotune", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"autotune {autotune.__version__}\n"


def test_what_messages_and_documents_install_is_ours() -> None:
    """The registry's `autotune` is another package."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if name.endswith((".md", ".py", ".toml", ".yaml", "Makefile", ".ipynb")):
            text = (ROOT / name).read_text()
            assert not re.search(r"(?:pip install\s+|[\"'])autotune\[", text), name


def test_extras_that_refer_to_the_project_name_it() -> None:
    extras = PROJECT["optional-dependencies"]
    own = [r for needs in extras.values() for r in needs if r.startswith(PROJECT["name"])]
    assert own
    for requirement in own:
        named = re.search(r"\[(.+)\]", requirement)
        assert named
        assert set(named[1].split(",")) <= extras.keys()


def test_it_is_typed() -> None:
    assert (ROOT / "autotune" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_classifiers_are_those_of_the_registry() -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known
