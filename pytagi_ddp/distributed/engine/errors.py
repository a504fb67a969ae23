"""What starting a job, or a collective in it, raises."""


class LaunchError(RuntimeError):
    """The job cannot start as it was launched; every rank of a node meets the same error."""


class RankLeftError(RuntimeError):
    """A rank has ended, or has left the job, while this one needs it."""


class CollectiveTimeoutError(TimeoutError):
    """A rank has waited for the others longer than the time-out."""
