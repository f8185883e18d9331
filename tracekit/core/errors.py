"""Errors a user can meet, each with the exit code of the command line.

Only ``cli`` catches :class:`TracekitError`; everything else lets it pass. A
message is one line that says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class TracekitError(Exception):
    """Base of all errors that are the input's or the user's, not a bug of tracekit."""

    exit_code: ClassVar[int] = 1


class UsageError(TracekitError):
    """The command or call asks for something that makes no sense."""

    exit_code = 2


class InputError(TracekitError):
    """A file or folder cannot be read, or contradicts itself."""

    exit_code = 3


class NotATraceError(InputError):
    """A file can be read but is no trace at all."""


class MissingDataError(TracekitError):
    """The question cannot be answered from this input; the message says what to record."""

    exit_code = 4


class RankFailedError(TracekitError):
    """A rank of a profiled job crashed, hung or was killed."""

    exit_code = 5
