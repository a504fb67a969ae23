"""Which images the job trains on."""

from pathlib import Path

import pytest

from examples import image_data
from examples.ddp_cifar_resnet import main
from examples.options import parse_arguments
from pytagi_ddp.data import DatasetNotFoundError, synthetic_images
from pytagi_ddp.distributed.communicator import SerialCommunicator


@pytest.fixture
def offline(monkeypatch):
    """No CIFAR-10 on this machine, and none to be had; returns the folders that were asked for."""
    asked = []

    def download(folder):
        asked.append(folder)
        raise DatasetNotFoundError("not in a and b; the download failed") from OSError("no network")

    monkeypatch.setattr(image_data, "find_cifar10", lambda folder: None)
    monkeypatch.setattr(image_data, "download_cifar10", download)
    return asked


def test_found_is_not_downloaded(offline, monkeypatch):
    monkeypatch.setattr(image_data, "find_cifar10", lambda folder: Path(folder, "here"))
    args = parse_arguments(["--data-dir", "folder"])
    assert image_data.find_or_download(args, SerialCommunicator()) == (Path("folder/here"), "")
    assert offline == []


def test_not_found_is_downloaded(offline, monkeypatch):
    monkeypatch.setattr(image_data, "download_cifar10", lambda folder: Path("downloaded"))
    assert image_data.find_or_download(parse_arguments([]), SerialCommunicator()) == (Path("downloaded"), "")


def test_neither_found_nor_downloaded(offline):
    folder, reason = image_data.find_or_download(parse_arguments(["--data-dir", "x"]), SerialCommunicator())
    assert (folder, reason, offline) == (None, "not in a and b; the download failed", ["x"])
    assert image_data.find_or_download(parse_arguments([]), SerialCommunicator()) == (None, "no network")


def test_only_rank_0_looks(offline):
    class SecondRank(SerialCommunicator):
        rank = 1

        def __init__(self):
            pass

        def broadcast_object(self, obj, root=0):
            return "answer of rank 0"

    assert image_data.find_or_download(parse_arguments([]), SecondRank()) == "answer of rank 0"
    assert offline == []


def test_the_synthetic_set_is_chosen_without_looking(offline):
    args = parse_arguments(["--data", "synthetic"])
    assert image_data.find_or_download(args, SerialCommunicator()) == (None, "")
    assert offline == []


def test_the_job_says_that_it_falls_back(offline, tmp_path, capsys):
    small = ["--model", "resnet8", "--limit-train", "20", "--limit-test", "10", "--epochs", "1", "--threads", "1"]
    main([*small, "--log-dir", str(tmp_path)])
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "no CIFAR-10 (see --data-dir), training on synthetic images: no network"


@pytest.mark.parametrize("options", [["--data", "cifar10"], ["--data-dir", "mistyped"]], ids=" ".join)
def test_cifar10_or_nothing(offline, options):
    """Whoever names the data, or their folder, does not get another set."""
    with pytest.raises(SystemExit) as error:
        main(options)
    assert error.value.code == "error: not in a and b; the download failed"


def test_limits(monkeypatch):
    monkeypatch.setattr(image_data, "load_cifar10", lambda folder, download: synthetic_images(500, 250))
    for arguments, sizes in (([], (500, 250)), (["--limit-train", "30", "--limit-test", "20"], (30, 20))):
        train, test = image_data.load_images(parse_arguments(arguments), Path("somewhere"))
        assert (len(train), len(test)) == sizes
    train, test = image_data.load_images(parse_arguments(["--limit-train", "2000"]), None)
    assert (len(train), len(test)) == (2000, image_data.SYNTHETIC_TEST)
