"""What the documents say is true: their Python runs, their commands exist, their links lead on.

The blocks of a page run in their order and share their names, as they are read. A page's studies
are not started here (`test_get_started.py` starts those of three pages): its trainers take a few
steps instead. A shell block that no test runs says so on its page.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from documents import LANGUAGES, NOT_RUN, ROOT, blocks, commands, links, pages, prose, rows
from jsonschema import validate

import autotune
from autotune.algorithms.pruners.rules import make_pruner
from autotune.algorithms.samplers.optuna_names import NAMES
from autotune.backends.worker.reporting import steps
from autotune.cli import main
from autotune.schedules import Cosine, stages
from autotune.study import recipes

PAGES = pages()
RUN = ("docs/get-started.md", "docs/how-to/results.md")  # by test_get_started.py
MADE = ("README.md", "CONTRIBUTING.md")  # whose shell blocks are make's targets
NEEDS = {
    "docs/how-to/lightning.md": "lightning",
    "docs/how-to/hugging-face.md": "transformers",
    "docs/how-to/library-models.md": "transformers",
}
SLOW_PAGES = {*NEEDS, "docs/cards/memory.md"}  # slow to import, or a training
PYTHON = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
    for page in PAGES
    if blocks(page, "python")
]
SHELL = [page for page in PAGES if blocks(page, "sh", "bash")]
SCHEDULES = "docs/concepts/schedules.md"
ELSEWHERE = re.compile(r'(?:src|href)="(?:https?:)?//[^"]+[.](?:js|css|woff2?)"')
TAGS = re.compile(r'"(autotune\.\w+)"')  # of MLflow's runs, as the code writes them


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language(page: str) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


# --- Python ---------------------------------------------------------------------------------------


def executed(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the Python of a page leaves, run in an empty folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    written = {"lr": Cosine(0.1, 0.0), "batch_size": stages((1, 64), (1, 128))}
    documents = {name: schedule.to_json() for name, schedule in written.items()}
    (folder / "schedules.json").write_text(json.dumps(documents))  # as an export has it
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks(page, "python")):
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        exec(compile(block.text, f"{page}[{number}]", "exec"), names)
    return names


def experiments(names: Mapping[str, Any]) -> dict[str, autotune.Experiment]:
    """The experiments among a page's names, and those that its recipes return."""
    found = {name: value for name, value in names.items() if isinstance(value, autotune.Experiment)}
    for name, value in names.items():
        if inspect.isfunction(value) and not inspect.signature(value).parameters:
            made = value()
            if isinstance(made, autotune.Experiment):
                found[name] = made
    return found


def trains(experiment: autotune.Experiment) -> None:
    """Its trainer takes a point of its space, and soon reports its target's metric."""
    (point,) = experiment.space.sample(1, seed=0)
    run = steps(experiment.train, {**experiment.space.config(point), "seed": 1})
    try:
        for _ in range(3):
            milestone = next(run)
            metrics = milestone.evaluate()
            if milestone.step and experiment.target.metric in metrics:
                break
    finally:
        run.close()
    assert milestone.step > 0
    assert math.isfinite(metrics[experiment.target.metric])


def _register(names: Mapping[str, Any]) -> None:
    model, example = names["train"].model({"width": 4}, [{"model": names["build"](4).state_dict()}])
    assert model(example).shape == (2, 2)


def _existing_script(names: Mapping[str, Any]) -> None:
    names["main"](names["parse"](["--epochs", "1"]))  # it runs as before
    kept = _reported(names["resumable"], epochs=2, resume=None)
    torch.save(kept[1][1], "state.pt")
    resumed = _reported(names["resumable"], epochs=2, resume="state.pt")
    assert [step for step, _ in kept] == [0, 1024, 2048]
    assert [step for step, _ in resumed] == [1024, 2048], "it goes on from the checkpoint"


def _reported(script: Callable[[Any], None], **arguments: Any) -> list[tuple[int, Any]]:
    """The steps of a script's reports, and copies of its states there."""
    args = argparse.Namespace(lr=0.1, seed=1, **arguments)
    run = steps(lambda config: script(args), {"seed": 1})
    return [(milestone.step, copy.deepcopy(milestone.state())) for milestone in run]


def _study_folder(names: Mapping[str, Any]) -> None:
    study = ROOT / "tests" / "storage" / "data" / "searched"
    lines = map(json.loads, (study / "journal.jsonl").read_text().splitlines())
    ended = [e for e in lines if e["event"] == "ended" and e["state"] == "REACHED"]
    assert ended
    assert names["reached"](study) == {e["trial"]: pytest.approx(e["seconds"]) for e in ended}


def _watch(names: Mapping[str, Any]) -> None:
    here = {"backend": "local", "max_concurrent_trials": 1, "tracking_uri": "off"}
    space, said = {"x": autotune.Float(0, 1)}, io.StringIO()
    with contextlib.redirect_stdout(said):
        autotune.tune(names["train"], space, metric="m", trials=1, watch=names["watch"], **here)
    assert said.getvalue() == "trial 0 of 1: COMPLETED\n"


def _pruner(names: Mapping[str, Any]) -> None:
    target = autotune.Target("accuracy", 0.9, limit=60)
    for values, stops in (([0.5] * 10, True), ([0.5] * 9, False), ([0.5] * 9 + [0.6], False)):
        reports = [autotune.Report(i, i, {"accuracy": v}) for i, v in enumerate(values)]
        stop = names["no_progress"](autotune.Trial(0, {}, reports=tuple(reports)), (), target)
        assert (stop is not None) == stops, values


def _controller(names: Mapping[str, Any]) -> None:
    target = autotune.Target("accuracy", 0.9, limit=60)
    reports = tuple(autotune.Report(i, i, {"accuracy": 0.5}) for i in range(5))
    trial = autotune.Trial(0, {}, reports=reports)
    assert names["halve"](trial, (), target) == autotune.Change(lr_factor=0.5)
    changed = autotune.Trial(0, {}, reports=reports, changes=((3, autotune.Change()),))
    assert names["halve"](changed, (), target) is None


ALSO: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "docs/how-to/register-a-model.md": _register,
    "docs/how-to/existing-script.md": _existing_script,
    "docs/concepts/study-folder.md": _study_folder,
    "docs/how-to/watch.md": _watch,
    "docs/cards/pruners.md": _pruner,
    "docs/cards/controllers.md": _controller,
}
"""What else holds for the names of a page."""


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    names = executed(page, tmp_path, monkeypatch)
    for experiment in experiments(names).values():
        if experiment.scaling.num_workers == 1:  # this process is one rank
            trains(experiment)
    ALSO.get(page, lambda names: None)(names)


def test_pages_with_trainers_are_tried() -> None:
    """None of them passes because nothing was found in it."""
    texts = ("".join(b.text for b in blocks(page, "python")) for page in PAGES)
    assert sum("at.Experiment(" in text for text in texts) >= 9


def test_plain_pytorch_needs_ten_lines_and_nothing_heavy(tmp_path: Path) -> None:
    (block,) = (b.text for b in blocks(SCHEDULES, "python") if "import json, torch" in b.text)
    lines = [line for line in block.splitlines() if line.strip()]
    assert sum(not line.startswith(("model =", "optimizer =")) for line in lines) == 10
    imports = "import sys\nfrom autotune.schedules import from_json\n"
    check = "print(sorted({'ray', 'optuna', 'mlflow'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", imports + check], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


# --- commands -------------------------------------------------------------------------------------


def test_there_is_a_block_that_no_test_runs_and_one_that_is_run() -> None:
    found = blocks("docs/get-started.md", "sh")
    assert {block.is_run for block in found} == {True, False}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (*RUN, *MADE)])
def test_a_block_that_no_test_runs_says_so(page: str) -> None:
    for block in blocks(page, "sh", "bash", "yaml", "dockerfile"):
        assert not block.is_run, f"say {NOT_RUN!r} before\n{block.text}"


@pytest.mark.parametrize("page", SHELL)
def test_shell_blocks_are_sound_and_their_commands_exist(page: str) -> None:
    for block in blocks(page, "sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}{block.text}"
        for words in commands(block.text):
            options = main._parse(words)  # the real parser: unknown commands and options raise
            _values_exist(vars(options))


def _values_exist(options: Mapping[str, Any]) -> None:
    """Recipes, samplers and pruners that a command names are there."""
    recipe = options.get("recipe") or ""
    if recipe.startswith("search_spaces."):
        recipes.find(recipe)
    assert options.get("sampler", "auto") in NAMES
    if options.get("pruner") and ":" not in options["pruner"]:
        make_pruner(options["pruner"])


@pytest.mark.parametrize("page", MADE)
def test_makes_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks(page, "sh"):
        for line in block.text.splitlines():
            made = re.match(r"make ([\w-]+)", line)
            assert made or (ROOT / line.split()[0]).is_file(), line
            if made:
                assert f"\n{made[1]}:" in makefile, line


def test_the_manifest_is_one_of_kuberay() -> None:
    """By the fields of KubeRay's own schema of a RayCluster, as far as the manifest uses them."""
    (block,) = blocks("docs/how-to/kuberay-slurm.md", "yaml")
    schema = json.loads((ROOT / "tests/support/raycluster_schema.json").read_text())
    manifest = yaml.safe_load(block.text)
    validate(manifest, schema)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"ray=={manifest['spec']['rayVersion']}\n" in constraints


def test_the_commands_of_the_reference_are_all() -> None:
    cells = " ".join(row[0] for row in rows("docs/reference/command-line.md", "command"))
    assert set(re.findall(r"`([a-z-]+)", cells)) == set(main.COMMANDS)


def test_the_options_of_run_are_all() -> None:
    cells = [row[0] for row in rows("docs/reference/command-line.md", "option")]
    flags = [flag[0] for flag in main.COMMANDS["run"][2] if flag[0].startswith("--")]
    assert sorted(re.match(r"`(--[\w-]+)", cell)[1] for cell in cells) == sorted(flags)  # type: ignore[index]


# --- names and links ------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/python.md").read_text()
    documented = set(re.findall(r"^::: autotune\.(\w+)$", text, re.MULTILINE))
    modules = {name for name in autotune.__all__ if inspect.ismodule(getattr(autotune, name))}
    assert documented == set(autotune.__all__) - modules


@pytest.mark.parametrize("page", [*PAGES, "benchmarks/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in links(page):
        assert ((ROOT / page).parent / link.partition("#")[0]).exists(), link


def test_documents_that_the_code_names_exist() -> None:
    folders = ("autotune", "benchmarks", "dashboards", "deploy", "search_spaces", "trainers")
    code = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".yaml")]
    named = {name for p in code for name in re.findall(r"docs/[\w/-]+\.md", p.read_text())}
    assert named
    assert all((ROOT / name).is_file() for name in named), named


@pytest.mark.parametrize("page", PAGES)
def test_files_and_modules_that_are_named_exist(page: str) -> None:
    code = "".join(path.read_text() for path in (ROOT / "autotune/tracking").rglob("*.py"))
    tags = set(TAGS.findall(code))
    for word in set(re.findall(r"`([^`\s]+)`", prose(page))) - tags:
        if re.fullmatch(r"(autotune|benchmarks|docs|examples|tests|trainers)/[\w./-]+\.\w+", word):
            assert (ROOT / word).is_file(), word
        name = re.match(r"((?:autotune|search_spaces|trainers)(?:\.\w+)+)(?![\w=])", word)
        if name and not (ROOT / word).exists():
            _resolved(name[1])


def _resolved(name: str) -> Any:
    """The object of a dotted name."""
    module, rest = name, []
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            assert module, f"{name} does not exist"
            rest.insert(0, last)
    for attribute in rest:
        assert hasattr(found, attribute), f"{name} does not exist"
        found = getattr(found, attribute)
    return found


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    site = ["--site-dir", str(tmp_path / "site")]
    done = subprocess.run([*build, *site], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    html = (tmp_path / "site" / "reference" / "command-line.html").read_text()
    assert "--mix-hardware" in html
    for path in (tmp_path / "site").rglob("*.html"):
        assert not ELSEWHERE.search(path.read_text()), f"{path.name} loads from elsewhere"
