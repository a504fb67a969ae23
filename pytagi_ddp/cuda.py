"""What the machine offers in GPUs. This version computes on the CPU only, so the answers are all "nothing"."""


def is_available() -> bool:
    """Whether networks can move to a GPU: not in this version."""
    return False


def is_nccl_available() -> bool:
    """Whether ranks can communicate by NCCL: not in this version."""
    return False


def get_device_count() -> int:
    """GPUs that this library can use."""
    return 0


def is_device_available(device_index: int) -> bool:
    """Whether GPU `device_index` can be used."""
    return False


def get_current_device() -> int:
    """Index of the GPU in use; -1 where there is none."""
    return -1


def set_device(device_index: int) -> bool:
    """Makes GPU `device_index` the current one; returns whether that worked."""
    return False


def get_device_properties(device_index: int) -> str:
    """A line on GPU `device_index`.

    Raises:
        RuntimeError: there is no such GPU.
    """
    raise RuntimeError(f"no GPU {device_index}: this version of pytagi_ddp computes on the CPU")


def get_device_memory(device_index: int) -> tuple[int, int]:
    """(total, free) bytes of GPU `device_index`.

    Raises:
        RuntimeError: there is no such GPU.
    """
    raise RuntimeError(f"no GPU {device_index}: this version of pytagi_ddp computes on the CPU")
