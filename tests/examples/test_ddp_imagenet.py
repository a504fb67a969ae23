"""The ImageNet job on a small tree of images, with a small network."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from examples import ddp_imagenet
from pytagi_ddp import nn
from pytagi_ddp.distributed import run_threads
from tests.mpi.run import mpirun

pytestmark = pytest.mark.slow


def small(gain_w, gain_b, outputs, image_size, is_remax, checkpoint_blocks, through_statistics):
    convolution = nn.Conv2d(3, 4, 4, stride=2, in_width=image_size, in_height=image_size)
    norm = nn.BatchNorm2d(4, through_statistics=through_statistics)
    layers = [convolution, norm, nn.MixtureReLU(), nn.Linear(4 * 15 * 15, outputs)]
    return nn.Sequential(*layers, *([nn.Remax()] if is_remax else []), checkpoint_blocks=checkpoint_blocks)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Runs the job on ranks that are threads; returns its log."""
    monkeypatch.setitem(ddp_imagenet.MODELS, "resnet18", small)
    ddp_imagenet.write_images(tmp_path / "images", 60, 21)

    def run(*options, ranks=2):
        given = ["--data-dir", tmp_path / "images", "--image-size", 32, "--batch-size", 10, "--workers", 0]
        arguments = [*given, "--log-dir", tmp_path / "log", "--progress", "lines", *options]
        run_threads(ddp_imagenet.main, ranks, list(map(str, arguments)))
        return [json.loads(line) for line in (tmp_path / "log" / "log.jsonl").read_text().splitlines()]

    return run


@pytest.mark.parametrize("options", [[], ["--head", "remax", "--no-augment", "--cache", "cache", "--cache-side", "36"]])
def test_trains_and_reports(job, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, *epochs = job("--bn-batches", 2, *options)
    for record in epochs:
        wrong = [record[name] * 21 for name in ("test_error", "test_error_top5")]
        assert wrong == pytest.approx(list(map(round, wrong))), "every image counts once"
        assert wrong[1] < wrong[0] <= 21
        assert record["samples_per_second"] == pytest.approx(60 / record["train_seconds"])
    assert epochs[1]["train_error"] < 0.92
    out = capsys.readouterr().out
    assert "images: 60 of train, 21 of val\n" in out and f", top5 {epochs[1]['test_error_top5']:.2%}, " in out
    assert len(list(Path("cache").rglob("*.safetensors"))) == (2 if "--cache" in options else 0)


def test_an_epoch_under_way_is_not_forgotten_before_again(job, tmp_path, monkeypatch):
    """Not even where so large are the batches now that none of it is behind the network."""
    options = ["--forget", 4, "--bn-batches", 0, "--checkpoint-dir", tmp_path / "a", "--keep-last", 99]
    job(*options, "--checkpoint-every", 1, ranks=1)
    (amid,) = (tmp_path / "a").glob("step-0000000007-*")  # one of six batches of the second epoch
    calls = []
    monkeypatch.setattr(nn.DDPSequential, "forget_evidence", lambda self, factor: calls.append(factor))
    with pytest.warns(UserWarning, match="global batch was 10 and is 20"):
        job(*options, "--batch-size", 20, "--allow-changes", "--resume", amid, ranks=1)
    assert calls == []
    job(*options, "--resume", next((tmp_path / "a").glob("step-0000000006-*")), ranks=1)
    assert calls == [4]


def test_a_damaged_image_is_named_or_left_out(job, tmp_path):
    path = sorted((tmp_path / "images" / "train" / "ring").iterdir())[0]
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(SystemExit, match=f"^error on rank 0: {path}: "):
        job("--cache", tmp_path / "cache", ranks=1)
    with pytest.warns(RuntimeWarning, match=f"^left out: {path}: "):
        record = job("--skip-errors", "--epochs", 1, "--bn-batches", 0)[-1]
    assert record["train_error"] * 59 == pytest.approx(round(record["train_error"] * 59))


def test_folders_that_are_not_there_are_one_line(job, tmp_path):
    with pytest.raises(SystemExit, match=f"^error on rank 0: .*No such file or directory: '{tmp_path}/val"):
        (tmp_path / "train").symlink_to(tmp_path / "images" / "train")
        job("--data-dir", tmp_path, ranks=1)
    with pytest.raises(SystemExit):
        ddp_imagenet.main(["--epochs", "1"])


@pytest.mark.parametrize("source", [["--data-dir", "anywhere"], ["--quick"]])
def test_without_pillow_one_line_says_so(monkeypatch, source):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SystemExit, match=r"^error on rank 0: reading image files needs Pillow"):
        run_threads(ddp_imagenet.main, 1, source)


@pytest.mark.mpi
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
def test_real_ranks_with_workers(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(partial(on_a_real_rank, folder=str(tmp_path)), 2, 60)
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        "ranks: 2, threads per rank: 1, images per rank and step: 8\nimages: 100 of train, 20 of val" in result.stdout
    )
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert 0 < record["test_error_top5"] < record["test_error"] <= 1


def on_a_real_rank(folder):
    ddp_imagenet.MODELS["resnet18"] = small
    ddp_imagenet.main(["--quick", "--batch-size", "8", "--log-dir", folder, "--progress", "lines"])
