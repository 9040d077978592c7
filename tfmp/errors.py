"""Errors and warnings of tfmp. Each message names the thing, shows the value and gives the remedy."""

from __future__ import annotations


class TfmpError(Exception):
    """Base class of every error that tfmp raises on purpose."""


class SettingsError(TfmpError, ValueError):
    """A setting (argument or environment variable) has a value that tfmp cannot use."""


class GraphError(TfmpError):
    """A graph is malformed or holds something that tfmp cannot read (an unknown op, a missing input)."""


class RewriteError(TfmpError):
    """A rewritten graph did not pass verification, or a plan could not be carried out. The input graph is unchanged."""


class FileError(TfmpError):
    """A file that was to be converted cannot be: it is not there, damaged, or not of a kind that tfmp converts."""


class TargetError(TfmpError):
    """A converted file cannot be put where it was to go. Nothing that was there is lost."""


class CheckError(TfmpError):
    """A converted file cannot be compared with the original: the data do not fit, or the original itself does not run."""


class MixedPrecisionWarning(UserWarning):
    """Mixed precision did not happen, or happened in a way that the user should know about."""
