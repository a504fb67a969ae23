"""An emulator of a GPU, see `README.md`. Other folders import `tests.cuda.ptx.emulator` alone."""
