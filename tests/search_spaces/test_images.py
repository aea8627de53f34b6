"""`images:folder`: what it makes of a folder, what it refuses, and from images to a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pictures
import pytest
import torch
from PIL import Image
from torch.nn.functional import nll_loss

import autotune as at
from autotune.evaluation.register import BEST_MODEL
from autotune.study import recipes
from search_spaces.images import folder
from trainers import classifier
from trainers.data.image_files import parts
from trainers.data.images import read_images
from trainers.image import _task as image_task
from trainers.image import read_settings, train
from trainers.parallel.ranks import process_group

RECIPE = "search_spaces.images:folder"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return pictures.write(tmp_path / "My pets", {"cat": 20, "dog": 20, "emu": 10})


def corners(experiment: at.Experiment) -> None:
    read_settings(experiment.space.complete(experiment.baseline or {})[0])
    for point in experiment.space.sample(30, seed=1):
        read_settings(experiment.space.config(point))


def test_a_folder_becomes_an_experiment(data: Path) -> None:
    made = folder(data, model="resnet8", seconds=30)
    assert made.name == "images-My-pets-resnet8"
    assert (made.target.metric, made.target.value, made.target.limit) == ("val_accuracy", None, 30)
    config, point = made.space.complete(made.baseline or {})
    assert point is not None
    assert (config["image_size"], config["milestone"], config["batch_size"]) == (16, 40, 4)
    corners(made)
    large = pictures.write(data.parent / "large", {"cat": 2, "dog": 2}, side=200)
    assert folder(large).space.entries["image_size"] == at.Fixed(128)
    assert folder(large, image_size=160).space.entries["val_image_size"] == at.Fixed(160)
    corners(folder(large, model="resnet50"))


@pytest.mark.slow
def test_fine_tuning_has_smaller_rates_and_the_file_of_an_earlier_study(data: Path) -> None:
    """With what is kept of the images, and the name in any case."""
    made = folder(data, model="ResNet8")
    config = made.space.complete(made.baseline or {})[0]
    trainer = train({**config, "loader_workers": 0, "seed": 1, "milestone": 8, "width": 4})
    torch.save(train.saved(config | {"width": 4}, [next(trainer).state()]), data.parent / "m.pt")
    trainer.close()
    tuned = folder(data, model="resnet8", weights=data.parent / "m.pt", cache="decoded",
                   validation="beside")  # fmt: skip
    assert tuned.baseline["lr.peak"] < made.baseline["lr.peak"]
    corners(tuned)
    config = tuned.space.complete(tuned.baseline or {})[0]
    config |= {"loader_workers": 0, "seed": 1, "milestone": 8, "width": 4}
    trainer = train(config)
    validated = next(trainer).evaluate().result()
    trainer.close()
    trainer = train({**config, "validation": "inline"})
    inline = next(trainer).evaluate()
    trainer.close()
    assert {k: validated[k] for k in ("val_accuracy", "val_loss")} == {
        k: inline[k] for k in ("val_accuracy", "val_loss")
    }


def test_what_is_in_memory_anyway_is_not_kept_again(tmp_path: Path) -> None:
    pictures.write_cifar10(tmp_path)
    with pytest.raises(at.UserError, match="cache must be none for cifar10, which is in memory"):
        folder(tmp_path / "cifar10", cache="memory")


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_published_files_become_one_too(name: str, tmp_path: Path) -> None:
    getattr(pictures, f"write_{name}")(tmp_path)
    experiment = folder(tmp_path / name, model="resnet8")
    config = experiment.space.complete(experiment.baseline or {})[0]
    assert config["data"] == name
    corners(experiment)
    trainer = train({**config, "width": 2, "seed": 1})
    next(trainer)
    saved = train.saved(config | {"width": 2}, [next(trainer).state()])
    trainer.close()
    assert len(saved["classes"]) == 10


def test_what_cannot_be_used_is_one_line_before_anything_is_spent(
    data: Path, tmp_path: Path
) -> None:
    def says(**given: Any) -> str:
        texts = {name: str(value) for name, value in {"data": data, **given}.items()}
        with pytest.raises(at.UserError) as caught:
            recipes.load(RECIPE, texts)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert says(data=tmp_path / "no").endswith(f"data: there is no folder {tmp_path / 'no'}")
    with pytest.raises(at.UserError) as caught:
        recipes.load(RECIPE, {"data": str(tmp_path / "no")})
    assert isinstance(caught.value.__cause__, FileNotFoundError)  # `submit` goes on: it is there
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'} holds no images; they belong" in says(data=tmp_path / "empty")
    (tmp_path / "pets.zip").write_text("")
    assert "python -m trainers.convert" in says(data=tmp_path / "pets.zip")
    one = pictures.write(tmp_path / "one", {"cat": 5})
    assert "at least two classes are needed" in says(data=one)
    assert "unknown model 'resnet9'; did you mean 'resnet8'?" in says(model="resnet9")
    assert "or timm:NAME, torchvision:NAME" in says(model="resnet9")
    assert "model must be one of mlp, resnet8, resnet18" in says(model="tim:resnet18")
    assert f"weights: there is no file {tmp_path / 'no.pt'}" in says(weights=tmp_path / "no.pt")
    assert "unknown cache 'disc'" in says(cache="disc")
    assert "seconds must be more than 0 but got 0" in says(seconds=0)
    assert "val_share must be a share between 0 and 1 but got 1" in says(val_share=1)
    assert "image_size must be at least 4 for resnet8" in says(image_size=2, model="resnet8")
    (data / "cat" / "0.png").write_text("no image")
    assert f"{data / 'cat' / '0.png'} cannot be read as an image" in says()


def test_the_file_of_a_model_classifies_images(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As accurately as it was when it was trained."""
    made = folder(data, model="resnet8", image_size=16)
    config = made.space.complete(made.baseline or {})[0]
    config |= {"loader_workers": 0, "augment": "none", "seed": 1, "milestone": 240, "width": 4}
    config |= {"batch_size": 8, "lr": 0.1}
    trainer = train(config)
    next(trainer)
    milestone = next(trainer)
    accuracy, states = milestone.evaluate()["val_accuracy"], [milestone.state()]
    trainer.close()
    assert accuracy > 0.8
    torch.save(train.saved(config, states), tmp_path / "best_model.pt")
    found = classifier.load(tmp_path / "best_model.pt")
    assert found.classes == ("cat", "dog", "emu")
    val = parts(data, 0.2)[1]
    rows = found.probabilities([Image.open(path) for path in val.paths])
    right = (rows.argmax(1) == torch.tensor(val.labels)).float().mean()
    assert float(right) == pytest.approx(accuracy)
    image = str(data / "emu" / "0.png")
    assert classifier.main([str(tmp_path / "best_model.pt"), image]) == 0
    assert capsys.readouterr().out.split("\t")[:2] == [image, "emu"]
    (tmp_path / "other.pt").write_text("nothing")
    assert classifier.main([str(tmp_path / "other.pt"), image]) == 2
    assert "autotune: " in (said := capsys.readouterr().err)
    assert "other.pt holds no classifier: " in said
    (tmp_path / "broken.png").write_bytes(Path(image).read_bytes()[:60])
    for wrong in ("no.png", "broken.png", "other.pt"):
        given = [str(tmp_path / "best_model.pt"), image, str(tmp_path / wrong)]
        assert classifier.main(given) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"autotune: {tmp_path / wrong} cannot be read")
        assert said.count("\n") == 1
    assert classifier.main([str(tmp_path / "no.pt"), image]) == 2
    missing = f"autotune: {tmp_path / 'no.pt'} cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == missing
    for words, code in ((["--help"], 0), ([], 2)):
        with pytest.raises(SystemExit) as ended:
            classifier.main(words)
        assert ended.value.code == code
    assert "the best_model.pt of a study" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("side", "suffix", "image_size"), [(16, "png", 16), (24, "png", 16), (100, "jpg", 16)]
)
def test_the_classifier_makes_of_images_what_validation_made(
    side: int, suffix: str, image_size: int, tmp_path: Path
) -> None:
    """Images of the model's own size, too: some of 16x16 pixels, others of 16x17 or 16x18."""
    root = pictures.write(tmp_path / "pets", {"cat": 10, "dog": 10}, side=side, suffix=suffix)
    made = folder(root, model="resnet8", image_size=image_size)
    config = made.space.complete(made.baseline or {})[0] | {"loader_workers": 0, "width": 2}
    files = parts(root, 0.2)[1].paths
    assert any(Image.open(path).size == (16, 16) for path in files) == (side == image_size)
    validates_alike(config, [Image.open(path) for path in files], tmp_path)


@pytest.mark.parametrize("val_image_size", [None, 16])
@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_the_classifier_makes_of_published_files_what_validation_made(
    name: str, val_image_size: int | None, tmp_path: Path
) -> None:
    getattr(pictures, f"write_{name}")(tmp_path)
    config = {"data": name, "data_dir": str(tmp_path), "model": "resnet8", "width": 2}
    config |= {"val_image_size": val_image_size, "lr": 0.1}
    images = read_images(name, str(tmp_path), torch.device("cpu")).val
    rows = images.permute(0, 2, 3, 1).squeeze(-1).numpy()
    validates_alike(config, [Image.fromarray(row) for row in rows], tmp_path)


def validates_alike(config: dict[str, Any], images: list[Image.Image], folder: Path) -> None:
    """Input, probabilities and accuracy of the saved classifier are those of the evaluation."""
    config = {name: value for name, value in config.items() if value is not None}
    config |= {"batch_size": 4, "augment": "none", "seed": 1, "milestone": 20}
    trainer = train(config)
    next(trainer)
    milestone = next(trainer)
    values, state = milestone.evaluate(), milestone.state()
    torch.save(train.saved(config, [state]), folder / "best_model.pt")
    trainer.close()
    found = classifier.load(folder / "best_model.pt")
    with process_group() as ranks:
        task = image_task(read_settings(config))
        stream = task.stream(lambda seen: (4, 16), ranks)
        batches = list(stream.validation())
        stream.close()
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    assert torch.equal(torch.stack([found.pixels(image) for image in images]), x)
    made = found.probabilities(images)
    right = float((made.argmax(1) == y).float().mean())
    assert right == pytest.approx(values["val_accuracy"])
    assert float(nll_loss(made.log(), y)) == pytest.approx(values["val_loss"], rel=1e-4)


def test_a_trainer_without_files_writes_none(data: Path) -> None:
    config = {"data": "synthetic", "model": "mlp", "lr": 0.1}
    assert train.saved(config, []) is None


@pytest.mark.slow
def test_from_images_to_a_model(
    data: Path,
    tmp_path: Path,
    with_store: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from autotune.cli import main

    study = with_store(tmp_path / "study")
    given = ["--with", f"data={data}", "--with", "model=resnet8", "--with", "seconds=2"]
    here = ["--backend", "local", "--max-concurrent-trials", "1"]  # no process has to start
    where = ["--out", str(study), "--trials", "2", "--json", "--register", "pets"]
    assert main.main(["run", RECIPE, *given, *where, *here]) == main.DONE
    out, err = capsys.readouterr()
    best = json.loads(out)["best"]
    assert f"wrote the best model to {study / BEST_MODEL}" in err
    assert best["best_val_accuracy"] > 0.4
    assert "as models:/pets/1" in err
    assert len(list((study / "artifacts").rglob("best_model.pt"))) == 1
    found = classifier.load(study / BEST_MODEL)
    assert found.classes == ("cat", "dog", "emu")
    (study / BEST_MODEL).unlink()
    again = ["confirm", str(study), "--repeats", "1", "--top", "1", "--tracking-uri", "off"]
    assert main.main(again) == main.DONE
    assert (study / BEST_MODEL).exists()
    shutil.rmtree(study / "checkpoints")
    again[3] = "2"
    assert main.main(again) == main.DONE
    assert "no best_model.pt is written: the checkpoint of the best" in capsys.readouterr().err
