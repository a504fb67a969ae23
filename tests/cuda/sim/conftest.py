"""These tests run in a pytest of their own, with NUMBA_ENABLE_CUDASIM=1: see tests/cuda/test_simulator.py."""

import numba

collect_ignore_glob = [] if numba.config.ENABLE_CUDASIM else ["test_*.py"]
