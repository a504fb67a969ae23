"""Steps that are queued as CUDA graphs, `pytagi_ddp.cuda.use_graphs`."""

import cupy
import numpy as np
import pytest

from pytagi_ddp import cuda, nn
from pytagi_ddp.selfcheck.examples import steps_in_a_way


@pytest.mark.parametrize("name", ["residual blocks", "LSTM"])  # running statistics; memory that each step moves
def test_graphs_give_the_bits_of_single_launches(name, monkeypatch):
    launched, launch = [], cupy.cuda.Graph.launch
    monkeypatch.setattr(cupy.cuda.Graph, "launch", lambda self: (launched.append(1), launch(self)))
    expected = steps_in_a_way("cuda", "walked", name)
    actual = steps_in_a_way("cuda", "as CUDA graphs", name)
    assert actual.keys() == expected.keys()
    assert [key for key in expected if not np.array_equal(actual[key], expected[key])] == []
    assert len(launched) == 3 * 3  # of five steps the first is walked, the second recorded; forward, backward, step


def test_a_graph_that_cannot_be_made_is_an_error(monkeypatch):
    def capture_that_fails(self) -> None:
        raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted")

    monkeypatch.setattr(cupy.cuda.Stream, "begin_capture", capture_that_fails)
    with pytest.raises(RuntimeError, match="cudaErrorStreamCaptureUnsupported"):
        steps_in_a_way("cuda", "as CUDA graphs")


@pytest.mark.parametrize("value", ["on", None, 2])
def test_other_values_are_refused(value, monkeypatch):
    net = nn.Sequential(nn.Linear(3, 4))
    net.to_device("cuda")
    monkeypatch.setattr(cuda, "use_graphs", value)
    with pytest.raises(ValueError, match=f"use_graphs must be True or False, got {value!r}"):
        net(np.ones((2, 3)))
