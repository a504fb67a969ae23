"""The section that measures a start."""

import pytest

from benchmarks import startup


@pytest.mark.slow
@pytest.mark.mpi
def test_a_start_is_measured_in_parts(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    found = [(ranks, startup._first_step("mlp-16-b8", ranks, 1, str(tmp_path))) for ranks in (1, 1, 2)]
    for ranks, parts in found:
        assert tuple(parts) == startup.PARTS
        assert min(parts.values()) > 0
        until_then = [parts[name] for name in ("import", "build", "join", "first step")]
        # Of two ranks, one may import for longer and the other wait for it: only of one do the parts add up.
        assert (sum(until_then) if ranks == 1 else max(until_then)) < parts["total"]
    (_, empty), (_, warm), _ = found
    assert warm["first step"] < empty["first step"]
