"""Experience: summaries of studies, the folder that has them, and studies that begin with it."""

from __future__ import annotations

import getpass
import gzip
import json
import math
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sims import METRIC, WIDE, RealTime, learning, lines, memory, race, racing, simulate, wide

import autotune as at
from autotune.algorithms.experience import model
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import MARKS
from autotune.algorithms.experience.model import LEAST_TRIALS, useful
from autotune.backends.simulator import SimPool
from autotune.cli import main
from autotune.cli.console import Output, finish
from autotune.errors import UserError
from autotune.space.schedule_space import FAMILIES, RULES
from autotune.space.search_space import Choice, Fixed, Float, Int, SearchSpace
from autotune.storage.journal import Journal
from autotune.storage.manifest import EXPERIENCE
from autotune.study.experience import (
    document,
    finding,
    first,
    known,
    ranking,
    shortlist,
    store,
    summary,
)
from autotune.study.experience.document import Summary
from autotune.study.experience.known import Known
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.result import read

AUTO = {"sampler": "auto"}
TWO_KNOWN = "2 studies that share parameters with this one are known"


@pytest.fixture(scope="module", autouse=True)
def nothing_shipped() -> Iterator[None]:
    """These studies know what the tests give them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_SHIPPED", "data/none.json.gz")
        yield


def studied(folder: Path, trials: int = 8, **options: Any) -> Path:
    """A simulated study of the wide space, in the folder; its kinds of trials are random."""
    simulate(wide(), folder, trials, learning, **options)
    return folder


def of_folder(folder: Path, **options: Any) -> Summary:
    manifest = Manifest.read(folder)
    return summary.of_study(manifest, folder, read(folder, manifest.target).trials, **options)


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "experiment.json").read_text())
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return of_folder(studied(tmp_path_factory.mktemp("made") / "study", 12))


# --- documents ------------------------------------------------------------------------------------

TEXT = st.text(max_size=20)
NUMBER = st.floats(-1e6, 1e6) | st.integers(-(2**40), 2**40)
PLAIN = NUMBER | st.booleans() | TEXT | st.none()
POSITIVE = st.floats(1e-6, 10)


@st.composite
def summaries(draw: st.DrawFn) -> Summary:
    rows = draw(st.integers(0, 4))

    def column(one: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(one, min_size=rows, max_size=rows))

    named = ("trainer", "source", "fingerprint", "hardware", "problem")
    texts = {name: draw(TEXT) for name in named}
    curve = st.lists(NUMBER | st.none(), min_size=12, max_size=12)
    return Summary(
        name="a-study.2",
        study_id="5eed" * 8,
        version="0.1",
        target=draw(st.dictionaries(TEXT, PLAIN, max_size=3)),
        points=column(st.dictionaries(TEXT, PLAIN, max_size=3)),
        times=column(POSITIVE | st.none()),
        ended=column(st.floats(0, 1)),
        curves=column(curve),
        **texts,
    )


@settings(max_examples=50)
@given(st.lists(summaries(), max_size=3))
def test_a_document_is_read_as_it_was_written(several: Sequence[Summary]) -> None:
    data = document.packed(document.document(several))
    found = document.summaries(document.unpacked(data))
    assert found == list(several)
    assert document.packed(document.document(found)) == data, "its bytes follow from its content"
    for one in found:
        task = one.task()
        assert one.with_rows_of(task, one.points) == replace(
            one,
            times=[None if t is None else float(t) for t in one.times],
            ended=[float(t) for t in one.ended],
            curves=[[None if v is None else float(v) for v in curve] for curve in one.curves],
        )


DAMAGES: list[tuple[dict[str, Any], str]] = [
    ({"name": "../x"}, "name must be a study's name but got '../x'"),
    ({"study_id": "12"}, "study_id must be 32 hexadecimal digits"),
    ({"trainer": 3}, "trainer must be a text but got 3"),
    ({"trainer": "x" * 501}, "trainer must be a text"),
    ({"target": [1]}, "target must be a dict of plain values"),
    ({"points": 3}, "points must be a list but got 3"),
    ({"points": [{"lr": [1]}] * 12}, "each of points must be a dict of plain values"),
    ({"points": [{"lr": 10**400}] * 12}, "each of points must be a dict of plain values"),
    ({"points": []}, "must be 0 but got 12"),
    ({"times": [0.5]}, "times, their number, must be 12 but got 1"),
    ({"times": [-1] * 12}, "each of times must be null or a number above 0 but got -1"),
    ({"times": ["0.5"] * 12}, "each of times must be null or a number above 0 but got '0.5'"),
    ({"ended": [None] * 12}, "each of ended must be a number >= 0 but got None"),
    ({"curves": [[0.5]] * 12}, "each of curves must be a list of 12 numbers or nulls"),
    ({"curves": [["x"] * 12] * 12}, "each of curves must be a list of 12 numbers or nulls"),
]


@pytest.mark.parametrize(("change", "says"), DAMAGES)
def test_a_damaged_summary_names_the_value(
    change: dict[str, Any], says: str, made: Summary, tmp_path: Path
) -> None:
    file = tmp_path / "x.json.gz"
    file.write_bytes(document.packed({"format": 1, "studies": [{**made.to_json(), **change}]}))
    with pytest.raises(ValueError) as caught:
        document.read(file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


BROKEN: dict[str, tuple[bytes, str]] = {
    "text": (b"no gzip", "no gzip file"),
    "empty": (b"", "not JSON|Expecting value|no gzip"),
    "cut": (document.packed({"format": 1, "studies": []})[:-9], "damaged"),
    "nan": (gzip.compress(b'{"format": 1, "studies": [NaN]}'), "NaN is not JSON"),
    "utf8": (gzip.compress(b"\xff\xfe"), "utf-8"),
    "deep": (gzip.compress(b"[" * 10**5), "nested too deeply"),
    "list": (gzip.compress(b"[]"), "no file of experience"),
    "foreign": (document.packed({"format": 2, "studies": []}), "format 2, and this version"),
    "none": (document.packed({"format": 1}), "studies must be a list but got None"),
    "lacking": (document.packed({"format": 1, "studies": [{}]}), "a study has no 'name'"),
    "number": (document.packed({"format": 1, "studies": [3]}), "a study must be a dict but got 3"),
    "large": (b"\x1f\x8b" + bytes(9 * 2**20), r"it has 9,437,186 bytes \(at most 8,388,608\)"),
    "bomb": (gzip.compress(bytes(65 * 2**20)), "unpacked it has more than 67,108,864 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_file_of_experience_is_one_line_and_ignored(
    name: str, made: Summary, tmp_path: Path
) -> None:
    content, says = BROKEN[name]
    store.write(tmp_path, made)
    (tmp_path / "a.json.gz").write_bytes(content)
    (tmp_path / f"{made.file_name}.123.part").write_bytes(b"half")
    (tmp_path / "README.md").write_text("not one")
    said: list[str] = []
    assert store.known(tmp_path, said.append) == [*store.shipped(said.append), made]
    with pytest.raises(ValueError, match=says):
        document.read(tmp_path / "a.json.gz")
    assert len(said) == 1
    assert said[0].startswith(f"experience: {tmp_path}/a.json.gz is ignored: ")
    assert "\n" not in said[0]


@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        ("_LARGEST_FILE", 500, r"it would have [\d,]+ bytes \(at most 500\)"),
        ("_LARGEST_TEXT", 5000, r"it would have [\d,]+ bytes unpacked \(at most 5,000\)"),
        ("_MOST_STUDIES", 1, r"it would have 2 studies \(at most 1\)"),
    ],
)
def test_what_would_not_be_read_is_not_written(
    limit: str, most: int, says: str, made: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [made, replace(made, study_id="5eed" * 8)]
    store.export(tmp_path / "before.json.gz", several)
    monkeypatch.setattr(document, limit, most)
    with pytest.raises(ValueError, match=f"(at most|more than) {most:,}"):
        document.read(tmp_path / "before.json.gz")
    with pytest.raises(UserError, match=f"^cannot write .*x.json.gz with 2 studies: {says}$"):
        store.export(tmp_path / "x.json.gz", several)
    assert [path.name for path in tmp_path.iterdir()] == ["before.json.gz"]


# --- of a study -----------------------------------------------------------------------------------


def test_a_summary_has_the_searched_trials_at_the_marks(fast_path: Path) -> None:
    rates = [1.0, 4.0, 0.2, 2.0, 0.1, 0.5]
    simulate(racing(rates), fast_path, 6, pruner="none", repeats=2, racing=0.3, workers=2)
    found = of_folder(fast_path)
    assert [point["rate"] for point in found.points] == rates, "repeats are no further points"
    assert found.times == [0.2, 0.06, None, 0.1, None, 0.4]
    assert found.reached == 4
    assert found.ended == [0.2, 0.06, 1.0, 0.1, 1.0, 0.4]
    task = found.task()
    rate = np.array(rates)[:, None]
    whole = np.minimum(np.floor(MARKS * 50 + 1e-6), np.array(found.ended)[:, None] * 50)
    assert task.curves == pytest.approx(rate * whole / 10, abs=1e-6)
    kept = {"metric": METRIC, "value": 1.0, "mode": "max", "clock": "train", "limit": 50.0}
    assert kept.items() <= found.target.items()
    assert useful(task, CanonicalSpace(racing(rates).space)) is not None


def test_a_metric_that_falls_is_signed_and_a_stopped_trial_ends(fast_path: Path) -> None:
    target = at.Target("train_loss", 0.05, mode="min", limit=5)
    simulate(replace(wide(), target=target), fast_path, 20, learning)
    found = of_folder(fast_path)
    curves = found.task().curves
    assert np.nanmax(curves) < 0
    assert (np.diff(curves, axis=1)[np.isfinite(np.diff(curves, axis=1))] >= 0).all()
    for end, time, curve in zip(found.ended, found.times, curves, strict=True):
        seen = np.isfinite(curve[end * (1 + 1e-6) < MARKS])
        assert seen.all() if time is not None else not seen.any()
    assert any(0 < end < 0.9 for end in found.ended)


def test_without_a_value_or_a_limit_shares_are_of_the_longest_trial(fast_path: Path) -> None:
    def train(config: dict[str, Any]) -> float:
        return float(config["x"])

    at.tune(train, {"x": Float(0, 1)}, metric="score", trials=6, out=fast_path / "s",
            backend="local", max_concurrent_trials=1, tracking_uri="off", progress=False,
            experience=fast_path / "store")  # fmt: skip
    (found,) = store.kept(fast_path / "store", print).values()
    assert found[0].ended == [1.0] * 6
    assert found[0].target["limit"] is None
    assert found[0].times == [None] * 6


def test_what_ended_without_a_result_of_its_own_is_left_out(fast_path: Path) -> None:
    def curve(config: Any, seed: int) -> Any:
        made = race(config, seed)
        end = {1.0: "died", 2.0: "out of memory", 3.0: "an error"}.get(config["rate"])
        return replace(made, end=end, points=made.points[:3]) if end else made

    given = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    simulate(racing(given), fast_path, 9, curve)
    points = of_folder(fast_path).points
    assert {p["rate"] for p in points} == {4.0, 5.0, 6.0, 7.0, 8.0, 9.0}


def test_a_study_with_too_few_trials_has_none(fast_path: Path) -> None:
    studied(fast_path / "s", LEAST_TRIALS - 1, experience=fast_path / "store")
    assert not (fast_path / "store").exists()
    with pytest.raises(summary.UnfitError, match=f"at least {LEAST_TRIALS}"):
        of_folder(fast_path / "s")
    assert len(of_folder(fast_path / "s", least=1).points) == LEAST_TRIALS - 1


def test_nothing_private_is_in_a_summary(fast_path: Path) -> None:
    private = [str(fast_path), str(Path.home()), getpass.getuser(), platform.node(), "me@host"]
    private += ["Ward-7", "Ward-8"]
    space = SearchSpace(
        {
            **WIDE.entries,
            "data": Choice([f"{fast_path}/a", f"{fast_path}/b"]),
            "user": Fixed(f"{getpass.getuser()}@{platform.node()}"),
            "mail": Choice(["me@host", "x" * 600]),
            "cohort": Choice(["Ward-7", "Ward-8"]),
        }
    )
    own = {"data": f"{fast_path}/a", "mail": "me@host", "cohort": "Ward-7"}
    given = {**wide().baseline, **own}  # type: ignore[dict-item]
    experiment = replace(wide(), space=space, baseline=given)
    simulate(experiment, fast_path / "s", 12, learning, experience=fast_path / "store")
    (path,) = store.files(fast_path / "store")
    text = gzip.decompress(path.read_bytes()).decode()
    assert not [word for word in private if len(word) > 3 and word in text]
    assert fast_path.name not in text
    assert path.name.startswith("wide-")
    (found,) = document.read(path)
    assert {p["data"][:7] for p in found.points} == {"sha256:"}
    assert {p["optimizer"] for p in found.points} == {"sgd", "lars"}
    assert {p["lr_family"] for p in found.points} == {"cosine", "linear"}
    # The same choices of another study are recognised.
    next_ = fast_path / "next"
    simulate(experiment, next_, 3, learning, experience=fast_path / "store", **AUTO)
    knew = known.read(Manifest.read(next_), next_)
    assert str(fast_path) not in str(knew.studies), "nor is it in what that study keeps"
    (task,) = knew.tasks(space)
    assert {p["data"] for p in task.points} == {f"{fast_path}/a", f"{fast_path}/b"}
    assert {p["cohort"] for p in task.points} == {"Ward-7", "Ward-8"}


def test_names_of_methods_are_stored_as_they_are() -> None:
    from search_spaces.images import folder
    from trainers.optimizers import NAMES

    hints = get_type_hints(folder)
    of_recipes = *get_args(hints["model"]), *get_args(hints["precision"])
    for text in (*NAMES, *FAMILIES, *RULES, *of_recipes, "AdamW"):
        assert summary.public({"x": text}) == {"x": text}


@pytest.mark.parametrize("before", [False, True])
def test_a_fixed_optimizer_of_any_name_is_recognised(
    before: bool, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in summaries of earlier versions, which had its name as it is."""
    entries = {**WIDE.entries, "optimizer": Fixed("ours-2")}
    del entries["trust"]
    experiment = replace(wide(), space=SearchSpace(entries), baseline=None)
    if before:
        monkeypatch.setattr(summary, "is_common", lambda text: True)
    simulate(experiment, fast_path / "s", 8, learning, experience=fast_path / "store")
    monkeypatch.undo()
    monkeypatch.setattr(store, "_SHIPPED", "data/none.json.gz")
    (file,) = store.files(fast_path / "store")
    assert ("ours-2" in gzip.decompress(file.read_bytes()).decode()) == before
    next_ = fast_path / "next"
    simulate(experiment, next_, 3, learning, experience=fast_path / "store", **AUTO)
    assert manifest_of(next_)["sampler"] == "experienced"
    knew = known.read(Manifest.read(next_), next_)
    assert {p["optimizer"] for p in knew.tasks(experiment.space)[0].points} == {"ours-2"}
    other_ = replace(experiment, space=SearchSpace({**entries, "optimizer": Fixed("theirs")}))
    simulate(other_, fast_path / "o", 3, learning, experience=fast_path / "store", **AUTO)
    assert manifest_of(fast_path / "o")["sampler"] != "experienced"


def test_a_long_study_keeps_its_fastest_trials(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late they came."""
    folder = studied(fast_path / "s", 60)
    whole = of_folder(folder)
    times = sorted(time for time in whole.times if time is not None)
    assert len(times) == 4
    monkeypatch.setattr(summary, "_MOST_TRIALS", 8)
    kept = of_folder(folder)
    assert sorted(time for time in kept.times if time is not None) == times
    assert len(kept.points) == 8
    assert len([p for p in whole.points if p in kept.points]) == 8

    monkeypatch.setattr(model, "_MOST_TRIALS", 8)
    task = useful(whole.task(), CanonicalSpace(wide().space))
    assert task is not None
    assert sorted(task.times[np.isfinite(task.times)]) == times
    nothing = replace(whole.task(), times=np.full(len(whole.points), np.inf))  # reached the target
    best = np.nanmax(nothing.curves)
    kept_of = useful(nothing, CanonicalSpace(wide().space))
    assert kept_of is not None
    assert np.nanmax(kept_of.curves) == best


def test_a_metric_out_of_all_bounds_is_left_out(fast_path: Path) -> None:
    def huge(config: Any, seed: int) -> Any:
        curve = learning(config, seed)
        first = replace(curve.points[0], metrics={METRIC: -1e35})
        return replace(curve, points=[first, *curve.points[1:]])

    simulate(wide(), fast_path / "s", 8, huge, experience=fast_path / "store")
    (path,) = store.files(fast_path / "store")
    curves = [value for curve in document.read(path)[0].curves for value in curve]
    assert max(abs(value) for value in curves if value is not None) < 2


def test_trials_that_end_long_before_the_limit_are_known_to_their_end(fast_path: Path) -> None:
    generous = replace(wide().target, value=2.0, limit=1e6)
    simulate(replace(wide(), target=generous), fast_path / "s", 8, learning)
    found = of_folder(fast_path / "s")
    assert found.ended == [1.0] * len(found.points)
    assert all(curve[-1] is not None for curve in found.curves)
    assert len({curve[-1] for curve in found.curves}) > 1
    assert useful(found.task(), CanonicalSpace(WIDE)) is not None


def test_a_study_with_another_target_is_no_earlier_run() -> None:
    loss = replace(wide(), target=at.Target("loss", 0.1, limit=60, mode="min"))
    assert summary.identity_of(loss).fingerprint != summary.identity_of(wide()).fingerprint
    harder = replace(wide(), target=replace(wide().target, value=0.99))
    assert summary.identity_of(harder) == summary.identity_of(wide())


def test_a_study_knows_those_of_one_problem_as_one(fast_path: Path) -> None:
    """Its own folder has them apart; what the sampler takes is one task."""
    stored = fast_path / "store"
    for name in ("sgd", "lars"):
        entries = {**WIDE.entries, "optimizer": Fixed(name)}
        del entries["trust"]
        one = replace(wide(), name=name, space=SearchSpace(entries), baseline=None)
        simulate(one, fast_path / name, 8, learning, pruner="none")
        store.write(stored, replace(of_folder(fast_path / name), problem="wide"))
    both = replace(wide(), baseline=None)
    simulate(both, fast_path / "both", 3, learning, experience=stored, **AUTO)
    knew = known.read(Manifest.read(fast_path / "both"), fast_path / "both")
    assert [study.name for study in knew.studies] == ["lars", "sgd"]
    (task,) = knew.tasks(both.space)
    assert {point["optimizer"] for point in task.points} == {"sgd", "lars"}
    assert len(task.points) == sum(len(study.points) for study in knew.studies)


def test_a_file_of_an_earlier_version_keeps_its_bytes(made: Summary) -> None:
    """A study that goes on writes what it knows again, and its manifest has the checksum."""
    written = made.to_json()
    assert "problem" not in written, "no earlier version has it"
    assert document.from_json(written) == made
    assert document.from_json({**written, "problem": "p"}).to_json()["problem"] == "p"


# --- the store ------------------------------------------------------------------------------------


def test_the_folder_is_the_option_the_variable_or_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store.folder_of("a") == Path("a")
    assert store.folder_of("off") is None
    assert store.folder_of(None) is None, "tests turn it off"
    for word in ("None", "0", "false", " No "):
        monkeypatch.setenv(store.VARIABLE, word)
        assert store.folder_of(None) is None
    with pytest.raises(UserError, match="must be a folder or off but got 'of'; did you mean 'off'"):
        store.folder_of("of")
    assert store.folder_of("./of") == Path("of")
    assert store.folder_of("offline") == Path("offline")
    monkeypatch.setenv(store.VARIABLE, "/shared")
    assert store.folder_of(None) == Path("/shared")
    monkeypatch.delenv(store.VARIABLE)
    assert store.folder_of(None) == tmp_path / "autotune" / "experience"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", unusable)
        assert store.folder_of(None) == Path.home() / ".local/share/autotune/experience"


def test_a_usual_folder_that_cannot_be_read_stops_no_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv(store.VARIABLE)
    (tmp_path / "autotune").write_text("no folder")
    options = StudyOptions(pool=RealTime(learning, 1))
    assert finding.find(wide(), options, (), "tpe").studies == ()
    assert "warning: experience: " in capsys.readouterr().err
    named = replace(options, experience=tmp_path / "autotune")
    with pytest.raises(UserError, match="must be a folder or off"):
        finding.find(wide(), named, (), "tpe")


def test_a_study_that_ends_replaces_its_own_summary_and_no_other(fast_path: Path) -> None:
    place = fast_path / "store"
    studied(fast_path / "a", 6, experience=place)
    studied(fast_path / "b", 6, experience=place)
    before = {path: path.read_bytes() for path in store.files(place)}
    assert len(before) == 2
    studied(fast_path / "a", 9, experience=place)
    after = {path: path.read_bytes() for path in store.files(place)}
    assert after.keys() == before.keys()
    changed = [path for path in after if after[path] != before[path]]
    assert [len(document.read(path)[0].points) for path in changed] == [9]
    assert of_folder(fast_path / "a") == document.read(changed[0])[0], "also from its folder"


@pytest.mark.parametrize("option", ["off", "none"])
def test_off_reads_and_writes_nothing(
    option: str, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(fast_path / "store"))
    studied(fast_path / "first", 8, experience=fast_path / "store")
    before = [path.name for path in store.files(fast_path / "store")]

    def refused(*_: Any) -> None:
        raise AssertionError("the store is not looked at")

    monkeypatch.setattr(store, "known", refused)
    monkeypatch.setattr(store, "write", refused)
    pool = RealTime(learning, 2)
    studied(fast_path / "s", 6, pool=pool, experience=option, **AUTO)
    assert manifest_of(fast_path / "s")["known"] == {}
    assert manifest_of(fast_path / "s")["experience"] == "off"
    assert not (fast_path / "s" / EXPERIENCE).exists()
    assert [path.name for path in store.files(fast_path / "store")] == before


def test_a_virtual_clock_is_no_experience_unless_a_folder_is_named(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(fast_path / "store"))
    studied(fast_path / "virtual", 6)
    assert not (fast_path / "store").exists()
    studied(fast_path / "real", 6, pool=RealTime(learning, 2))
    assert len(store.files(fast_path / "store")) == 1
    studied(fast_path / "other", 3, **AUTO)
    assert manifest_of(fast_path / "other")["sampler"] == "widening"


def test_a_store_that_cannot_be_written_is_one_line(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fast_path / "file").touch()
    place = fast_path / "file" / "store"
    result = simulate(wide(), fast_path / "s", 6, learning, experience=place)
    assert len(result.trials) == 6
    assert result.ended == "done"
    assert capsys.readouterr().err == (
        f"warning: experience: {place} cannot be written: Not a directory\n"
    )
    with pytest.raises(at.UserError, match="must be a folder or off but got"):
        simulate(wide(), fast_path / "n", 3, learning, experience=fast_path / "file", **AUTO)
    assert not (fast_path / "n").exists()


# --- studies that begin with it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_studies() -> list[Summary]:
    """Of the wide space."""
    with memory() as folder:
        for seed in (1, 2):
            studied(folder / f"first-{seed}", 20, seed=seed, pruner="none")
        return [of_folder(folder / f"first-{seed}") for seed in (1, 2)]


@pytest.fixture
def place(two_studies: list[Summary], fast_path: Path) -> Path:
    """A store with two studies of the wide space."""
    for study in two_studies:
        store.write(fast_path / "store", study)
    return fast_path / "store"


def other(**options: Any) -> at.Experiment:
    """A study of another trainer over the wide space."""

    def train(config: dict[str, Any]) -> None: ...

    return replace(wide(**options), name="other", train=train)


def test_auto_takes_what_is_known_and_says_from_what(
    place: Path, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, experiment, why, runs in (
        ("again", wide(), "2 earlier runs of this study are known", 2),
        (
            "else",
            other(),
            f"{TWO_KNOWN}, such as wide",
            0,
        ),
    ):
        folder = fast_path / name
        pool = RealTime(learning, 2)
        simulate(experiment, folder, 4, pool=pool, experience=place, **AUTO)
        assert f"sampler: experienced, as {why}\n" in capsys.readouterr().err
        told = manifest_of(folder)
        assert (told["sampler"], told["sampler_chosen_because"]) == ("experienced", why)
        assert told["known"]["studies"] == 2
        assert told["known"]["earlier_runs"] == runs
        assert told["known"]["most_alike"] == "wide"


@pytest.mark.parametrize("sampler", ["auto", "experienced"])
def test_where_nothing_is_known_the_usual_sampler_is_used(
    sampler: str, fast_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unrelated, damaged and foreign experience: a line for each, and it is ignored."""
    unrelated = fast_path / "unrelated"
    simulate(racing([1.0]), fast_path / "r", 8, experience=unrelated)
    (unrelated / "a.json.gz").write_bytes(b"x")
    (unrelated / "b.json.gz").write_bytes(BROKEN["foreign"][0])
    capsys.readouterr()
    folder = fast_path / "s"
    simulate(wide(), folder, 4, learning, experience=unrelated, sampler=sampler)
    err = capsys.readouterr().err
    assert err.count("\n") == err.count("is ignored") == 2
    told = manifest_of(folder)
    assert (told["sampler"], told["known"]) == ("widening", {})
    why = "no study like this one is known, and " if sampler == "experienced" else ""
    assert told["sampler_chosen_because"].startswith(f"{why}4 trials are few")
    assert not (folder / EXPERIENCE).exists()


def test_what_a_study_knows_fits_into_its_file(
    two_studies: list[Summary],
    fast_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = fast_path / "store"
    for study_id in ("5eed" * 8, "beef" * 8):
        store.write(place, replace(two_studies[0], study_id=study_id))
    options: dict[str, Any] = {"experience": place, **AUTO}
    simulate(other(), fast_path / "both", 3, learning, **options)

    def size(file: Path) -> int:
        return len(gzip.decompress(file.read_bytes()))

    both, one = size(fast_path / "both" / EXPERIENCE), max(map(size, store.files(place)))
    for most, studies, sampler in ((both - 1, 1, "experienced"), (one, 0, "widening")):
        monkeypatch.setattr(document, "_LARGEST_TEXT", most)
        folder = fast_path / f"{most}"
        simulate(other(), folder, 3, learning, **options)
        simulate(other(), folder, 4, learning, **options)
        manifest = manifest_of(folder)
        assert manifest["sampler"] == sampler
        assert manifest["known"].get("studies", 0) == studies
    assert "is ignored" not in capsys.readouterr().err


def test_of_a_large_store_the_most_alike_are_looked_at(
    two_studies: list[Summary], made: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(other(), name="new")
    space, identity = CanonicalSpace(WIDE), summary.identity_of(experiment)
    one = two_studies[0]
    stored = [replace(one, study_id=f"{n:032x}", name=f"s{n}") for n in range(6)]
    stored += [replace(made, study_id=f"{n:032x}", name=f"few{n}") for n in range(6, 12)]
    foreign = [{**p, "optimizer": "rmsprop"} for p in one.points]
    stored += [replace(one, study_id="f" * 32, name="a-foreign", points=foreign)]
    narrow = [{"lr": p["lr"], "epochs": 4} for p in one.points]
    stored += [replace(one, study_id="e" * 32, name="a-narrow", points=narrow)]
    own = replace(made, study_id="d" * 32, name="z", trainer=identity.trainer)
    stored += [own, replace(own, study_id="c" * 32, fingerprint=identity.fingerprint)]
    best = ranking.ranked(stored, space, identity, {})[:8]
    monkeypatch.setattr(shortlist, "_MOST", 8)
    chosen = shortlist.shortlist(stored, space, identity, {})
    assert [s.study_id for s in chosen] == [s.study_id for s in best]
    assert ranking.ranked(chosen, space, identity, {}) == best
    assert shortlist.shortlist(stored[:8], space, identity, {}) == stored[:8]


def test_of_a_large_store_related_optimizers_and_the_newest_come_first(
    two_studies: list[Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(other(), name="new")
    kept = {name: WIDE.entries[name] for name in ("lr", "batch_size", "layers")}
    space = CanonicalSpace(SearchSpace({**kept, "optimizer": Fixed("nadamw")}))
    identity = summary.identity_of(experiment)
    one = two_studies[0]
    adamw, sgd = (
        [{**p, "optimizer": optimizer} for p in one.points] for optimizer in ("adamw", "sgd")
    )
    stored = [replace(one, study_id=f"{n:032x}", name="a", points=sgd) for n in range(4)]
    stored += [replace(one, study_id=f"{n:032x}", name="b", points=adamw) for n in range(4, 8)]
    monkeypatch.setattr(shortlist, "_MOST", 2)
    times = {one.study_id: float(n) for n, one in enumerate(stored)}
    chosen = shortlist.shortlist(stored, space, identity, times)
    assert chosen == [stored[7], stored[6]]


class StopsInTheMiddle(SimPool):
    """A pool that fails after so many signals, as a killed driver's would."""

    left = 160

    def wait(self, timeout: float | None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().wait(timeout)


def points(folder: Path) -> list[Any]:
    return [line.get("params") for line in lines(folder) if line["event"] == "suggested"]


def test_a_study_begun_with_experience_is_repeatable_and_goes_on_bit_for_bit(
    place: Path, fast_path: Path
) -> None:
    options: dict[str, Any] = {"experience": place, "seed": 3, **AUTO}
    aside = fast_path / "aside"
    shutil.copytree(place, aside)
    for name in ("one", "two"):
        simulate(other(), fast_path / name, 14, learning, **{**options, "experience": aside})
        shutil.rmtree(aside)
        shutil.copytree(place, aside)  # without the summary of the study that has just ended
    assert lines(fast_path / "one") == lines(fast_path / "two")
    knew = (fast_path / "one" / EXPERIENCE).read_bytes()
    assert knew == (fast_path / "two" / EXPERIENCE).read_bytes()
    assert len({str(p) for p in points(fast_path / "one")}) > 10

    killed = fast_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        simulate(other(), killed, 14, pool=StopsInTheMiddle(learning, 1), **options)
    begun = len(points(killed))
    assert 3 <= begun < 14
    shutil.rmtree(place)  # whatever the store has by now
    studied(fast_path / "third", 20, seed=9, experience=place)
    simulate(other(), killed, 14, learning, **options)
    assert points(killed) == points(fast_path / "one")
    assert manifest_of(killed)["sampler"] == "experienced"
    assert manifest_of(killed)["known"] == manifest_of(fast_path / "one")["known"]
    assert (killed / EXPERIENCE).read_bytes() == knew


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_what_a_study_knew_must_be_there_as_it_was(
    damage: str, place: Path, fast_path: Path
) -> None:
    folder, options = fast_path / "s", {"experience": place, **AUTO}
    simulate(other(), folder, 4, learning, **options)
    kept = (folder / "journal.jsonl").read_bytes()
    if damage == "missing":
        (folder / EXPERIENCE).unlink()
    else:
        (folder / EXPERIENCE).write_bytes(Known(own="random").packed)
    says = f"{folder / EXPERIENCE}.* (is missing|has changed since).*: put it back, or begin"
    with pytest.raises(at.UserError, match=says) as caught:
        simulate(other(), folder, 8, learning, **options)
    assert "\n" not in str(caught.value)
    assert (folder / "journal.jsonl").read_bytes() == kept


def test_a_study_without_a_result_loses_nothing_when_it_begins_anew(
    place: Path, fast_path: Path
) -> None:
    folder, options = fast_path / "s", {"experience": place, **AUTO}
    simulate(other(), folder, 4, learning, **options)
    assert manifest_of(folder)["sampler"] == "experienced"
    for name in (EXPERIENCE, "journal.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(place)
    simulate(other(), folder, 4, learning, **options)
    assert manifest_of(folder)["sampler"] == "widening"
    assert manifest_of(folder)["known"] == {}


def test_a_study_that_began_without_goes_on_without(place: Path, fast_path: Path) -> None:
    folder = fast_path / "s"
    simulate(other(), folder, 4, learning, experience="off", **AUTO)
    simulate(other(), folder, 6, learning, experience=place, **AUTO)
    assert manifest_of(folder)["sampler"] == "widening"
    assert manifest_of(folder)["known"] == {}


def test_confirming_needs_no_experience_and_keeps_it(place: Path, fast_path: Path) -> None:
    folder, options = fast_path / "s", {"experience": place, **AUTO}
    simulate(other(), folder, 4, learning, **options)
    before = manifest_of(folder)["known"]
    simulate(other(), folder, 4, learning, search=False, repeats=1, **options)
    assert manifest_of(folder)["known"] == before


def test_names_are_translated_as_the_experiment_says(place: Path, fast_path: Path) -> None:
    def curve(config: Any, seed: int) -> Any:
        renamed = {"lr": lambda _: config["eta_0"], "batch_size": config["crowd"]}
        return learning(renamed, seed)

    entries = {"eta_0": Float(1e-4, 10, log=True), "crowd": Choice([16, 64, 256])}
    experiment = at.Experiment("mine", wide().train, SearchSpace(entries), wide().target)
    for canonical, sampler in (
        ({}, "convergence"),
        ({"eta_0": "lr", "crowd": "batch_size"}, "experienced"),
    ):
        folder = fast_path / sampler
        said = replace(experiment, canonical=canonical)
        simulate(said, folder, 3, curve, experience=place, **AUTO)
        assert manifest_of(folder)["sampler"] == sampler
        assert manifest_of(folder)["canonical"] == canonical


@pytest.mark.parametrize(
    ("canonical", "says"),
    [
        ({"ratte": "lr"}, "unknown parameter 'ratte'; did you mean 'rate'?"),
        ({"rate": 3}, "'rate' must be a parameter's name"),
        ({"rate": " "}, "'rate' must be a parameter's name"),
        ("lr", "must be a dict like {'eta': 'lr'}"),
    ],
)
def test_wrong_canonical_names_are_one_line(canonical: Any, says: str) -> None:
    with pytest.raises(at.UserError) as caught:
        replace(racing([1.0]), canonical=canonical)
    assert says in str(caught.value)
    with pytest.raises(at.UserError, match="'layers' and 'batch_size' are both 'x'"):
        replace(wide(), canonical={"layers": "x", "batch_size": "x"})


# --- studies to start from ------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["random", "tpe", "convergence", "experienced"])
def test_the_best_points_of_several_studies_run_first(sampler: str, fast_path: Path) -> None:
    sources = []
    for seed in (1, 2):
        sources.append(studied(fast_path / f"first-{seed}", 10, seed=seed))
    best = [read(source, wide().target).best for source in sources]
    folder = fast_path / "next"
    options = {"start_from": sources, "sampler": sampler, "seed": 4}
    result = simulate(wide(), folder, 8, learning, **options)
    assert result.trials[0].kind == "baseline"
    tried = [dict(t.params or {}) for t in result.trials[1:4]]
    assert tried[:2] == [dict(one.params or {}) for one in best if one is not None]
    assert manifest_of(folder)["start_from"] == [str(source) for source in sources]
    assert manifest_of(folder)["known"]["first"] == 3
    assert manifest_of(folder)["known"]["studies"] == (2 if sampler == "experienced" else 0)
    for source in sources:
        shutil.rmtree(source)
    parts = fast_path / "parts"
    shutil.copytree(folder, parts)
    whole = simulate(wide(), folder, 10, learning, **options)
    assert len(whole.trials) == 10, "the sources are needed no more"


def test_a_study_that_is_still_running_gives_its_ended_trials(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = studied(fast_path / "first", 10)
    rows = (source / "journal.jsonl").read_text().splitlines(keepends=True)
    ended = [n for n, row in enumerate(rows) if json.loads(row)["event"] == "ended"]
    options: dict[str, Any] = {"start_from": source, "sampler": "random"}
    said = f"start_from (--from) {str(source)!r}"
    (source / "journal.jsonl").write_text("".join(rows[: ended[0]]))
    with Journal(source):
        with pytest.raises(UserError) as caught:
            simulate(wide(), fast_path / "none", 3, learning, **options)
        assert str(caught.value) == f"{said}: no trial of it has ended yet: it is still running"
        (source / "journal.jsonl").write_text("".join(rows[: ended[3] + 1]))
        simulate(wide(), fast_path / "next", 3, learning, **options)
        assert capsys.readouterr().err == (
            f"warning: {said} is still running: its trials that have ended are used\n"
        )
    assert manifest_of(fast_path / "next")["known"]["first"] == 3
    knew = (fast_path / "next" / EXPERIENCE).read_bytes()
    (source / "journal.jsonl").write_text("".join(rows))
    simulate(wide(), fast_path / "next", 6, learning, **options)
    assert "still running" not in capsys.readouterr().err
    assert (fast_path / "next" / EXPERIENCE).read_bytes() == knew, "it knows what it knew"


def first_of(sources: Sequence[Summary], space: SearchSpace, **said: str) -> list[dict[str, Any]]:
    """The points of summaries that a study of a space runs first."""
    experiment = at.Experiment("mine", wide().train, space, wide().target, canonical=said)
    canonical = CanonicalSpace(space, said)
    folders = [Path(one.name) for one in sources]
    return [dict(p) for p in first.points(sources, folders, canonical, experiment, 0)]


def with_points(made: Summary, points: Sequence[Mapping[str, Any]], **more: Any) -> Summary:
    """A study of these points, the first of which is the fastest."""
    rows = len(points)
    times = [0.1 + 0.8 * i / rows for i in range(rows)]
    curves = [[0.9 * min(1.0, mark / time) for mark in MARKS.tolist()] for time in times]
    results = {"times": times, "ended": times, "curves": curves}
    return replace(made, points=[dict(point) for point in points], **{**results, **more})


def test_points_are_translated_clipped_a_little_and_differ(made: Summary) -> None:
    """What lies far outside, or has another optimizer, is no point of this space."""
    space = SearchSpace(
        {
            "learning_rate": Float(1e-3, 0.1, log=True),
            "batch_size": Choice([16, 32, 64]),
            "optim": Fixed("SGD"),
            "new": Float(2, 3),
        }
    )
    rates = [0.12, 0.05, 50.0, 0.11, 0.04, 1e-4, 0.03, 0.02]
    points = [{"lr": rate, "batch_size": 32, "optimizer": "sgd"} for rate in rates]
    points[1]["optimizer"] = "lars"
    found = first_of([with_points(made, points)], space)
    assert [p["learning_rate"] for p in found] == [0.1, 0.04, 0.03]
    assert [p["batch_size"] for p in found] == [32] * 3
    assert all(2 <= p["new"] <= 3 for p in found)
    assert first_of([with_points(made, [{**p, "batch_size": 99} for p in points])], space) == []
    lars = with_points(made, [{**p, "optimizer": "lars"} for p in points])
    with pytest.raises(UserError, match="has trials of the optimizer lars only, and this one has "):
        first_of([lars], space)


def test_points_that_all_lie_outside_are_told(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(racing([1.0, 2.0]), fast_path / "first", 3)
    far = replace(racing([1.0]), space=SearchSpace({"rate": Float(1e3, 1e4)}), baseline=None)
    simulate(far, fast_path / "next", 3, start_from=fast_path / "first", sampler="random")
    assert capsys.readouterr().err == (
        "warning: no point of the studies to start from (--from) lies in this space, so none is "
        "run first\n"
    )


def test_nothing_in_common_is_said_in_the_names_of_both_studies(fast_path: Path) -> None:
    simulate(racing([1.0], canonical={"rate": "speed"}), fast_path / "first", 3)
    with pytest.raises(UserError) as caught:
        simulate(wide(), fast_path / "next", 3, learning, start_from=fast_path / "first")
    assert str(caught.value) == (
        "start_from (--from) 'racing' has no parameter in common with this one: it has rate (as "
        "speed), and this one lr.family (as lr_family), lr.peak (as lr), lr.warmup (as warmup), "
        "batch_size, layers (as num_layers), optimizer, trust"
    )


# --- which studies count --------------------------------------------------------------------------


def ranked(
    several: Sequence[Summary], space: SearchSpace, own: str = "", **times: float
) -> list[str]:
    """The study ids of those that count, the one most like the new one first."""
    identity = summary.Identity("mine.train", "", own)
    found = ranking.ranked(several, CanonicalSpace(space), identity, times)
    return [one.study_id for one in found]


def like(made: Summary, name: str, space: SearchSpace, rows: int = 20, **more: Any) -> Summary:
    """A study of a space by another trainer, the faster the less its first parameter is."""
    canonical = CanonicalSpace(space)
    first = next(iter(space.entries))
    drawn = sorted(space.sample(rows), key=lambda point: float(point[first]))
    points = [canonical.point(p) for p in drawn]
    return with_points(made, points, study_id=name, trainer="theirs.train", **more)


ID = "{:032x}".format


def test_studies_as_like_are_ranked_by_ranges_and_owner_before_their_size(made: Summary) -> None:
    def space(low: float, high: float, momentum: float = 0.9) -> SearchSpace:
        rate = Float(low, high, log=True)
        return SearchSpace({"lr": rate, "momentum": Float(0.0, momentum)})

    mine = space(1e-3, 1.0)
    shipped = like(made, ID(1), mine, 60)
    own, other = like(made, ID(2), mine, 20), like(made, ID(3), space(10.0, 1e3), 90)
    several = [other, shipped, own]
    assert ranked(several, mine, **{ID(2): 5.0}) == [ID(2), ID(1), ID(3)]
    assert ranked(several, mine) == [ID(1), ID(2), ID(3)], "then the number of trials"
    trained = replace(other, trainer="mine.train")
    assert ranked([shipped, own, trained], mine)[0] == ID(3), "the same trainer"
    runs = [replace(own, study_id=ID(i), fingerprint="same") for i in range(100, 120)]
    times = {ID(i): float(i) for i in range(100, 115)}
    newest = [*map(ID, range(107, 115))]
    assert sorted(ranked([*runs, shipped], mine, "same", **times)) == sorted([ID(1), *newest])


def test_networks_and_other_models_are_not_alike(made: Summary) -> None:
    """Names such as eta and depth mean something else in boosted trees."""
    network = SearchSpace({"lr": Float(1e-3, 1, log=True), "num_layers": Int(1, 9),
                           "l2": Float(0, 1), "batch_size": Int(8, 64)})  # fmt: skip
    trees = SearchSpace({"eta": Float(1e-3, 1), "depth": Int(1, 9), "l2": Float(0, 1)})
    rate = SearchSpace({"learning_rate": Float(1e-3, 1)})
    studies = [like(made, ID(1), network), like(made, ID(2), trees)]
    assert ranked(studies, network) == [ID(1)]
    assert ranked(studies, trees) == [ID(2)]
    assert ranked(studies, rate) == []
    same = [replace(one, trainer="mine.train") for one in studies]
    assert ranked(same, rate) == [ID(1)], "of the same trainer"


def test_what_nothing_explains_is_left_out_but_for_own_studies(made: Summary) -> None:
    space = SearchSpace({"lr": Float(1e-3, 1.0, log=True), "momentum": Float(0.0, 0.9)})
    right = like(made, ID(1), space, 60)
    mixed = replace(right, study_id=ID(2), points=Random(0).sample(right.points, 60))
    assert ranked([right, mixed], space) == [ID(1)]
    assert ranked([mixed], space, **{ID(2): 5.0}) == []
    assert ranked([mixed], space, **{ID(2): math.inf}) == [ID(2)], "--from names it"
    assert ranked([replace(mixed, trainer="mine.train")], space) == [ID(2)]
    assert ranked([replace(mixed, fingerprint="same")], space, "same") == [ID(2)]


# --- published points -----------------------------------------------------------------------------

PUBLISHED = [
    {"lr": 0.003, "weight_decay": 0.08, "momentum": 0.9, "optimizer": "schedulefree_adamw"},
    {"lr": 0.004, "weight_decay": 0.08, "momentum": 0.9, "optimizer": "schedulefree_adamw"},
    {"lr": 9.0, "weight_decay": 0.08, "momentum": 0.9, "optimizer": "schedulefree_adamw"},
    {"lr": 0.003, "weight_decay": 0.08, "batch_size": 4096, "optimizer": "schedulefree_adamw"},
    {"lr": 0.005, "weight_decay": 0.04, "momentum": 0.9, "optimizer": "schedulefree_adamw"},
    {"lr": 0.006, "weight_decay": 0.04, "momentum": 0.9, "optimizer": "schedulefree_adamw"},
    {"lr": 0.1, "weight_decay": 0.04, "optimizer": "sgd"},
]


def free(optimizer: str) -> at.Experiment:
    """A study of one optimizer."""
    space = SearchSpace(
        {
            "lr": Float(1e-4, 1.0, log=True),
            "weight_decay": Float(1e-3, 1.0, log=True),
            "batch_size": Choice([16, 64, 256]),
            "optimizer": Fixed(optimizer),
        }
    )
    return at.Experiment("free", wide().train, space, wide().target)


@pytest.mark.parametrize(("sampler", "count"), [("auto", 3), ("experienced", 3), ("random", 0)])
def test_published_points_run_first_where_no_study_is_known(
    sampler: str,
    count: int,
    fast_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = fast_path / "shipped.json.gz"
    entry = {"kind": "points", "name": "x", "source": "y", "points": PUBLISHED}
    shipped.write_bytes(document.packed({"format": 1, "studies": [], "points": [entry]}))
    monkeypatch.setattr(store, "_SHIPPED", str(shipped))

    def curve(config: Any, seed: int) -> Any:
        return learning({**config, "lr": lambda _: config["lr"]}, seed)

    options: dict[str, Any] = {"experience": fast_path / "store", "sampler": sampler}
    folder = fast_path / "s"
    simulate(free("ScheduleFree_AdamW"), folder, 6, curve, **options)
    rates = [0.003, 0.004, 0.005]
    assert [p["lr"] for p in points(folder)][:3] == rates or not count
    told = manifest_of(folder)
    assert told["known"].get("first", 0) == count
    if count:
        capsys.readouterr()
        assert main.main(["status", str(folder)]) == 0
        says = "; 3 published settings of its optimizer run first"
        assert says in told["sampler_chosen_because"]
        assert says in capsys.readouterr().out
        again = simulate(free("ScheduleFree_AdamW"), folder, 8, curve, **options)
        assert len(again.trials) == 8
    simulate(free("muon"), fast_path / "none", 3, curve, **options)
    assert manifest_of(fast_path / "none")["known"] == {}
    assert "published" not in (manifest_of(fast_path / "none")["sampler_chosen_because"] or "")


# --- what is told ---------------------------------------------------------------------------------


def test_status_says_what_was_known_and_what_it_is_like_now(
    place: Path, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fast_path / "s"
    simulate(other(), folder, 8, learning, experience=place, **AUTO)
    capsys.readouterr()
    assert main.main(["status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"  sampler: experienced, as {TWO_KNOWN}, such as wide\n" in shown
    assert "  experience: most like wide by now (probability " in shown
    assert main.main(["status", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["experience"]
    assert (told["studies"], told["like_now"]) == (2, "wide")
    assert 0 < told["probability"] <= 1
    assert 0 <= told["none"] < 1


Change = Callable[[Path], object]


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_status_works_without_the_file(
    change: Change, place: Path, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fast_path / "s"
    simulate(other(), folder, 6, learning, experience=place, **AUTO)
    change(folder / EXPERIENCE)
    assert main.main(["status", str(folder)]) == 0
    assert f"  experience: {folder / EXPERIENCE}" in capsys.readouterr().out


def test_the_end_of_a_study_and_status_say_where_its_summary_is(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = fast_path / "store"
    for name, trials, written in (("short", LEAST_TRIALS - 1, False), ("long", 8, True)):
        folder = fast_path / name
        result = simulate(wide(), folder, trials, learning, experience=place)
        manifest = Manifest.read(folder)
        file = place / document.file_name("wide", manifest.study_id)
        assert file.is_file() == written
        line = f"experience: the summary of this study is in {file}\n"
        finish(result, manifest, Output())
        assert (f"\n{line}" in capsys.readouterr().out) == written
        assert main.main(["status", str(folder)]) == 0
        assert (f"\n  {line}" in capsys.readouterr().out) == written
        assert main.main(["status", str(folder), "--json"]) == 0
        named = json.loads(capsys.readouterr().out)["experience_summary"]
        assert named == (str(file) if written else None)


def test_a_function_is_told_where_its_summary_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shown in (True, False):
        at.tune(lambda config: config["x"], {"x": at.Float(0, 1)}, metric="m", trials=LEAST_TRIALS,
                out=tmp_path / f"{shown}", experience=tmp_path / "store", tracking_uri="off",
                backend="local", max_concurrent_trials=1, progress=shown)  # fmt: skip
        said = capsys.readouterr().err
        (file,) = (tmp_path / "store").iterdir()
        assert (f"experience: the summary of this study is in {file}\n" in said) == shown
        file.unlink()


@pytest.mark.parametrize("options", [{"experience": "off"}, {}])
def test_status_says_that_it_was_off(
    options: dict[str, str],
    fast_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(fast_path / "store") if options else "off")
    studied(fast_path / "s", 3, **options)
    monkeypatch.delenv(store.VARIABLE)
    assert main.main(["status", str(fast_path / "s")]) == 0
    assert "  experience: off\n" in capsys.readouterr().out


def test_the_variable_turns_experience_off_for_studies_that_begin(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for begun, later in (("off", "off"), ("store", None)):
        for value in (begun, "off"):
            monkeypatch.setenv(store.VARIABLE, value)
            studied(fast_path / begun, 3 if value == begun else 4)
        assert manifest_of(fast_path / begun)["experience"] == later


def test_shipped_summaries_are_read_beside_the_folder(
    made: Summary, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = tmp_path / "shipped.json.gz", list[str]()
    monkeypatch.setattr(store, "_SHIPPED", str(file))
    assert store.shipped(said.append) == []
    own = document.read(store.files(place)[0])[0]
    store.export(file, [replace(made, name="shipped"), replace(own, name="older")])
    assert [one.name for one in store.known(place, said.append)] == ["shipped", "wide", "wide"]
    assert said == []


def test_the_report_says_what_was_known(place: Path, fast_path: Path) -> None:
    from dashboards.report import study_html

    folder = fast_path / "s"
    simulate(other(), folder, 6, learning, experience=place, **AUTO)
    html = study_html(folder)
    assert f"{TWO_KNOWN}, such as wide" in html
    assert "most like wide by now (probability " in html


# --- whatever the folder holds --------------------------------------------------------------------


@st.composite
def odd(draw: st.DrawFn) -> Summary:
    """A valid summary with names of the wide space and values that no study of it has."""
    rows = draw(st.integers(LEAST_TRIALS, 8))
    number = st.sampled_from([0, -1, 0.1, 64, 1e30, -1e30, 1e-30, 1e12])
    value = number | st.sampled_from(["sgd", "lars", "cosine", "x", None, True])
    names = ("lr", "batch_size", "optimizer", "num_layers", "lr_family", "momentum")
    point = st.dictionaries(st.sampled_from(names), value, min_size=2)
    time = st.sampled_from([1e-30, 1e-3, 0.5, 1.0, 1e30]) | st.none()
    curve = st.lists(number | st.none(), min_size=12, max_size=12)

    def column(one: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(one, min_size=rows, max_size=rows))

    return Summary(
        name="odd",
        study_id=draw(st.sampled_from(["5eed" * 8, "beef" * 8])),
        trainer="a.b",
        source="",
        fingerprint="",
        target={},
        hardware="",
        version="",
        points=column(point),
        times=column(time),
        ended=column(st.sampled_from([0, 1e-30, 0.5, 1.0, 1e30])),
        curves=column(curve),
    )


@settings(max_examples=12)
@given(odd())
def test_no_valid_summary_stops_a_study(one: Summary) -> None:
    with memory() as folder:
        store.write(folder / "store", one)
        found = simulate(wide(), folder / "s", 3, learning, experience=folder / "store", **AUTO)
        assert len(found.trials) == 3


def test_studies_that_end_at_once_leave_whole_files(made: Summary, tmp_path: Path) -> None:
    """And who reads meanwhile sees each of them as it was, or as it is."""
    several = [replace(made, study_id=f"{number:032x}", name=f"s{number}") for number in range(8)]
    said: list[str] = []

    def written(one: Summary) -> set[Path]:
        return {store.write(tmp_path, one) for _ in range(5)}

    with ThreadPoolExecutor(8) as pool:
        paths = pool.map(written, several)
        for _ in range(10):
            store.known(tmp_path, said.append)
        assert set().union(*paths) == set(store.files(tmp_path))
    assert said == []
    own = [one for found in store.kept(tmp_path, said.append).values() for one in found]
    assert own == several
