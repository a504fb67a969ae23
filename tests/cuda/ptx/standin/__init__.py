"""`cupy` and `cupyx` of the PTX lane, found on sys.path in place of the real ones: see `tests.cuda.ptx.plugin`."""
