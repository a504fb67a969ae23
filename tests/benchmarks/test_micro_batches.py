"""The time of micro-batches by stage."""

from benchmarks.micro_batches import cut, main


def test_every_stage_and_size_is_timed(capsys):
    times = main(["--model", "resnet8", "--stages", "3", "--rounds", "1", "--sizes", "1", "2"])
    assert list(times) == [(stage, size) for stage in range(3) for size in (1, 2)]
    assert min(times.values()) > 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("resnet8, 3 stages, ms per image")


def test_stages_are_the_whole_network():
    parts = cut("resnet8", 3)
    assert sum(part.num_parameters for part in parts) == 85_787
    assert next(key for key, _ in parts[0].named_leaves()) == "Conv2d.0"
