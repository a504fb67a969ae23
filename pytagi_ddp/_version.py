"""The version of this library, which is set in pyproject.toml."""

from functools import cache


@cache
def version() -> str:
    """The version that is installed; "0+unknown" for a source tree that is not."""
    from importlib import metadata  # here: 16 ms

    try:
        return metadata.version("pytagi-ddp")
    except metadata.PackageNotFoundError:
        return "0+unknown"
