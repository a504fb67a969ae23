"""What happens when memory is short."""


class OutOfMemoryError(MemoryError):
    pass
