"""Errors of starting a job, and of collectives."""


class LaunchError(RuntimeError):
    """The job cannot start as it was launched; every rank of a node meets the same error."""


class RankLeftError(RuntimeError):
    """A rank has ended, or has left the job, while this one needs it."""


class CollectiveTimeoutError(TimeoutError):
    """A rank has waited for the others longer than the time-out."""


FOLLOWED = (RankLeftError, CollectiveTimeoutError)  # errors that may be a consequence of another rank's error


def left_early(departed: int, count: int, rank: int, what: str, kind: str = "collectives") -> RankLeftError:
    """The error on `rank`, which waits in `what`: rank `departed` has left after `count` collectives (`kind`)."""
    return RankLeftError(
        f"rank {departed} has left the job after {count} {kind}, while rank {rank} waits in {what}. All ranks "
        f"must make the same calls: look on rank {departed} for an early return, sys.exit or fewer batches (for those "
        "there is DDPSequential.join())"
    )


def late(rank: int, waited: float, what: str) -> CollectiveTimeoutError:
    """The error on `rank`, which has waited `waited` seconds in `what`."""
    return CollectiveTimeoutError(
        f"rank {rank} has waited {waited:.1f} s in {what}; another rank is stalled, or does not make this call. The "
        "limit is the time-out of the communicator, by default PYTAGI_DDP_TIMEOUT or 300 s"
    )


def late_elsewhere(gave_up: int, rank: int, what: str) -> CollectiveTimeoutError:
    """The error on `rank`, which waits in `what`, after rank `gave_up` has waited too long."""
    return CollectiveTimeoutError(f"rank {gave_up} gave up; rank {rank} was waiting in {what}")


def interrupted(rank: int, what: str) -> RankLeftError:
    """The error on `rank`, a thread that waits in `what`, after Ctrl-C has ended its program."""
    return RankLeftError(f"the program was interrupted (Ctrl-C), while rank {rank} was waiting in {what}")
