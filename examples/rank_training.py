"""What the data-parallel jobs share, whatever the images, the network and the number of ranks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import pytagi_ddp
from examples.classifier import HEADS, FallingNoise, training_options
from pytagi_ddp.data import BatchLoader, FolderLoader, ImageDataset, ImageFolder
from pytagi_ddp.distributed import init_device_mesh
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.engine.child_process import launcher_of_rank
from pytagi_ddp.distributed.engine.placement import choose_device
from pytagi_ddp.distributed.pipeline.schedule import Timeline, bubble, draw
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.nn import (
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    Sequential,
    balance_by_size,
    balance_by_time,
)
from pytagi_ddp.training import Callback, CallbackError, Checkpoints, Log, Progress, Trainer
from pytagi_ddp.training.ranks import share_of

WAYS: dict[str, Any] = {"ddp": DDPSequential, "fsdp": FSDPSequential}
SETUP_TIMEOUT = 3600.0  # seconds that the other ranks wait while rank 0 downloads 170 MB, or for a cache of images
REPORT = (
    "train error {train_error:.2%}, test error {test_error:.2%}{more}, {samples_per_second:.1f} images/s, "
    "{communication_share:.1%} of the time in communication"
)
FRESH = "; BatchNorm statistics of {batches} batches per rank in {bn_seconds:.1f} s"
LAST = "\ntest error of the last posterior instead of the average: {test_error_last:.2%}"
LAGGING = "\ntest error with the running statistics of the last steps, as pytagi evaluates: {test_error_running:.2%}"
# Options on which the results depend, in addition to data and global batch. Architecture and ranks are compared anyway.
OPTIONS = ("seed", "augment", "average")
OF_NUMBERS = ("sigma_v", "sigma_v_min", "sigma_v_decay")  # of heads that observe labels as numbers
T = TypeVar("T")


class Loaders(NamedTuple):
    """Batches of this rank: for training, and for the test."""

    train: BatchLoader | FolderLoader
    test: BatchLoader | FolderLoader


def run_on_ranks(args: argparse.Namespace, run: Callable[[argparse.Namespace, Communicator], T]) -> T:
    """`run(args, communicator)` on this rank; all ranks run it together.

    Raises:
        SystemExit: `--backend serial` under a launcher that has started several ranks, each of which would train by
            itself and write the same files; Ctrl-C on a single rank.
    """
    launch = launcher_of_rank()
    if launch and args.backend == "serial" and (launch.world_size or 1) > 1:
        problem = f"error: --backend serial is for one process, and {launch.launcher} has started {launch.world_size}"
        sys.exit(1 if launch.rank else problem)
    # NCCL is for training; before that there is nothing on a GPU to exchange.
    communicator = create_communicator("auto" if args.backend == "nccl" else args.backend, timeout=SETUP_TIMEOUT)
    try:
        return run(args, communicator)
    except CallbackError as error:
        if error.moment == "batch_end" and communicator.world_size > 1:
            raise  # of this rank alone
        sys.exit(f"error: {error}" if communicator.rank == 0 else 1)
    except KeyboardInterrupt:
        if communicator.world_size > 1:
            raise  # the library's hook ends the other ranks
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def on_all_ranks(communicator: Communicator, work: Callable[[], T]) -> T:
    """`work()` on every rank; an error on any of them ends all of them, with one line on rank 0."""
    problem = None
    try:
        result = work()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        problem = str(error)
    for rank, reported in enumerate(communicator.all_gather_object(problem)):
        if reported is not None:
            sys.exit(f"error on rank {rank}: {reported}" if communicator.rank == 0 else 1)
    return result


def train_and_test(
    args: argparse.Namespace,
    communicator: Communicator,
    sets: tuple[ImageDataset | ImageFolder, ImageDataset | ImageFolder],
    network: Callable[..., Sequential],
    make_loaders: Callable[[int, int], Loaders],
    metrics: dict[str, Callable] | None = None,
) -> None:
    """Trains and tests for as many epochs as asked for, with checkpoints, progress and a log.

    Args:
        args: options of `examples.options`.
        communicator: for communication before training.
        sets: training and test set.
        network: makes it, one of `pytagi_ddp.models`.
        make_loaders: makes the batches of a share of the data, from its index and the number of shares.
        metrics: see `Trainer`.
    """
    train_set, test_set = sets
    device_ids = [int(args.device[5:])] if args.device.startswith("cuda:") else None
    args.device = on_all_ranks(communicator, lambda: choose_own_device(args, communicator.local_rank, device_ids))
    model = on_all_ranks(communicator, lambda: make_model(args, network, len(train_set.classes)))
    config = DDPConfig(backend=args.backend, device_ids=device_ids)
    parameters = model.num_parameters
    net = on_all_ranks(communicator, lambda: on_ranks(args, model, config, communicator.world_size))
    train, test = make_loaders(*share_of(net))
    log = on_all_ranks(communicator, lambda: Log(args.log_dir, args.track, vars(args)))
    header = (
        f"{args.model}: {parameters:,} parameters, each with a mean and a variance\n{described(args, net)}\n"
        f"images: {len(train_set):,} of {train_set.name}, {len(test_set):,} of {test_set.name}"
    )
    given = [
        Checkpoints(
            args.checkpoint_dir,
            args.checkpoint_every,
            args.keep_last or 3,
            args.checkpoint_on_signal,
            resume=args.resume or False,
            settings=run_settings(args, train_set),
            allow_changes=args.allow_changes,
        ),
        *([] if args.head == "categorical" else [FallingNoise(args.sigma_v, args.sigma_v_min, args.sigma_v_decay)]),
        *(Tests(args, test), JobProgress(args, header), *([Timelines()] if args.parallel == "pipeline" else []), log),
    ]
    options = training_options(args, len(train_set.classes)) | {"metrics": metrics, "bn_batches": args.bn_batches}
    trainer = Trainer(net, epochs=args.epochs, average_last=args.average_last or 0.0, callbacks=given, **options)
    trainer.fit(train, test)
    if communicator.rank == 0:
        print(f"log and curves: {log.folder}", flush=True)


def make_model(args: argparse.Namespace, network: Callable[..., Sequential], classes: int) -> Sequential:
    """The network with its prior, the same on every rank.

    Raises:
        ValueError, RuntimeError: a device that is unknown or not supported.
    """
    set_threads(args.threads)
    pytagi_ddp.manual_seed(args.seed)
    model = network(
        args.gain_w,
        args.gain_b,
        outputs=HEADS[args.head](classes).outputs,
        is_remax=args.head == "remax",
        checkpoint_blocks=args.checkpoint_blocks,
        through_statistics=args.through_statistics,
    )
    model.to_device(args.device)
    return model


def on_ranks(args: argparse.Namespace, model: Sequential, config: DDPConfig, ranks: int) -> Any:
    """The network on this rank, as `--parallel` says.

    Raises:
        ValueError: ranks that cannot be divided into as many pipelines; a balance for another number of layers.
    """
    if args.parallel != "pipeline":
        return WAYS[args.parallel](model, config, args.average)
    stages, rest = divmod(ranks, args.pipelines)
    if rest or not stages:
        raise ValueError(f"{ranks} ranks cannot be divided into {args.pipelines} pipelines")
    balance, side = args.balance, getattr(args, "image_size", 32)
    if isinstance(balance, str):
        noise = np.random.default_rng(0).normal(size=(max(1, args.batch_size // args.micro_batches), 3, side, side))
        by: Any = {"time": balance_by_time, "size": balance_by_size}[balance]
        balance = by(model, noise.astype(np.float32), stages)
    mesh = init_device_mesh((stages, args.pipelines), ("pipe", "data")) if args.pipelines > 1 else None
    options: dict[str, Any] = {"n_microbatches": args.micro_batches, "schedule": args.schedule, "mesh": mesh}
    return PipelineSequential(model, config, args.average, balance=balance, recompute=args.recompute, **options)


def described(args: argparse.Namespace, net: Any) -> str:
    """How ranks share the network and the data."""
    if args.parallel != "pipeline":
        return f"ranks: {net.world_size}, threads per rank: {args.threads}, images per rank and step: {args.batch_size}"
    return (
        f"stages: {net.pipe_group.world_size} with {', '.join(map(str, net.balance))} layers, "
        f"pipelines: {net.data_group.world_size}, threads per rank: {args.threads}\n"
        f"images per pipeline and step: {args.batch_size}, micro-batches: {args.micro_batches}, {args.schedule}"
    )


def run_settings(args: argparse.Namespace, train_set: ImageDataset | ImageFolder) -> dict:
    """Settings that must be the same to resume exactly, in addition to the global batch."""
    observes_numbers = args.head != "categorical"  # whose schedule is compared by the checkpoint
    options = (*OPTIONS, *OF_NUMBERS) if observes_numbers else OPTIONS
    settings = {name.replace("_", " "): getattr(args, name) for name in options}
    if observes_numbers and args.forget > 1:  # left out at its default, as earlier versions did not have it
        settings["forget"] = args.forget
    if args.parallel == "pipeline":  # replicas and shards take the same steps, but micro-batches take others
        settings["parallel"] = args.parallel
    return {"data": f"{len(train_set)} images of {train_set.name}", **settings}


class Tests(Callback):
    """Calls the results of the validation those of a test, and compares other ways to evaluate in the last epoch."""

    on_all_ranks = True

    def __init__(self, args: argparse.Namespace, test: Any):
        self._test, self._compares = test, getattr(args, "bn_batches", 0) > 0

    def evaluation_begin(self, trainer: Any) -> None:
        if trainer.epoch + 1 == trainer.epochs and self._compares:
            trainer.results["test_error_running"] = trainer.evaluate(self._test)["error"]

    def epoch_end(self, trainer: Any) -> None:
        results = trainer.results
        if trainer.epoch == trainer.epochs and trainer.averages:
            results["test_error_last"] = trainer.evaluate(self._test)["error"]
        for name in [name for name in results if name.startswith("val_")]:
            results[name.replace("val_", "test_")] = results.pop(name)


class JobProgress(Progress):
    """Progress in images, a header, and the jobs' report of an epoch."""

    def __init__(self, args: argparse.Namespace, header: str):
        self._header = header
        lines = args.progress == "auto" and not sys.stderr.isatty()
        super().__init__("lines" if lines else args.progress, unit="images")
        self._bn_batches = getattr(args, "bn_batches", 40)

    def fit_begin(self, trainer: Any) -> None:
        print(self._header, flush=True)

    def line(self, results: dict[str, float]) -> str:
        tops = {name: value for name, value in results.items() if name.startswith("test_error_top")}
        more = "".join(f", {name[11:]} {value:.2%}" for name, value in tops.items())
        parts = {"bn_seconds": FRESH, "test_error_last": LAST, "test_error_running": LAGGING}
        text = REPORT + "".join(part for name, part in parts.items() if name in results)
        return text.format(more=more, batches=self._bn_batches, **results)

    def fit_end(self, trainer: Any) -> None:
        super().fit_end(trainer)
        if trainer.stopped:
            print(
                f"stopped by a signal after batch {trainer.batch}/{trainer.batches_per_epoch} of {self._title}; "
                "the same command with --resume continues from there",
                flush=True,
            )


class Timelines(Callback):
    """Says how the stages of a pipeline share the parameters, and shows what each of them did when, and the bubble."""

    on_all_ranks = True
    _lines: Sequence[Timeline] = ()  # none, if a training resumes near its end

    def fit_begin(self, trainer: Any) -> None:
        counts = trainer.ranks.all_gather_object(trainer.network.num_parameters)
        if trainer.ranks.rank == 0:
            print(f"parameters per rank: {', '.join(f'{count:,}' for count in counts)}", flush=True)

    def batch_end(self, trainer: Any) -> None:
        if trainer.batch <= 2:  # the first step compiles
            self._lines = trainer.net.timelines()

    def fit_end(self, trainer: Any) -> None:
        if trainer.ranks.rank == 0 and self._lines:
            print(f"{draw(self._lines)}\nbubble: {bubble(self._lines):.1%} of the time", flush=True)


def top_5(prediction: Any, labels: np.ndarray) -> np.ndarray:
    """1 where the label is not among the 5 most probable classes. Ties count against the label."""
    p = prediction.probabilities
    return (p < np.take_along_axis(p, labels[:, None], 1)).sum(1) < p.shape[1] - 5


def choose_own_device(args: argparse.Namespace, local_rank: int, device_ids: list[int] | None) -> str:
    """The device of this rank, by the rule of `DDPSequential`: with "cuda", each rank has a GPU of its own if possible.

    Raises:
        ValueError: one GPU was named for several ranks.
    """
    if args.device == "cpu" and args.backend != "nccl":
        return "cpu"
    return f"cuda:{choose_device(local_rank, device_ids)}"
