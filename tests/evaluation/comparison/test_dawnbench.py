"""Published runs in DAWNBench's form: the times that were announced, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.errors import UserError
from autotune.evaluation.comparison import ComparedTarget, compare
from autotune.evaluation.comparison import dawnbench as published

DAWNBENCH = Path(__file__).parents[3].parent / "shared" / "data" / "dawnbench"
HEAD = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"
FASTAI = "fastai_resnet50_p3_16_machine_pytorch"
MXNET = "huaweicloud_resnet50_modelarts_16_machine_mxnet121"
TENSORFLOW = "huaweicloud_resnet50_modelarts_16_machine_tensorflow18"
dawnbench = pytest.mark.skipif(not DAWNBENCH.is_dir(), reason=f"no published runs at {DAWNBENCH}")


def table(folder: Path, name: str, lines: str, hardware: str | None = "16 machines") -> Path:
    file = folder / f"{name}.tsv"
    file.write_text(HEAD + lines)
    if hardware is not None:
        file.with_suffix(".json").write_text(json.dumps({"hardware": hardware}))
    return file


@dawnbench
def test_the_announced_times_to_93_percent(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(DAWNBENCH / f"{name}.tsv") for name in (FASTAI, MXNET, TENSORFLOW)]
    assert main.main(["compare", *files, "--allow", "hardware", "--json"]) == main.DONE
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)["rows"]}
    seconds = {name: round(row["median_seconds"]) for name, row in rows.items()}
    assert seconds == {FASTAI: 1085, MXNET: 561, TENSORFLOW: 162}
    assert rows[FASTAI]["is_baseline"]
    assert rows[MXNET]["speedup"] == pytest.approx(1.934, abs=1e-3)
    assert rows[TENSORFLOW]["speedup"] == pytest.approx(6.685, abs=1e-3)
    assert {row["kind"] for row in rows.values()} == {"published"}


@dawnbench
def test_other_hardware_is_not_compared_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(DAWNBENCH / f"{name}.tsv") for name in (FASTAI, MXNET)]
    assert main.main(["compare", *files]) == main.USER
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--allow hardware" in err
    assert "16 p3.16xlarge (AWS)" in err


def test_times_steps_and_epochs_of_two_published_runs(tmp_path: Path) -> None:
    """The second takes half the seconds: epochs twice as fast, as many of them."""
    slow = table(tmp_path, "slow", "1\t0.25\t50\t80\n2\t0.5\t70\t93\n3\t0.75\t71\t94\n")
    fast = table(tmp_path, "fast", "1\t0.125\t40\t70\n\n2\t0.25\t72\t93.01")  # no last line break
    made = compare([published.read(slow), published.read(fast)])
    assert [(r.name, r.median_seconds) for r in made.rows] == [("fast", 900), ("slow", 1800)]
    row = made.row("fast")
    assert (row.speedup, row.throughput_ratio, row.efficiency_ratio) == pytest.approx((2, 2, 1))
    assert (row.samples, row.unit) == (pytest.approx(2), "epochs")
    assert row.probability_faster is None
    assert row.candidate.runs[0].curve == ((1, 450, 70), (2, 900, 93.01))


def test_another_target(tmp_path: Path) -> None:
    file = table(tmp_path, "run", "1\t0.25\t50\t80\n2\t0.5\t70\t92\n")
    assert not published.read(file).runs[0].reached
    assert published.read(file).runs[0].seconds == 1800
    for text in ("top1=50", "top-1>=50", "top1Accuracy=50"):
        run = published.read(file, published.parse_target(text)).runs[0]
        assert (run.reached, run.seconds) == (True, 900)
    assert published.read(file, ComparedTarget("top5", 80.0, confirm=2)).runs[0].seconds == 1800


def test_columns_in_any_order_and_other_clocks(tmp_path: Path) -> None:
    file = tmp_path / "run.tsv"
    file.write_text("val_loss\tseconds\tepoch\n3.5\t10\t1\n3.2\t20\t2\n")
    run = published.read(file, published.parse_target("val_loss<=3.28")).runs[0]
    assert (run.reached, run.seconds, run.samples) == (True, 20, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line is ''"),
        ("hello", "is no table of published results: its first line is 'hello'"),
        ("epoch\ttop5Accuracy\n1\t93\n", "no column of time: hours or minutes or seconds"),
        ("hours\ttop5Accuracy\n1\t93\n", "no column 'epoch', but hours, top5Accuracy"),
        (HEAD, "has no line of results"),
        (HEAD + "1\t0.1\t50\t80\n2\t0.2\t6", "line 3: 3 columns where the first line has 4"),
        (HEAD + "1\t0.1\t50\t80\n2\t0.\x00\t6\t9", "line 3: hours must be a number"),
        (HEAD + "1\tnan\t50\t80\n", "line 2: hours must be a number but got 'nan'"),
        (HEAD + "1\t0.2\t50\t80\n2\t0.1\t60\t93\n", "line 3: time runs backwards, 360 s after 720"),
        ("epoch\thours\ttop1\n1\t0.2\t50\n", "unknown column 'top5'; did you mean 'top1'"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.tsv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        published.read(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_torn_description_is_reported(tmp_path: Path) -> None:
    file = table(tmp_path, "run", "1\t0.1\t50\t93\n")
    file.with_suffix(".json").write_text('{"hardware": "16')
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        published.read(file)


def test_without_a_description_the_hardware_is_not_known(tmp_path: Path) -> None:
    said = published.read(table(tmp_path, "said", "1\t0.1\t50\t93\n"))
    silent = published.read(table(tmp_path, "silent", "1\t0.1\t50\t93\n", hardware=None))
    with pytest.raises(UserError, match="hardware is not known for silent"):
        compare([said, silent])


@pytest.mark.parametrize("text", ["top5", "top5=", "=93", "top5=high", "top5=nan", "top5>93"])
def test_targets_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--target must be like top5=93"):
        published.parse_target(text)
