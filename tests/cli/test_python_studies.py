"""Studies that a script began: the commands on their folders, and what says how to go on."""

from __future__ import annotations

import sys
from pathlib import Path

import optuna
import pytest
from sims import METRIC, learning, racing, simulate, wide

from autotune.cli import main
from autotune.evaluation import studies
from autotune.storage import manifest as file
from autotune.study.manifest import Manifest


@pytest.fixture
def folder(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of a script `train.py` beside it, with every trial that was asked for."""
    monkeypatch.chdir(fast_path)
    script = str(fast_path / "train.py")  # a test's worker has none
    monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
    simulate(racing([1.0, 2.0, 0.01]), Path("s"), 4, seed=1)
    return Path("s")


def test_they_say_which_script_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Manifest.read(folder).script == str(Path.cwd() / "train.py")
    assert main.main(["resume", "s", "--trials", "9"]) == main.USER
    assert capsys.readouterr().err == (
        "autotune: s was started from Python, which has its trainer: "
        "run train.py again with out='s', trials=9\n"
    )
    assert main.main(["confirm", "s", "--repeats", "2"]) == main.USER
    assert capsys.readouterr().err.endswith(
        "run train.py again with out='s', trials=4; what it returns has confirm(repeats=2, top=3)\n"
    )
    assert studies.overview(folder).command == "run train.py again with out='s', trials=14"


def test_without_a_script_they_name_the_call(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, and for what an earlier version wrote."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    simulate(racing([1.0, 2.0, 0.01]), folder, 5, seed=1)
    assert Manifest.read(folder).script is not None, "one that is known stays"
    content = file.read(folder)
    del content["script"]
    file.write(folder, content)
    assert main.main(["resume", "s", "--trials", "9"]) == main.USER
    assert "autotune.run(experiment, out='s', trials=9), or autotune.tune" in (
        capsys.readouterr().err
    )


def test_what_is_complete_needs_no_trainer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then `resume` shows the result, and brings MLflow up to date."""
    assert main.main(["resume", "s"]) == main.DONE
    out, err = capsys.readouterr()
    assert "Best: trial " in out
    assert "4 of 4 trials were done" in err
    simulate(racing([1.0, 2.0, 0.01]), folder, 4, seed=1, repeats=1, top=1)
    assert main.main(["confirm", "s", "--repeats", "1", "--top", "1"]) == main.DONE


@pytest.mark.parametrize("command", ["status", "best", "report"])
def test_what_reads_a_folder_reads_theirs(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([command, "s"]) == main.DONE
    assert capsys.readouterr().out or (folder / "report.html").is_file()


@pytest.mark.parametrize("recipe", [None, "gone.py:recipe"])
def test_they_are_exported_to_optuna(
    recipe: str | None, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The space is in the manifest: no code is loaded, that of a recipe neither."""
    simulate(wide(), fast_path / "s", 8, learning, recipe=recipe)
    url = f"sqlite:///{fast_path}/o.db"
    assert main.main(["export", str(fast_path / "s"), "--optuna", url]) == main.DONE
    assert "wrote 8 trials as the Optuna study 'wide'" in capsys.readouterr().err
    own = optuna.load_study(study_name="wide", storage=url)
    assert own.trials[0].params["lr.peak"] == 0.01
    assert own.trials[0].distributions["batch_size"] == optuna.distributions.IntDistribution(4, 8)
    assert own.user_attrs["autotune.metric"] == METRIC


def test_a_manifest_without_a_space_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe's is not asked for: it may have changed since, and it is code."""
    content = file.read(folder)
    del content["space"]
    file.write(folder, {**content, "recipe": "gone.py:recipe"})
    assert main.main(["export", "s", "--optuna", "sqlite:///o.db"]) == main.USER
    assert capsys.readouterr().err == "autotune: s/experiment.json has no search space\n"
