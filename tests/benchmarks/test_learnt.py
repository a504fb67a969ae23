"""Steps of a network that has learnt are timed."""

import re

from benchmarks import learnt
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads


def test_times_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(learnt, "IMAGES", 64)
    before = get_threads()
    try:
        learnt.main(["--network", "mlp", "--steps", "1"])
    finally:
        set_threads(before)
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mlp: a step .* [mu]s at the start, .* [mu]s at the end", line)
