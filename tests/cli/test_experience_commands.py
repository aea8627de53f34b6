"""`autotune experience`: list, add, remove and export summaries of studies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sims import learning, memory, race, racing, simulate, wide

from autotune.cli import main
from autotune.cli.arguments import ACTIONS
from autotune.study.experience import document, store
from autotune.study.manifest import Manifest


@pytest.fixture(scope="module")
def studies() -> Iterator[Path]:
    """A folder of three studies; one is too short for a summary."""
    with memory() as folder:
        simulate(wide(), folder / "wide", 8, learning)
        simulate(racing([1.0]), folder / "racing", 6, race)
        simulate(racing([1.0]), folder / "short", 2, race)
        yield folder


@pytest.fixture
def called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls `autotune experience` on a store in a temporary folder: code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main.main(["experience", *words, "--experience", str(tmp_path / "store")])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def names(folder: Path) -> list[str]:
    return sorted(one.name for several in store.kept(folder, print).values() for one in several)


def test_studies_are_added_listed_exported_and_removed(
    called: Any, studies: Path, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    assert (
        called("list")[2]
        == f"0 studies in {place}, {len(store.shipped(print))} that came with autotune\n"
    )
    code, out, err = called("add", str(studies))
    assert (code, out) == (0, "")
    assert f"{studies}/short is left out: only 2 trials of it tell anything (at least 5" in err
    assert f"added 2 studies to {place}\n" in err
    assert names(place) == ["racing", "wide"]

    code, out, _ = called("list")
    head, first, second = out.splitlines()
    assert head.split() == ["study", "id", "trials", "reached", "target", "trainer", "hardware"]
    assert first.split()[0] == "racing"
    assert second.split()[:3] == ["wide", Manifest.read(studies / "wide").study_id[:8], "8"]
    assert "val_accuracy 0.9" in second

    code, out, _ = called("list", "--json")
    rows = [row for row in json.loads(out) if not row["shipped"]]
    assert [row["name"] for row in rows] == ["racing", "wide"]
    assert rows[0]["parameters"] == ["rate"]
    assert rows[0]["trials"] == 6
    assert "points" not in rows[0]

    file = tmp_path / "both.json.gz"
    assert called("export", str(file)) == (0, "", f"wrote 2 studies to {file}\n")
    one = tmp_path / "one.json.gz"
    code, out, _ = called("export", str(one), "wide", "--json")
    assert [row["name"] for row in json.loads(out)["exported"]] == ["wide"]

    assert called("remove", "racing", "wide")[0] == 0
    assert names(place) == []
    code, out, _ = called("add", "--json", str(one), str(file))
    assert sorted(row["name"] for row in json.loads(out)["added"]) == ["racing", "wide", "wide"]
    assert names(place) == ["racing", "wide"], "each study once"


def test_a_file_with_several_studies_loses_only_those_that_are_removed(
    called: Any, studies: Path, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    called("add", str(studies / "wide"), str(studies / "racing"))
    called("export", str(tmp_path / "both.json.gz"))
    called("remove", "wide", "racing")
    (tmp_path / "both.json.gz").rename(place / "both.json.gz")
    study_id = Manifest.read(studies / "racing").study_id
    assert called("remove", study_id[:8])[2] == f"removed 1 study from {place}\n"
    assert [one.name for one in document.read(place / "both.json.gz")] == ["wide"]
    for file in (place / "damaged.json.gz", place / "other.json.gz"):
        file.write_bytes(b"x")
    code, out, err = called("remove", "damaged.json.gz", "--json")
    gone = {"folder": str(place), "removed": [], "unreadable": ["damaged.json.gz"]}
    assert (code, json.loads(out)) == (0, gone)
    first, second = err.splitlines()
    assert first.startswith(f"experience: {place}/other.json.gz is ignored: ")
    assert second == f"removed {place}/damaged.json.gz, which had no study that can be read"
    said = f"removed {place}/other.json.gz, which had no study that can be read\n"
    assert called("remove", str(place / "other.json.gz")) == (0, "", said)
    assert [file.name for file in store.files(place)] == ["both.json.gz"]
    assert called("remove", "both.json.gz")[2].endswith(f"removed 1 study from {place}\n")
    assert store.files(place) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lits"], "unknown action of experience 'lits'; did you mean 'list'?"),
        (["list", "x"], "experience list takes no names but got 'x'"),
        (["list", "--mlflow", "http://x"], "--mlflow is for experience add"),
        (["add"], "needs a study, a folder of studies, an exported file, or --mlflow URI"),
        (["add", "nowhere"], "nowhere does not exist: add a study, a folder of studies or"),
        (["add", "empty"], "empty holds no study"),
        (["add", "x" * 5000], "cannot be a path here: File name too long"),
        (["add", "--mlflow", "htp://x"], "unknown scheme 'htp'"),
        (["add", "--mlflow", "sqlite:///nowhere.db"], "there is no MLflow store in nowhere.db"),
        (["remove"], "experience remove needs the name of a study"),
        (["remove", "wide", "wid"], "unknown study 'wid'; did you mean 'wide'?"),
        (["export"], "needs a file to write, like studies.json.gz"),
        (["export", "wide"], "needs a file to write, like studies.json.gz"),
        (["export", "x.json.gz", "wid"], "unknown study 'wid'; did you mean 'wide'?"),
        (["export", "no/x.json.gz"], "cannot write no/x.json.gz: No such file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_changed(
    words: list[str], says: str, called: Any, studies: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    called("add", str(studies / "wide"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    code, out, err = called(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert names(tmp_path / "store") == ["wide"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "store"]


def test_where_it_is_off_a_folder_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["experience", "list"]) == 2
    assert "experience is off (AUTOTUNE_EXPERIENCE): name a folder" in capsys.readouterr().err
    assert main.main(["experience", "list", "--experience", "none"]) == 2
    assert "experience is off (--experience): name a folder" in capsys.readouterr().err
    assert ACTIONS == ("list", "add", "remove", "export")


def test_an_export_that_nobody_could_read_is_one_line(
    called: Any, studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, file = tmp_path / "store", tmp_path / "all.json.gz"
    called("add", str(studies))
    monkeypatch.setattr(document, "_MOST_STUDIES", 1)
    code, out, err = called("export", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cannot write {file} with 2 studies: it would have 2 studies (at most 1)" in err
    assert f": name some of them, or share {place} itself, which experience add takes" in err
    assert not file.exists()
    assert called("export", str(file), "wide")[0] == 0
    assert main.main(["experience", "add", str(place), "--experience", str(tmp_path / "t")]) == 0
    assert names(tmp_path / "t") == ["racing", "wide"]


def test_a_study_too_short_is_said_to_be_and_adds_nothing(
    called: Any, studies: Path, tmp_path: Path
) -> None:
    code, _, err = called("add", str(studies / "short"))
    assert (code, err.count("\n")) == (2, 1)
    assert f"nothing to add: {studies}/short: only 2 trials of it tell anything" in err
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_finished_studies_of_mlflow_are_added(
    called: Any, tmp_path: Path, empty_store: Path
) -> None:
    from autotune.tracking import mirror

    folder = tmp_path / "study"
    simulate(wide(), folder, 6, learning)
    shutil.copy(empty_store, folder / "mlflow.db")
    mirror.catch_up(folder, None, 300.0)
    uri = f"sqlite:///{folder}/mlflow.db"
    for words in ([], ["wide"]):
        assert called("add", "--mlflow", uri, *words)[0] == 0
        assert names(tmp_path / "store") == ["wide"]
    code, _, err = called("add", "--mlflow", uri, "wdie")
    assert code == 2
    assert "unknown study in MLflow 'wdie'; did you mean 'wide'?" in err
