"""The errors that autotune raises on purpose."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of the user's, told in one line; the command line exits with 2."""


class StudyError(RuntimeError):
    """The study could not go on (cluster, disk, every trial fails); exit code 4, resumable."""
