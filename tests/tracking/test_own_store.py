"""The study folder's own store: one that MLflow cannot use is made again, a moved one corrected."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from autotune.tracking.mirror import default_uri
from autotune.tracking.own_store import OwnFile, is_damaged, relocate
from autotune.tracking.run_content import read_study_info


def harm(store: Path, how: str) -> None:
    """What may have happened to a store."""
    data = store.read_bytes()
    if how == "garbage":
        store.write_bytes(b"this is no database\n" * 1000)
    if how == "torn":  # at the end of a page
        store.write_bytes(data[: len(data) // 8192 * 4096])
    if how == "overwritten":
        store.write_bytes(data[:4096] + bytes(8192) + data[4096 + 8192 :])
    if how == "older":
        with contextlib.closing(sqlite3.connect(store)) as opened, opened:
            opened.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")


@pytest.fixture
def folder(tmp_path: Path, empty_store: Path) -> Path:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


@pytest.mark.parametrize("how", ["garbage", "torn", "overwritten"])
def test_a_damaged_store_is_put_aside(folder: Path, how: str) -> None:
    store = folder / "mlflow.db"
    harm(store, how)
    (folder / "mlflow.db-wal").write_bytes(b"of the damaged one")
    before = store.read_bytes()
    assert is_damaged(store)
    aside = OwnFile(folder).put_aside_if_damaged()
    assert aside == folder / "mlflow.db.aside-1"
    assert aside.read_bytes() == before
    assert not list(folder.glob("mlflow.db-*")), "it would be taken for the next one's"
    store.write_bytes(b"again, this is no database")
    assert OwnFile(folder).put_aside_if_damaged() == folder / "mlflow.db.aside-2"


def test_a_store_that_is_whole_missing_or_in_use_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tracking.own_store._LOCKED_SECONDS", 0.0)
    own = OwnFile(folder)
    assert own.put_aside_if_damaged() is None
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert own.put_aside_if_damaged() is None
    (folder / "mlflow.db").unlink()
    assert own.put_aside_if_damaged() is None
    (folder / "mlflow.db").touch()
    assert own.put_aside_if_damaged() is None, "SQLite takes an empty file for an empty database"


def test_a_store_whose_version_cannot_be_read_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tracking.own_store._LOCKED_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert OwnFile(folder).put_aside_if_other_version() is None
    assert (folder / "mlflow.db").is_file()


@pytest.mark.slow
def test_a_store_of_another_version_is_put_aside(folder: Path) -> None:
    own = OwnFile(folder)
    for _ in range(2):
        assert own.put_aside_if_other_version() is None
        assert [p.name for p in folder.iterdir()] == ["mlflow.db"]
    harm(folder / "mlflow.db", "older")
    assert own.put_aside_if_other_version() == folder / "mlflow.db.aside-1"
    assert [p.name for p in folder.iterdir()] == ["mlflow.db.aside-1"]
    assert own.put_aside_if_other_version() is None, "there is none"
    left = folder / "mlflow.db.new-killed.part"
    left.touch()
    own.make()  # the second new one of this process
    assert own.put_aside_if_other_version() is None
    assert sorted(p.name for p in folder.iterdir()) == ["mlflow.db", "mlflow.db.aside-1"]


def test_the_mirror_puts_a_damaged_store_aside(study, capsys: pytest.CaptureFixture[str]) -> None:
    """What it does then is in test_mirror, with a store of another version."""
    from autotune.cli.mirror_process import _own_store

    harm(study.path / "mlflow.db", "garbage")
    facts = read_study_info(study.path)
    assert _own_store(OwnFile(study.path), study.path, facts) is None
    assert (study.path / "mlflow.db.aside-1").exists()
    said = capsys.readouterr().err
    assert said.count("MLflow cannot use mlflow.db: it is now mlflow.db.aside-1") == 1


def test_the_addresses_of_artifacts_follow_a_moved_folder(study, tmp_path: Path) -> None:
    study.trial(0, 2.0)
    study.close()
    study.copier().catch_up(over=True)
    moved = tmp_path / "moved here"
    shutil.move(study.path, moved)
    for _ in range(2):
        relocate(moved, "digits")
        runs = study.runs(default_uri(moved))
        for run in runs.values():
            place = (moved / "artifacts" / run.info.run_id / "artifacts").as_uri()
            assert run.info.artifact_uri == place
    client, run = study.client(default_uri(moved)), runs["trial-0000"].info.run_id
    assert Path(client.download_artifacts(run, "config.json", str(tmp_path))).is_file()
