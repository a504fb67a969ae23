"""Where the CIFAR-10 job computes: the device of each rank, and what it says where that cannot be."""

from types import SimpleNamespace

import pytest

from examples import ddp_cifar_resnet
from examples.options import parse_arguments
from examples.rank_training import choose_own_device
from pytagi_ddp import cuda
from tests.examples.jobs import exit_codes


@pytest.mark.parametrize(
    ("device", "backend", "device_ids", "expected"),
    [
        ("cpu", "auto", None, ["cpu"] * 3),
        ("cuda", "auto", None, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cpu", "nccl", None, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", "nccl", [1], ["cuda:1"]),
    ],
)
def test_the_local_rank_picks_the_gpu(monkeypatch, device, backend, device_ids, expected):
    monkeypatch.setattr(cuda, "get_device_count", lambda: 2)
    args = SimpleNamespace(device=device, backend=backend)
    assert [choose_own_device(args, rank, device_ids) for rank in range(len(expected))] == expected


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_unknown_devices(capsys, device):
    with pytest.raises(SystemExit):
        parse_arguments([f"--device={device}"])
    assert f'argument --device: must be "cpu", "cuda" or "cuda:<index>", got {device}' in capsys.readouterr().err


@pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda"], "error on rank 0: device 'cuda:0' cannot be used: "),
        (["--backend", "nccl"], "error on rank 0: device 'cuda:0' cannot be used: "),
        (["--device", "cuda:0"], "error on rank 1: device_ids [0] names no GPU for local rank 1"),
    ],
)
def test_without_a_gpu_of_its_own_one_line_says_why(options, message, capsys):
    line, of_the_other = exit_codes(ddp_cifar_resnet.main, *options)
    assert line.startswith(message) and "\n" not in line and of_the_other == 1
    assert capsys.readouterr() == ("", "")
