"""`import pytagi` in a process started by "spawn" or "forkserver", which has of its parent nothing but `sys.path`."""

import sys

if __name__ == "pytagi":
    del sys.modules["pytagi"]  # this module; the library itself takes its place

import pytagi_ddp.as_pytagi  # noqa: F401
