"""Networks trained, saved and evaluated by pytagi 0.2.1: the files load, and the outputs are the same."""

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.files.pytagi_format import parse

FOLDER = Path(__file__).parents[1] / "golden" / "pytagi_files"


def unit(c_in: int, c_out: int, **options) -> list[nn.BaseLayer]:
    return [nn.Conv2d(c_in, c_out, **options), nn.MixtureReLU(), nn.BatchNorm2d(c_out)]


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 5),
        nn.ReLU(),
        nn.LayerNorm([5]),
        nn.Linear(5, 3, bias=False),
        nn.Tanh(),
        nn.LayerNorm([3]),
        nn.Linear(3, 2),
    )


def conv() -> nn.Sequential:
    return nn.Sequential(
        *unit(1, 2, kernel_size=3, padding=1, in_width=4, in_height=4),
        nn.MaxPool2d(3, 1, 1, 1),
        nn.AvgPool2d(2, 2),
        nn.Linear(8, 2),
    )


def residual() -> nn.Sequential:
    same = {"kernel_size": 3, "padding": 1}
    strided = {"kernel_size": 3, "stride": 2, "padding": 1, "padding_type": 2, "bias": False}
    return nn.Sequential(
        *unit(1, 2, **same, in_width=4, in_height=4),
        nn.ResNetBlock(
            nn.LayerBlock(*unit(2, 3, **strided), *unit(3, 3, **same)),
            nn.LayerBlock(*unit(2, 3, kernel_size=2, stride=2)),
        ),
        nn.ResNetBlock(nn.LayerBlock(*unit(3, 3, **same))),
        nn.Linear(12, 2),
    )


def lstm() -> nn.Sequential:
    """With every time step by itself, as in pytagi."""
    return nn.Sequential(
        nn.LSTM(2, 3, seq_len=4, recurrent=False),
        nn.LSTM(3, 2, seq_len=4, bias=False, recurrent=False),
        nn.Linear(8, 2),
    )


def slstm() -> nn.Sequential:
    return nn.Sequential(nn.SLSTM(2, 3), nn.SLSTM(3, 4, bias=False), nn.SLinear(4, 1))


def embedding() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 3, input_size=2, scale=0.5, padding_idx=4), nn.Linear(6, 2))


def convtranspose() -> nn.Sequential:
    strided = {"kernel_size": 3, "stride": 2, "padding": 1, "padding_type": 2}
    return nn.Sequential(
        nn.Linear(3, 8),
        nn.ReLU(),
        nn.ConvTranspose2d(2, 3, **strided, in_width=2, in_height=2),
        nn.MixtureReLU(),
        nn.BatchNorm2d(3),
        nn.ConvTranspose2d(3, 2, 3, bias=False, padding=1),
        nn.AvgPool2d(2, 2),
        nn.Linear(8, 2),
    )


NETWORKS = {
    "dense": dense,
    "conv": conv,
    "residual": residual,
    "lstm": lstm,
    "slstm": slstm,
    "embedding": embedding,
    "convtranspose": convtranspose,
}


@pytest.fixture(params=NETWORKS)
def case(request):
    """(name, fresh network, recorded arrays)"""
    with np.load(FOLDER / f"{request.param}.npz") as file:
        return request.param, NETWORKS[request.param](), dict(file)


def recorded_state(arrays: dict, suffix: str = "") -> dict[str, tuple]:
    """pytagi's state dict; on CUDA each layer's name has a suffix."""
    keys = {name.split("/")[1] for name in arrays if name.startswith("state/")}
    fields = ("mu_w", "var_w", "mu_b", "var_b")
    return {
        key.replace(".", f"{suffix}.", 1): tuple(arrays[f"state/{key}/{field}"].tolist() for field in fields)
        for key in keys
    }


def assert_outputs(net, arrays: dict) -> None:
    net.eval()
    for got, name in zip(net(arrays["x"]), ("out_mu", "out_var"), strict=True):
        np.testing.assert_allclose(got, arrays[name], rtol=2e-5, atol=2e-6)


def test_binary_file(case):
    """Running statistics included; the batch statistics that pytagi appends to a LayerNorm are skipped."""
    name, net, arrays = case
    net.load(FOLDER / f"{name}.bin")
    assert_outputs(net, arrays)
    for key, values in recorded_state(arrays).items():
        for mine, theirs in zip(net.state_dict()[key], values, strict=True):
            np.testing.assert_array_equal(mine, np.float32(theirs))


@pytest.mark.filterwarnings("ignore:the running statistics of:UserWarning")
@pytest.mark.parametrize("suffix", ["", "Cuda"])
def test_state_dict(case, suffix):
    _, net, arrays = case
    net.load_state_dict(recorded_state(arrays, suffix))
    if net.get_norm_mean_var():  # pytagi's dictionaries lack running statistics
        for key, values in recorded_state(arrays).items():
            np.testing.assert_array_equal(net.state_dict()[key][0], np.float32(values[0]))
    else:
        assert_outputs(net, arrays)


def test_csv_files():
    """Six digits, as pytagi writes them."""
    net = dense()
    net.load_csv(FOLDER / "dense")
    with np.load(FOLDER / "dense.npz") as arrays:
        net.eval()
        np.testing.assert_allclose(net(arrays["x"])[0], arrays["out_mu"], atol=2e-5)


def test_a_full_disk_leaves_all_four_csv_files_as_they_were(tmp_path):
    """The first were of the new network, and the others of the old one, which no reader can notice."""
    nn.Sequential(nn.Linear(30, 40)).save_csv(tmp_path / "net")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    net = nn.Sequential(nn.Linear(30, 40))
    net.layers[0].mu_w = np.zeros(1200)  # the means fit, and the variances do not
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"net_2_Sw\.csv"):
            net.save_csv(tmp_path / "net")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_disk_that_is_full_at_the_sync_leaves_all_four_csv_files_as_they_were(tmp_path, monkeypatch):
    """As with quotas of NFS; two were of the new network."""
    nn.Sequential(nn.Linear(3, 4)).save_csv(tmp_path / "net")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sync, calls = os.fsync, []

    def of_a_quota(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_a_quota)
    net = nn.Sequential(nn.Linear(3, 4))
    for name in ("mu_w", "var_w", "mu_b", "var_b"):
        setattr(net.layers[0], name, 2 * getattr(net.layers[0], name))
    with pytest.raises(OSError, match=r"net_.*\.csv"):
        net.save_csv(tmp_path / "net")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_every_cut_is_noticed(case):
    name, net, _ = case
    data = (FOLDER / f"{name}.bin").read_bytes()
    before = net.state_dict()
    for cut in range(0, len(data), 3):
        with pytest.raises(ValueError, match="the file"):
            parse(net, data[:cut], "the file")
    with pytest.raises(ValueError, match="the file goes on for 1 bytes after the last layer"):
        parse(net, data + b"!", "the file")
    assert net.state_dict() == before


def test_a_file_of_another_network():
    with pytest.raises(ValueError, match=r"conv\.bin is not a file of this architecture: expected 'Linear\(4,5\)'"):
        dense().load(FOLDER / "conv.bin")
    with pytest.raises(ValueError, match=r"expected 'Conv2d\(2,3,2,2,3\)' \(Conv2d\.main\.3\.0\)"):
        residual().load(FOLDER / "conv.bin")
