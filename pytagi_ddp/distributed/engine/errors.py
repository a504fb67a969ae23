"""Time limits of ranks, and the errors of starting a job and of collectives."""

from __future__ import annotations

import os

TIMEOUT = 300.0  # in a collective
EXIT_TIMEOUT = 3600.0  # at the end of the program, for ranks that are still computing


class LaunchError(RuntimeError):
    """The job cannot start as it was launched; every rank of a node raises the same error."""


class RankLeftError(RuntimeError):
    """A rank that this one waits for has ended, or has left the job."""


class CollectiveTimeoutError(TimeoutError):
    """A rank has waited for the others longer than the time-out."""


FOLLOWED = (RankLeftError, CollectiveTimeoutError)  # errors that may be a consequence of another rank's error


START = "start of MPI"


def late(rank: int, waited: float, what: str) -> CollectiveTimeoutError:
    """The error on `rank`, which has waited `waited` seconds in `what`."""
    first = " (the first use is collective: call pytagi_ddp.distributed.initialize() on all ranks of the job)"
    return CollectiveTimeoutError(
        f"rank {rank} has waited {waited:.1f} s in {what}; another rank is stalled, or does not make this call"
        f"{first if what.startswith(START) else ''}. The limit is the time-out of the communicator, by default "
        "PYTAGI_DDP_TIMEOUT or 300 s"
    )


def time_limit(variable: str, default: float, value: float | None = None) -> float:
    """Seconds: `value`, or the environment variable, or the default; ValueError unless above 0."""
    text, source = (os.environ.get(variable, default), variable) if value is None else (value, "timeout")
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not limit > 0.0:
        raise ValueError(f"{source} must be a number of seconds above 0, got {text!r}")
    return limit
