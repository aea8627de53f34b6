"""Find the configuration and schedules that reach a target accuracy soonest.

`autotune run RECIPE` runs a study; the other commands use its folder.

Exit codes: 0 done; 2 wrong input (one line on stderr); 3 done, but no trial reached the target; 4
the study could not go on; 130 interrupted, resumable.
"""
# PYTHON_ARGCOMPLETE_OK: for shells that complete all such commands

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NoReturn

from autotune.cli import arguments, completion
from autotune.cli import given as values
from autotune.cli.console import BROKEN, DONE, INTERRUPTED, USER, say
from autotune.errors import StudyError, UserError, unknown


class _Parser(argparse.ArgumentParser):
    """Argparse, with one clear line for a mistake."""

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if choice:
            message = unknown("command", choice[1], COMMANDS)
        raise UserError(message)


class _Version(argparse.Action):
    """Print the version, which nothing else looks up."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from autotune.study.versions import version_of

        print(f"autotune {version_of('autotune') or 'unknown'}")
        parser.exit()


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a path may be no UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        given = _parse(words)
        function: Callable[[argparse.Namespace], int] = given.function
        return function(given)
    except UserError as error:
        say(f"autotune: {error}")
        return USER
    except StudyError as error:
        say(f"autotune: the study could not go on: {error}")
        return BROKEN
    except KeyboardInterrupt:
        say("autotune: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    if words is None:
        completion.answer(parser)
    given, extra = parser.parse_known_args(words)
    if hasattr(given, "names") and not any(word.startswith("-") or not word for word in extra):
        given.names, extra = [*given.names, *extra], []  # those after an option
    if extra:
        known = [word for row in COMMANDS[given.command][2] for word in row[0].split()]
        raise UserError(unknown("argument", extra[0], [w for w in known if w.startswith("-")]))
    return given


def _parser() -> _Parser:
    parser = _Parser(
        prog="autotune",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, (function, summary, rows) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for name_or_flags, settings in rows:
            sub.add_argument(*name_or_flags.split(), **arguments.filled(settings))
        sub.set_defaults(function=function)
    return parser


# --- commands -------------------------------------------------------------------------------------


def run_command(given: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.run(values.taken(values.RunArguments, given))


def try_command(given: argparse.Namespace) -> int:
    from autotune.cli import try_command as trying

    return trying.run(values.taken(values.TryArguments, given))


def resume_command(given: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.resume(values.taken(values.ResumeArguments, given))


def confirm_command(given: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.confirm(values.taken(values.ConfirmArguments, given))


def replay_command(given: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.replay(values.taken(values.ReplayArguments, given))


def list_command(given: argparse.Namespace) -> int:
    from autotune.cli import listings

    return listings.studies(given.folder, given.json)


def trials_command(given: argparse.Namespace) -> int:
    from autotune.cli import listings

    return listings.trials(given.folder, given.csv, given.json)


def status_command(given: argparse.Namespace) -> int:
    from autotune.cli import folder_commands

    return folder_commands.status(given.folder, given.json)


def best_command(given: argparse.Namespace) -> int:
    from autotune.cli import folder_commands

    return folder_commands.best(given.folder, given.json)


def export_command(given: argparse.Namespace) -> int:
    from autotune.cli import folder_commands

    return folder_commands.export(given.folder, given.to, given.trial, given.optuna)


def compare_command(given: argparse.Namespace) -> int:
    from autotune.cli import compare

    compare.run(given)
    return DONE


def scale_command(given: argparse.Namespace) -> int:
    from autotune.cli import scale

    return scale.run(given.folder, given.also, given.workers, given.json)


def report_command(given: argparse.Namespace) -> int:
    from autotune.storage.journal import REPORT
    from dashboards.report import write_study

    file = given.to if given.to is not None else given.folder / REPORT
    write_study(given.folder, file)
    say(f"wrote {file}")
    return DONE


def experience_command(given: argparse.Namespace) -> int:
    from autotune.cli import experience_commands

    return experience_commands.run(values.taken(values.ExperienceArguments, given))


def ui_command(given: argparse.Namespace) -> int:
    from autotune.evaluation import studies

    alone = studies.is_study(given.folder)
    if not alone and given.folder.is_dir():
        from autotune.cli import studies_server

        return studies_server.serve(
            given.folder, given.host or studies_server.HOST, given.port, say
        )
    if given.host is not None or given.port is not None:
        raise UserError(
            f"--host and --port are for a folder of studies, which {given.folder} is not"
        )
    from autotune.cli import mlflow_ui

    return mlflow_ui.serve(given.folder, say)


def submit_command(given: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.submit(values.taken(values.SubmitArguments, given))


def jobs_command(given: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.show(given.address, given.json)


def logs_command(given: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.logs(given.job, given.address, given.follow)


def cancel_command(given: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.cancel(given.job, given.address)


def train_policy_command(given: argparse.Namespace) -> int:
    from autotune.cli import train_policy

    names = [field.name for field in fields(values.TrainPolicyArguments)]
    about = {name: getattr(given, name) for name in names}
    return train_policy.run(values.TrainPolicyArguments(**about))


def doctor_command(given: argparse.Namespace) -> int:
    from autotune.cli import doctor

    checks = doctor.checks()
    if given.json:
        print(json.dumps([c.__dict__ for c in checks]))
    else:
        for check in checks:
            print(check)
    return DONE if all(c.ok for c in checks) else BROKEN


Command = tuple[Callable[[argparse.Namespace], int], str, list[arguments.Row]]
COMMANDS: dict[str, Command] = {
    "run": (
        run_command,
        "search the configuration that reaches a recipe's target soonest",
        arguments.RUN,
    ),
    "try": (
        try_command,
        "train a recipe's baseline for two milestones here, and check what a study needs",
        arguments.TRY,
    ),
    "resume": (
        resume_command,
        "go on with a study, or bring its MLflow runs up to date",
        arguments.RESUME,
    ),
    "list": (list_command, "one line for each study of a folder", arguments.LIST),
    "status": (status_command, "how a study stands", [arguments.FOLDER, arguments.JSON]),
    "trials": (trials_command, "all trials of a study, as a table or as CSV", arguments.TRIALS),
    "best": (best_command, "the fastest trial's configuration", [arguments.FOLDER, arguments.JSON]),
    "confirm": (
        confirm_command,
        "run the fastest configurations and the baseline again on fresh seeds, each alone",
        arguments.CONFIRM,
    ),
    "export": (
        export_command,
        "write a trial as a folder that trains alone, or a study into an Optuna storage",
        arguments.EXPORT,
    ),
    "replay": (
        replay_command,
        "train an exported trial again, compare its losses and measure its time",
        arguments.REPLAY,
    ),
    "compare": (
        compare_command,
        "compare times to the target: studies, trials, replays, published and MLflow runs",
        arguments.COMPARE,
    ),
    "scale": (
        scale_command,
        "predict batch size, time to target and cost on other numbers of workers",
        arguments.SCALE,
    ),
    "report": (report_command, "write a study's report as one HTML file", arguments.REPORT),
    "ui": (
        ui_command,
        "open MLflow's UI on a study, or one page of all studies of a folder",
        arguments.UI,
    ),
    "experience": (
        experience_command,
        "list, add, remove or export the summaries of studies from which new ones begin",
        arguments.EXPERIENCE,
    ),
    "train-policy": (
        train_policy_command,
        "train the sampler and the pruner policy over simulated studies",
        arguments.TRAIN_POLICY,
    ),
    "doctor": (
        doctor_command,
        "check this machine: torch, Ray, MLflow, cores, GPUs",
        [arguments.JSON],
    ),
    "submit": (submit_command, "run a study as a job of a Ray cluster", arguments.SUBMIT),
    "jobs": (
        jobs_command,
        "list the studies submitted to a Ray cluster",
        [arguments.ADDRESS, arguments.JSON],
    ),
    "logs": (logs_command, "print a job's output", arguments.LOGS),
    "cancel": (
        cancel_command,
        "end a job: its driver saves the running trials, and the study can be resumed",
        arguments.CANCEL,
    ),
}
