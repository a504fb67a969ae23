"""The error of the stand-in for CuPy when memory is short."""


class OutOfMemoryError(MemoryError):
    pass
