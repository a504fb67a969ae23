"""A pretrained start is a head start."""

from importlib.util import find_spec

import pytest

from benchmarks.quality import pretrained


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_one_line_says_so():
    with pytest.raises(SystemExit, match="needs PyTorch, which is not installed: pip install torch"):
        pretrained.main(["--samples", "10"])


def test_it_is_better_than_one_from_scratch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = pretrained.main(["--samples", "2000", "--few", "100", "--epochs", "3"])
    scratch, start = found["scratch"], found[0.001]
    assert start[0] < 0.5 * scratch[0]  # errors before the first step
    assert start[1] < 0.5 * scratch[1]
    assert start[3] > scratch[3]
