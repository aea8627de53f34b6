"""Which files an export takes: somebody else's folder cannot name any others, nor link to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import racing

from autotune.errors import UserError
from autotune.evaluation.export.checkpoint import rank_files
from autotune.storage import manifest as file
from autotune.study.manifest import Manifest, resolved
from autotune.study.options import StudyOptions
from autotune.trial import Checkpoint, Trial

ID = "5eed" * 8
ROOT = "racing-5eed5eed"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that no export may take, and beside it one with the name of a rank's."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("id_rsa", "rank-0.pt"):
        (folder / name).write_text("secret")
    return folder / "id_rsa"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study").mkdir()
    return tmp_path / "study"


def found(folder: Path, path: str, checkpoint_folder: str | None = None, **wrong: Any) -> list[str]:
    """The names of the files that would be copied, with a manifest that is read from the folder."""
    manifest = replace(resolved(racing([1.0]), StudyOptions()), study_id=ID).to_json()
    manifest["failure"]["checkpoint_folder"] = checkpoint_folder
    file.write(folder, {**manifest, **wrong})
    trial = Trial(0, {}, checkpoint=Checkpoint(1, path))
    files = rank_files(Manifest.read(folder), folder, trial)
    assert bool(files.names) == (not files.fault)
    files.copy(folder.parent / "out")
    assert not [p for p in folder.parent.glob("out/*") if p.read_text() == "secret"]
    return list(files.names)


def test_a_root_that_is_a_link_is_no_folder_of_the_studys(folder: Path, secret: Path) -> None:
    (folder / "checkpoints").symlink_to("/")
    (folder / "x" / "step-1").mkdir(parents=True)
    (folder / "x" / "step-1" / "rank-0.pt").symlink_to(secret)
    assert found(folder, "x/step-1") == []
    assert found(folder, str(secret.parent)) == []
    (folder / ROOT).symlink_to(secret.parent.parent)
    assert found(folder, f"{folder}/{ROOT}/home", str(folder)) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"study_id": "/../.."}, "study_id must be 32 hexadecimal digits but got '/../..'"),
        ({"study_id": ID.upper()}, "study_id must be 32 hexadecimal digits but got"),
        ({"name": "../.."}, "name must be letters, digits, '-', '_' and '.', but got '../..'"),
        ({"name": ""}, "name must be letters, digits"),
    ],
)
def test_names_that_lead_to_other_folders_are_damage(
    folder: Path, secret: Path, wrong: dict[str, str], says: str
) -> None:
    with pytest.raises(UserError, match=r"experiment\.json is damaged: ") as error:
        found(folder, str(secret.parent), "/", **wrong)
    assert says in str(error.value)


@pytest.mark.parametrize("protocol", ["", "file://", "local://"])
def test_a_link_is_not_followed_for_a_ranks_file(folder: Path, secret: Path, protocol: str) -> None:
    """Also where the manifest names its own disk by a URL."""
    place = folder / "given" / ROOT / "trial-0000" / "step-1"
    place.mkdir(parents=True)
    given = f"{protocol}{folder}/given"
    (place / "rank-0.pt").symlink_to(secret)
    (place / "rank-2.pt").mkdir()
    assert found(folder, f"{protocol}{place}", given) == []
    (place / "rank-1.pt").write_text("own")
    assert found(folder, f"{protocol}{place}", given) == ["rank-1.pt"]
    (place.parent / "link").symlink_to(secret.parent)
    assert found(folder, f"{protocol}{place.parent}/link", given) == []


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("simplecache::file://{}/given", "simplecache::file://{}/given/{}/step-1"),
        ("simplecache://x", "simplecache://x/{1}/y::file://{0}/given/{1}/step-1"),
    ],
)
def test_no_chain_of_stores_leads_to_the_disk(
    folder: Path, secret: Path, given: str, path: str
) -> None:
    place = folder / "given" / ROOT / "step-1"
    place.mkdir(parents=True)
    (place / "rank-0.pt").symlink_to(secret)
    assert found(folder, path.format(folder, ROOT), given.format(folder)) == []


def test_a_link_to_the_manifests_checkpoint_folder_is_followed(folder: Path) -> None:
    real = folder.parent / "shared" / ROOT
    (real / "trial-0000" / "step-1").mkdir(parents=True)
    (real / "trial-0000" / "step-1" / "rank-0.pt").write_text("own")
    (folder / "checkpoints").symlink_to(real)
    path = "checkpoints/trial-0000/step-1"
    assert found(folder, path) == []
    assert found(folder, path, str(real.parent)) == ["rank-0.pt"]
