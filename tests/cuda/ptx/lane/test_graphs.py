"""`pytagi_ddp.cuda.use_graphs = "auto"`: graphs where they give the bits of single launches, and replays elsewhere."""

import warnings

import cupy
import numpy as np
import pytest

from pytagi_ddp import cuda, nn
from pytagi_ddp.kernels.cuda.runtime import graph
from pytagi_ddp.selfcheck.examples import steps_in_a_way

AUTO = 'with use_graphs = "auto"'
NETWORKS = ("residual blocks", "LSTM")  # with running statistics, and with memory that each step moves


@pytest.fixture(autouse=True)
def no_graph_has_failed(monkeypatch):
    monkeypatch.setattr(graph, "_without_graphs", set())


@pytest.fixture
def launched(monkeypatch) -> list:
    """One entry for each graph that is launched."""
    calls, launch = [], cupy.cuda.Graph.launch
    monkeypatch.setattr(cupy.cuda.Graph, "launch", lambda self: (calls.append(1), launch(self)))
    return calls


def assert_same_bits(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(actual[name], expected[name])] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_with_the_same_bits_are_used(name, launched):
    expected = steps_in_a_way("cuda", "walked", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bits(steps_in_a_way("cuda", AUTO, name), expected)
    assert len(launched) == 3 * 3  # of five steps the first is walked, the second recorded; forward, backward, step


def missing_launch(self) -> None:
    for work in self._work[:-1]:
        cupy.cuda.get_current_stream().queue(work)


def launch_that_fails(self) -> None:
    missing_launch(self)
    raise RuntimeError("cudaErrorUnknown: unknown error")


def capture_that_fails(self) -> None:
    raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("owner", "method", "by", "reason"),
    [
        ("Graph", "launch", missing_launch, "arrays have other bits than after single launches"),
        ("Graph", "launch", launch_that_fails, "cudaErrorUnknown"),
        ("Stream", "begin_capture", capture_that_fails, "cudaErrorStreamCaptureUnsupported"),
    ],
)
def test_where_graphs_fail_launches_are_replayed(name, owner, method, by, reason, monkeypatch):
    """With one warning, and no step is done twice or left out."""
    expected = steps_in_a_way("cuda", "walked", name)
    monkeypatch.setattr(getattr(cupy.cuda, owner), method, by)
    with pytest.warns(RuntimeWarning, match=f"cuda:0: no CUDA graphs, .*{reason}") as caught:
        assert_same_bits(steps_in_a_way("cuda", AUTO, name), expected)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bits(steps_in_a_way("cuda", AUTO, name), expected)


def test_bits_are_compared_once_for_each_part_and_batch_size(monkeypatch):
    monkeypatch.setattr(cuda, "use_graphs", "auto")
    compared, compare = [], graph.Graphs._compare
    monkeypatch.setattr(graph.Graphs, "_compare", lambda *a: (compared.append(a[2][0]), compare(*a)))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4), nn.Linear(4, 2))
    net.to_device("cuda")
    for batch, parts in ((4, ["forward", "backward", "step"]), (2, ["forward", "backward"]), (4, []), (2, [])):
        compared.clear()
        for _ in range(4):
            net(np.ones((batch, 3)))
            net.set_delta_z(np.ones(2 * batch), -np.ones(2 * batch))
            net.backward()
            net.step()
        assert compared == parts


@pytest.mark.parametrize("value", ["on", None, 2])
def test_other_values_are_refused(value, monkeypatch):
    net = nn.Sequential(nn.Linear(3, 4))
    net.to_device("cuda")
    monkeypatch.setattr(cuda, "use_graphs", value)
    with pytest.raises(ValueError, match=f'use_graphs must be False, True or "auto", got {value!r}'):
        net(np.ones((2, 3)))
