"""Parameters in pytagi's csv files."""

import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.files.csv_files import SUFFIXES
from tests.nn.networks import FIELDS, randomise
from tests.nn.test_persistence import make


def test_a_round_trip_and_what_is_refused(tmp_path):
    trained = randomise(make())
    trained.save_csv(tmp_path / "net")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"net{s}" for s in SUFFIXES.values()]
    other = make()
    with pytest.warns(UserWarning, match="the running statistics of BatchNorm2d.2, .* are not given, and stay"):
        other.load_csv(tmp_path / "net")
    for mine, theirs in zip(other.parameters(), trained.parameters(), strict=True):
        for k in range(len(FIELDS)):
            assert mine[k].tolist() == theirs[k].tolist()
    (tmp_path / "net_2_Sw.csv").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"net_2_Sw\.csv holds 2 values, the network has 154"):
        other.load_csv(tmp_path / "net")
    (tmp_path / "net_1_mw.csv").write_text("1\nzwei\n")
    with pytest.raises(ValueError, match=r"net_1_mw\.csv is not a file of numbers"):
        other.load_csv(tmp_path / "net")


def test_a_network_without_parameters(tmp_path):
    net = nn.Sequential(nn.PiecewiseLinearEncoding([[0, 1, 2]]), nn.ReLU())
    net.save_csv(tmp_path / "net")
    net.load_csv(tmp_path / "net")
    assert [path.read_text() for path in tmp_path.iterdir()] == [""] * 4
