"""`autotune submit`, `jobs`, `logs` and `cancel`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.algorithms.names import weights_file
from autotune.cli.console import BROKEN, DONE, INTERRUPTED, say
from autotune.cli.given import SubmitArguments
from autotune.cli.jobs import archive
from autotune.cli.jobs.archive import Selection
from autotune.cli.jobs.checks import check_utf8, environment, requirements
from autotune.cli.jobs.submission import Cluster, Job, Submission
from autotune.errors import UserError
from autotune.evaluation import register
from autotune.storage import driver_lock
from autotune.storage.journal import JOURNAL
from autotune.study import factory, recipe_arguments, recipes
from autotune.study.experience import policy_weights
from autotune.study.option import OFF
from autotune.study.options import StudyOptions
from autotune.study.options import options as all_options
from autotune.tracking.uris import check_server, check_uri, has_credentials, is_server, label

_CANCEL_SECONDS = 600.0


def submit(given: SubmitArguments) -> int:
    """Submit the study that `run` with the same flags would run here."""
    selection = archive.select(Path.cwd())
    submission = _submission(given, selection)
    cluster = Cluster(given.address)
    for note in archive.notes(selection):
        say(note)
    name = cluster.submit(submission, selection)
    if given.json:
        document = {"job": name, "study": submission.study, "home": submission.home}
        print(json.dumps({**document, "address": cluster.address}), flush=True)
    say(f"submitted the study {submission.study!r} as job {name}")
    if given.follow:
        return _follow(cluster, name, sys.stderr if given.json else sys.stdout)
    where = f" --address {given.address}" if given.address else ""
    say(f"follow it with: autotune logs {name} --follow{where}")
    return DONE


def show(address: str | None, as_json: bool) -> int:
    """List the jobs that autotune submitted to the cluster."""
    jobs = Cluster(address).jobs()
    if as_json:
        print(json.dumps([asdict(job) for job in jobs]))
        return DONE
    rows = [("JOB", "STATUS", "STUDY", "STARTED", "MINUTES", "KEPT IN"), *map(_row, jobs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).strip())
    return DONE


def logs(name: str, address: str | None, follow: bool) -> int:
    """Print what a job's driver has written; all that it writes, until it ends, with `--follow`."""
    cluster = Cluster(address)
    if follow:
        return _follow(cluster, name, sys.stdout)
    print(cluster.logs(name), end="")
    return DONE


def cancel(name: str, address: str | None) -> int:
    """End a job and wait until its driver has saved the running trials and has exited."""
    cluster = Cluster(address)
    if not cluster.cancel(name):
        say(f"job {name} has ended already ({cluster.job(name).status})")
        return DONE
    if cluster.job(name).status == "PENDING":  # Ray keeps it in mind until then
        say(
            f"job {name} has not begun: it ends as soon as Ray has prepared its environment and "
            "has the resources for its driver, or gives up"
        )
        return DONE
    say(f"asked job {name} to end; its driver saves the running trials at their next milestones")
    try:
        job = cluster.wait(name, _CANCEL_SECONDS)
    except KeyboardInterrupt:
        say(f"job {name} has not ended yet: see `autotune jobs`")
        return INTERRUPTED
    if not job.over:
        say(f"job {name} has not ended within {_CANCEL_SECONDS:g} s; Ray ends it")
        return BROKEN
    say(f"job {name} has ended; submit the study again to go on with it")
    return DONE


def _submission(given: SubmitArguments, selection: Selection) -> Submission:
    """What to submit. Everything that can be checked here is, before anything is sent."""
    options = given.options
    factory.check_named(options)
    if given.register is not None:
        register.check(given.register, options.tracking_uri)
    out = Path(options.out) if options.out is not None else None
    _check_places(options, out)
    cpus, resources = _driver_cpus(given.driver_cpus), _resources(given.driver_resources)
    pip, env = requirements(given.pip), environment(given.env)
    study = _study(given.recipe, options, selection, installs=given.pip is not None)
    for flag, named in (("--pruner", options.pruner), ("--controller", options.controller)):
        _check_sent(flag, str(named or ""), selection)
    for flag, named, file in (
        ("--sampler", options.sampler, weights_file(options.sampler)),
        ("--pruner", options.pruner, policy_weights.file_of_pruner(options.pruner)),
    ):
        if file and not Path(file).is_absolute():
            policy_weights.file_bytes(file)  # that there is such a file, with weights
            _check_file_sent(flag, str(named), file, selection)
    options = replace(options, mirror=options.mirror or out is None)
    if out is not None:
        home = os.path.normpath(out)
        if driver_lock.is_held(out / JOURNAL):
            raise UserError(f"another process is running the study in {out}")
    else:
        home = f"{label(str(options.tracking_uri))} as {study}"
    words = [*_words(given.recipe, options, given.register), "--ray-address", "auto"]
    check_utf8([*words, home, *env.values()])
    return Submission(study, words, home, out, cpus, resources, pip, env)


def _study(recipe: str, options: StudyOptions, selection: Selection, installs: bool = False) -> str:
    """The study's name; the recipe's own where its data is only on the cluster.

    The same where the cluster `installs` what the recipe imports and is not here.

    Raises:
        UserError: the recipe cannot be found or loaded here, or would not be shipped, or one of its
            arguments is a relative path.
    """
    place, _, function = recipe.rpartition(":")
    if place.endswith(".py"):
        _check_below("recipe", recipe, place)
    _check_sent("recipe", recipe, selection)
    try:
        _check_absolute(recipe, options)
        return recipes.load(recipe, options.recipe_arguments).name
    except UserError as error:
        elsewhere = (FileNotFoundError, *([ModuleNotFoundError] if installs else []))
        if not isinstance(error.__cause__, elsewhere):
            raise
        say(f"the recipe is not checked here: {error}")
        return function


def _check_absolute(recipe: str, options: StudyOptions) -> None:
    given = options.recipe_arguments or {}
    values = recipe_arguments.read(recipe, recipes.find(recipe), given)
    for name in recipe_arguments.relative_paths(values, given):
        raise UserError(
            f"--with {name} must be an absolute path on storage that all nodes share but got "
            f"{given[name]!r}"
        )


def _check_sent(what: str, name: str, selection: Selection) -> None:
    """Refuse a function whose file is here and would not be there.

    Raises:
        UserError: its file or module lies in the working directory and is not shipped.
    """
    place = name.rpartition(":")[0]
    base = place if place.endswith(".py") else place.replace(".", "/")
    ways = [base] if place.endswith(".py") else [f"{base}.py", f"{base}/__init__.py"]
    file = next((way for way in ways if place and Path(way).is_file()), None)
    if file is not None:
        _check_file_sent(what, name, file, selection)


def _check_file_sent(what: str, name: str, file: str, selection: Selection) -> None:
    _check_below(what, name, file)
    if Path(os.path.normpath(selection.root / file)) not in selection.files:
        raise UserError(
            f"{what} {name!r}: {file} is left out of what is sent (by .gitignore or .rayignore, as "
            "part of a study folder, as a secret, or behind a link): the job would not find it"
        )


def _check_below(what: str, name: str, file: str) -> None:
    path = Path(os.path.normpath(Path(file).expanduser()))  # `~` and `../HERE` are not there
    inside = path.resolve().is_relative_to(Path.cwd().resolve()) and ".." not in path.parts
    if path.is_absolute() or not inside:
        raise UserError(f"{what} {name!r} must be a path below the working directory to be sent")


def _check_places(options: StudyOptions, out: Path | None) -> None:
    uri = options.tracking_uri
    if uri is not None and uri != "off":
        check_uri(uri)
        if has_credentials(uri):
            raise UserError(
                "--tracking-uri holds a password, which everyone on the cluster could read: give "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to the cluster's nodes"
            )
    if options.mirror:
        check_server(uri)
    elif out is None and not is_server(uri):
        raise UserError(
            "submit needs --out DIR on storage that all nodes share, or the --tracking-uri of an "
            "MLflow server (http://HOST:5000), which then keeps what resume needs"
        )
    sources = [("--from", source) for source in options.sources]
    experience = None if options.experience == OFF else options.experience
    for flag, path in (("--out", out), *sources, ("--experience", experience)):
        if path is not None and not Path(path).is_absolute():
            raise UserError(
                f"{flag} must be an absolute path on storage that all nodes share but got "
                f"{str(path)!r}"
            )


def _words(recipe: str, options: StudyOptions, register: str | None) -> list[str]:
    """The command line of the job's own `autotune run`, without `--out` and `--ray-address`."""
    words = ["run", recipe]
    for option in all_options():
        flag, value = option.flag, getattr(options, option.name)
        if flag is None or option.name in ("out", "ray_address") or value == option.default:
            continue
        if flag.repeated:
            words += [f"{flag.name}={key}={item}" for key, item in value.items()]
        elif flag.several:
            several = value if isinstance(value, tuple) else (value,)
            words += [f"{flag.name}={item}" for item in several]
        else:
            words.append(flag.name if flag.metavar is None else f"{flag.name}={value}")
    return [*words, *([f"--register={register}"] if register is not None else [])]


def _driver_cpus(cpus: float) -> float:
    if not 0 <= cpus < float("inf"):
        raise UserError(f"--driver-cpus must be a number >= 0 but got {cpus:g}")
    return cpus


def _resources(given: str | None) -> dict[str, float]:
    pairs = re.findall(r"([^=,\s]+)=(\d+(?:\.\d+)?)(?:,|$)", given or "")
    if given is not None and ",".join("=".join(pair) for pair in pairs) != given:
        raise UserError(f"--driver-resources must be like head=1,disk=0.5 but got {given!r}")
    amounts = {name: float(amount) for name, amount in pairs}
    if not all(map(math.isfinite, amounts.values())):
        raise UserError(f"--driver-resources must be finite but got {given!r:.80}")
    return amounts


def _follow(cluster: Cluster, name: str, stream: Any) -> int:
    """Write what the job writes; the exit code of its driver."""

    def write(chunk: str) -> None:
        stream.write(chunk)
        stream.flush()

    try:
        job = cluster.follow(name, write)
    except KeyboardInterrupt:
        say(f"job {name} goes on; `autotune cancel {name}` ends it")
        return INTERRUPTED
    if job.status == "STOPPED":
        say(f"job {name} was cancelled; submit the study again to go on with it")
        return INTERRUPTED
    if job.code is None and job.status == "FAILED":
        say(f"job {name} failed: {' '.join(job.message.split()):.500}")
    return BROKEN if job.code is None and job.status != "SUCCEEDED" else job.code or DONE


def _row(job: Job) -> tuple[str, ...]:
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.started)) if job.started else "-"
    lasted = (job.ended or time.time()) - job.started if job.started else 0.0
    return (job.id, job.status, job.study, begun, f"{lasted / 60:.1f}", job.home)
