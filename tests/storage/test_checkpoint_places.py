"""Journals name checkpoints below their study folder relative to it, so that it can be moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.storage import journal
from autotune.storage.checkpoint_places import located, stored
from autotune.storage.journal import JOURNAL, Journal
from autotune.trial import Checkpoint, Origin, Saved, Suggested

OWN = "checkpoints/trial-0007/step-100"


@pytest.mark.parametrize(
    ("path", "named", "there"),
    [
        ("/a/digits/checkpoints/trial-0007/step-100", OWN, f"/b/{OWN}"),
        ("/a/digits/mine/digits-5eed/trial-0007/step-1", "mine/digits-5eed/trial-0007/step-1",
         "/b/mine/digits-5eed/trial-0007/step-1"),
        ("/a/digits2/x/trial-0007/step-1", "/a/digits2/x/trial-0007/step-1",
         "/a/digits2/x/trial-0007/step-1"),
        ("s3://a/digits/trial-0007/step-1", "s3://a/digits/trial-0007/step-1",
         "s3://a/digits/trial-0007/step-1"),
        ("sim:7/100?%7B%7D", "sim:7/100?%7B%7D", "sim:7/100?%7B%7D"),
    ],
)  # fmt: skip
def test_where_a_checkpoint_is_after_its_study_was_moved(path: str, named: str, there: str) -> None:
    assert stored(path, Path("/a/digits")) == named
    assert located(named, Path("/a/digits")) == path
    assert located(named, Path("/b")) == there


@pytest.mark.parametrize("older", [False, True], ids=["relative", "absolute"])
def test_a_moved_journal_names_the_present_places(fast_path: Path, older: bool) -> None:
    """Journals of version 2 have absolute paths; those of the study's own folder are moved, too."""
    folder, moved = fast_path / "before", fast_path / "after"
    saved = Checkpoint(100, str(folder / OWN))
    events = [
        Suggested(0, {}, None, "trial", 1),
        Saved(0, saved),
        Suggested(1, {}, None, "trial", 2, origin=Origin(0, 0, saved)),
    ]
    with Journal(folder) as written:
        for event in events:
            written.write(event)
    rows = [json.loads(row) for row in (folder / JOURNAL).read_text().splitlines()]
    checkpoints = rows[1]["checkpoint"], rows[2]["origin"]["checkpoint"]
    assert [c["path"] for c in checkpoints] == [OWN, OWN]
    assert journal.read(folder) == events
    if older:
        for checkpoint in checkpoints:
            checkpoint["path"] = str(folder / OWN)
        (folder / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert journal.read(folder) == events
    shutil.move(folder, moved)
    _, one, two = journal.read(moved)
    assert isinstance(one, Saved)
    assert isinstance(two, Suggested)
    assert two.origin is not None
    assert one.checkpoint.path == two.origin.checkpoint.path == str(moved / OWN)


def test_a_path_that_is_no_text_is_damage(fast_path: Path) -> None:
    with Journal(fast_path) as written:
        written.write(Suggested(0, {}, None, "trial", 1))
        written.write(Saved(0, Checkpoint(100, str(fast_path / OWN))))
        written.write(Saved(0, Checkpoint(200, str(fast_path / OWN))))
    text = (fast_path / JOURNAL).read_text()
    (fast_path / JOURNAL).write_text(text.replace(f'"{OWN}"', "5", 1))
    with pytest.raises(journal.UserError, match="line 2 is damaged"):
        journal.read(fast_path)
