"""The stand-ins for `cupy` and `cupyx`, found on sys.path in place of the real ones: see `tests.cuda.ptx.plugin`."""
