"""These tests run with `-p tests.cuda.ptx.plugin` only; `test_lane.py` sees to that."""

import sys

collect_ignore_glob = [] if "tests.cuda.ptx.plugin" in sys.modules else ["test_*.py"]
