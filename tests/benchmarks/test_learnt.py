"""Steps of a network that has learnt are timed, and its subnormal numbers counted."""

import numpy as np

from benchmarks import learnt
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads


def test_times_and_a_share_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(learnt, "IMAGES", 64)
    before = get_threads()
    try:
        learnt.main(["--network", "mlp", "--steps", "1"])
    finally:
        set_threads(before)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("mlp: a step ") and line.endswith(" 0.00% subnormal")


def test_the_share_is_that_of_subnormal_numbers(monkeypatch):
    net = learnt.NETWORKS["mlp"][0]()
    x, labels = learnt.batches(28)
    assert x.shape[1:] == (1, 28, 28) and abs(x.mean()) < 1e-3
    learnt.learn(net, x[:4], labels[:4], 0.1)
    assert learnt.subnormal(net) == 0
    buffers = [b for leaf in net.arena.leaves for b in leaf._buffers.values() if b.dtype == np.float32]
    buffers[0].reshape(-1)[:3] = 1e-40, 0, 1e-30
    assert learnt.subnormal(net) == 1 / sum(b.size for b in buffers)
