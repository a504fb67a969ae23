"""There is no NCCL."""

available = False


def get_version() -> int:
    return 0
