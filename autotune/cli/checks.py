"""What is checked of a command's options before the recipe is imported, which may take seconds."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from autotune.cli.console import without_password
from autotune.errors import UserError
from autotune.study.options import StudyOptions


def checked(options: StudyOptions, register: str | None = None) -> StudyOptions:
    """The options, whose tracking URI is without a password now.

    Neither torch, Ray, Optuna nor MLflow is imported for it.

    Args:
        register: the name of a registered model, if the best trial is to be one.

    Raises:
        UserError: there is no such sampler, pruner, controller or tracking store, or the study
            folder cannot be written.
    """
    from autotune.evaluation import register as registration
    from autotune.study import factory
    from autotune.tracking.uris import check_server

    factory.check_named(options)
    uri = without_password(options.tracking_uri)
    if options.mirror:
        check_server(uri)
    if register is not None:
        registration.check(register, uri)
    if options.out is not None:
        _check_folder(Path(options.out))
    return replace(options, tracking_uri=uri)


def _check_folder(folder: Path) -> None:
    """Refuse a study folder that can be seen to be none; nothing is made."""
    places = (folder, *folder.absolute().parents)
    nearest = next(place for place in places if os.path.exists(place))
    fault = 0
    if not nearest.is_dir():
        fault = errno.ENOTDIR
    elif not os.access(nearest, os.W_OK | os.X_OK):
        fault = errno.EACCES
    if fault:
        raise UserError(f"cannot write the study folder {folder}: {os.strerror(fault)}")
