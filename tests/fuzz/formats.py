"""The formats that are fuzzed: for each a function that makes good files, with what reads them and may happen then."""

import gzip
import hashlib
import importlib.util
import io
import json
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition, reading
from pytagi_ddp.checkpoint.shards import FILE, INDEX, TensorReader, index_bytes
from pytagi_ddp.checkpoint.shards import write_shard as write_part
from pytagi_ddp.data import BatchLoader, ImageDataset, cifar10, uci
from pytagi_ddp.data.decoding import ImageError, Source, read_part
from pytagi_ddp.data.idx import read_idx
from pytagi_ddp.data.image_shard import ImageShard, write_shard
from pytagi_ddp.distributed import FederatedPosterior, PosteriorUpdate
from pytagi_ddp.kernels import checksummed
from pytagi_ddp.nn.files import file_format, persistence
from pytagi_ddp.nn.files.architecture import architecture
from pytagi_ddp.nn.files.csv_files import SUFFIXES
from pytagi_ddp.nn.files.state_dicts import held
from pytagi_ddp.plot import read_epochs
from pytagi_ddp.tagi_utils import Utils
from tests.data.python2_pickle import cifar10_batch
from tests.data.test_uci import texts
from tests.nn.networks import randomise
from tests.nn.test_persistence import GOLDEN, make
from tests.nn.test_pytagi_files import dense

IMAGES = 4  # in a file of CIFAR-10
POSITION = TrainingPosition(epoch=3, batch=5, step=20, seed=7)


@dataclass
class Format:
    """Good files of a format, what reads them, and what may happen with damaged ones.

    Attributes:
        files: content of the good files, by name; they lie in one folder.
        read: reads the file at a path in such a folder, and returns its content in a form that can be compared.
        errors: the errors that it may raise.
        names: (path, message) -> whether the message of an error names the file.
        changed: names of the files that are damaged; the others stay good. Default: all.
        exact: whether a checksum covers the whole file, so that a damaged one is refused or has the same content.
        inside: (unpack, pack), for formats with a checksum or compression: `unpack` gives the content to damage, `pack`
            makes a file of it whose checksum is right again. What is read then need only be `sound`.
        sound: whether content that was read is possible in such a file.
    """

    files: dict[str, bytes]
    read: Callable[[Path], Hashable]
    errors: tuple[type[Exception], ...] = (ValueError,)
    names: Callable[[Path, str], bool] = lambda path, message: str(path) in message
    changed: tuple[str, ...] = ()
    exact: bool = False
    inside: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] | None = None
    sound: Callable[[Hashable], bool] = field(default=lambda found: True)

    def __post_init__(self) -> None:
        self.changed = self.changed or tuple(self.files)


def bits(net: nn.Sequential) -> bytes:
    """Parameters and running statistics."""
    return net.arena.theta.tobytes() + net.arena.statistics.tobytes()


def into(net: nn.Sequential, load: Callable[[Path], object]) -> Callable[[Path], Hashable]:
    """A `Format.read` that loads into a network, and returns its parameters and what `load` returned.

    It asserts that a file that is refused changes nothing, and that parameters are finite and variances not negative.
    """
    start = net.state_dict()

    def read(path: Path) -> Hashable:
        before = bits(net)
        try:
            said = load(path)
        except BaseException:
            assert bits(net) == before, "a file that was refused has changed the network"
            raise
        after, theta = bits(net), net.arena.theta.copy()
        assert np.isfinite(theta).all() and np.isfinite(net.arena.statistics).all(), "values that are not finite"
        assert (theta[1] >= 0).all(), "negative variances"
        net.load_state_dict(start)
        return after, repr(said)

    return read


def with_checksum(data: bytes) -> bytes:
    """A file of a network with the checksum that belongs to its content, if it is long enough to have one."""
    place = file_format.DIGITS
    if len(data) < place.stop:
        return data
    return data[: place.start] + file_format.checksum(data).encode() + data[place.stop :]


UNCHANGED = (lambda data: data, with_checksum)


def networks() -> Format:
    net = randomise(make())
    return Format({"net": persistence.to_bytes(net)}, into(net, net.load), exact=True, inside=UNCHANGED)


def posterior_updates() -> Format:
    """What a client sends to a server of federated training; `inside` is what a hostile client can send."""
    net = small_network()
    server = FederatedPosterior(net)
    message = server.broadcast()
    update = PosteriorUpdate.of(randomise(small_network()), message, 7, "a client")

    def load(path: Path) -> object:
        found = PosteriorUpdate.from_bytes(path.read_bytes(), str(path))
        result = FederatedPosterior(net).merge([found])
        assert not result.merged and set(result.left_out) == {found.client}  # this server has sent nothing
        server.round, server._last = 0, {}
        server.broadcast()
        result = server.merge([path.read_bytes()])
        assert len(result.merged) + len(result.left_out) == 1
        return found.client, found.round, found.samples, found.change.tobytes(), found.running.tobytes()

    return Format({"update": update.to_bytes()}, into(net, load), exact=True, inside=UNCHANGED)


def earlier_networks() -> Format:
    net = make()
    files = {path.name: path.read_bytes() for path in (GOLDEN / "pytagi_ddp_files").iterdir()}
    return Format(files, into(net, net.load))


def pytagi_networks() -> Format:
    net = dense()
    return Format({"net.bin": (GOLDEN / "pytagi_files" / "dense.bin").read_bytes()}, into(net, net.load))


def csv_files() -> Format:
    net = dense()
    files = {f"net{s}": (GOLDEN / "pytagi_files" / f"dense{s}").read_bytes() for s in SUFFIXES.values()}
    read = into(net, lambda path: net.load_csv(path.parent / "net"))
    return Format(files, read, names=lambda path, message: str(path.parent / "net") in message)


def small_network() -> nn.Sequential:
    manual_seed(3)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3), nn.Linear(3, 1))


def folder_of_checkpoints() -> dict[str, bytes]:
    """Two checkpoints and their manifest."""
    with TemporaryDirectory() as folder:
        for step, seed in ((19, 1), (20, 2)):
            position = TrainingPosition(POSITION.epoch, POSITION.batch, step, POSITION.seed)
            net = randomise(small_network(), seed)
            average = nn.PosteriorAverage(net)
            average.update()
            nn.EvidenceSchedule(net, steps_per_epoch=5, epochs=4)
            CheckpointManager(folder).save(net, position, {"sigma_v": 0.5}, average=average)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def checkpoints() -> Format:
    """A checkpoint that is loaded by its name: only its own checksum protects position and settings, no manifest."""
    net = small_network()
    average = nn.PosteriorAverage(net)
    data = next(data for name, data in folder_of_checkpoints().items() if name.startswith("step-0000000020"))

    def load(path: Path) -> object:
        average.reset()
        net.schedule = None
        found = CheckpointManager(path.parent).load(net, path, average=average)
        assert found is not None and all(
            n is None or (type(n) is int and n >= 0) for n in vars(found.position).values()
        )
        averaged = average.state_dict()
        average.load_state_dict(averaged)  # refuses what is not finite, and negative variances
        values = [np.asarray(a).tobytes() for a in averaged.values()]
        assert net.schedule is not None or found.schedule is None
        return found.position, found.settings, found.world_size, repr(net.schedule), values

    return Format({"net.safetensors": data}, into(net, load), exact=True, inside=UNCHANGED)


def manifests() -> Format:
    """A folder of checkpoints that is loaded, and then saved to with keep_last=1, which deletes the listed checkpoints.

    Whatever the manifest says, only the two checkpoints may be loaded, and no other file may be deleted.
    """
    net, files = small_network(), folder_of_checkpoints()
    victims = {"victim": b"precious"}
    good: set[Hashable] = {None}

    def load_and_save(path: Path) -> Hashable:
        manager = CheckpointManager(path.parent, keep_last=1)
        try:
            return read(path)
        finally:
            with mock.patch("os.fsync"), suppress(ValueError):
                manager.save(net, POSITION)
            names = {other.name for other in path.parent.iterdir()}
            for name in names - files.keys() - victims.keys():
                (path.parent / name).unlink()
            assert all((path.parent / name).read_bytes() == data for name, data in victims.items()), "it deletes files"
            for name, data in files.items():
                if name != path.name:
                    (path.parent / name).write_bytes(data)

    def load(path: Path) -> object:
        found = CheckpointManager(path.parent).load(net, fall_back=True)
        return found and found.position.step

    read = into(net, load)
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        manager, nothing = CheckpointManager(folder), bits(net)
        good.add((nothing, "None"))
        for name in files:
            if name.startswith("step-"):
                manager.load(net, Path(folder, name))
                good.add((bits(net), repr(int(name[5:15]))))
    net = small_network()
    read = into(net, load)
    return Format(
        files | victims,
        load_and_save,
        names=lambda path, message: str(path.parent) in message,
        changed=tuple(files),
        sound=lambda found: found in good,
    )


def _from_json(use: Callable[[object], object]) -> Callable[[Path], object]:
    """A `Format.read` for readers of dictionaries, which gets them from JSON. Text that is not JSON is passed over."""

    def read(path: Path) -> object:
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return None
        return use(value) if isinstance(value, dict) else None

    return read


def state_dicts() -> Format:
    net = small_network()
    lists = {key: [array.tolist() for array in value] for key, value in randomise(net).state_dict().items()}
    keys = ("state dict", "the network has no layer", *(key.split(".running")[0] for key in lists))
    return Format(
        {"state.json": json.dumps(lists).encode()},
        into(net, _from_json(net.load_state_dict)),
        errors=(KeyError, ValueError, TypeError),
        names=lambda path, message: any(key in message for key in keys),
    )


def positions() -> Format:
    data = ImageDataset(np.zeros((50, 1, 2, 2), np.uint8), np.zeros(50, np.int64), ("zero",), "test")
    loader = BatchLoader(data, 4, seed=5)
    loader.set_epoch(3, 2)

    def load(state: object) -> object:
        before = loader.state_dict()
        try:
            loader.load_state_dict(state)
        except ValueError:
            assert loader.state_dict() == before
            raise
        return loader.state_dict()

    text = json.dumps(loader.state_dict()).encode()
    read = _from_json(load)
    words = ("position", "start_batch", "epoch")
    return Format(
        {"position.json": text},
        lambda path: repr(read(path)),
        names=lambda path, message: any(word in message for word in words),
    )


def logs() -> Format:
    records = [{"event": "start", "time": 1.5, "ranks": 2, "data": None}]
    records += [{"event": "epoch", "epoch": k, "train_error": 0.5, "test_error": 0.6} for k in (1, 2, 3)]

    def read(path: Path) -> Hashable:
        found = [(r["epoch"], r["train_error"], r["test_error"]) for r in read_epochs(path)]
        assert all(isinstance(value, int | float) for record in found for value in record)
        return repr(found)

    return Format({"log.jsonl": b"".join(json.dumps(r).encode() + b"\n" for r in records)}, read, errors=())


def idx_file(axes: int) -> bytes:
    shape = (5, 4, 3)[:axes]
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return bytes((0, 0, 8, axes)) + np.array(shape, ">u4").tobytes() + values.tobytes()


def _read_idx(path: Path) -> Hashable:
    array = read_idx(path, 3 if "images" in path.name else 1)
    assert array.dtype == np.uint8
    return array.shape, array.tobytes()


def idx_files() -> Format:
    return Format({"images": idx_file(3), "labels": idx_file(1)}, _read_idx)


def gzipped_idx_files() -> Format:
    files = {"images.gz": gzip.compress(idx_file(3)), "labels.gz": gzip.compress(idx_file(1), 0)}
    return Format(files, _read_idx, exact=True, inside=(gzip.decompress, gzip.compress))


def _read_cifar10(path: Path) -> Hashable:
    with mock.patch.object(cifar10, "BATCH_SIZE", IMAGES):
        found = cifar10._load(path.parent, ("test_batch",), "test")
    assert found.images.shape == (IMAGES, 3, 32, 32) and found.images.dtype == np.uint8
    assert set(found.labels.tolist()) <= set(range(10))
    return found.images.tobytes(), found.labels.tobytes()


def _images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 10, IMAGES), rng.integers(0, 256, (IMAGES, 3072), dtype=np.uint8)


def binary_cifar10() -> Format:
    labels, pixels = _images()
    return Format({"test_batch.bin": np.c_[labels.astype(np.uint8), pixels].tobytes()}, _read_cifar10)


def python_cifar10() -> Format:
    data = cifar10_batch(*_images())
    digests = {"test_batch": hashlib.md5(data).hexdigest()}
    return Format({"test_batch": data}, mock.patch.object(cifar10, "PYTHON_MD5", digests)(_read_cifar10), exact=True)


def _pictures() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        np.kron(rng.integers(0, 256, (h, w, 3), np.uint8), np.ones((4, 4, 1), np.uint8)) for h, w in ((6, 5), (3, 8))
    ]


def picture_files() -> Format:
    """Images, as Pillow decodes them. They have no checksum of pixels, so damaged ones may have other pixels."""
    from PIL import Image

    def encoded(kind: str, **options: object) -> bytes:
        file = io.BytesIO()
        Image.fromarray(_pictures()[0]).save(file, kind, **options)
        return file.getvalue()

    def read(path: Path) -> Hashable:
        part = read_part(Source(str(path)), 8, None)
        assert part.shape == (3, 8, 8) and part.dtype == np.uint8
        return part.tobytes()

    turned = Image.Exif()
    turned[0x0112] = 6
    files = {"x.jpeg": encoded("JPEG"), "y.jpeg": encoded("JPEG", progressive=1), "z.png": encoded("PNG")}
    files |= {"turned.jpeg": encoded("JPEG", exif=turned), "turned.png": encoded("PNG", exif=turned)}
    return Format(files, read, errors=(ImageError,))


def image_shards() -> Format:
    """Files of decoded images. The names of the images that they were made of are not read here."""

    def read(path: Path) -> Hashable:
        shard = ImageShard(path)
        return tuple((image.shape, image.tobytes()) for image in map(shard.read, range(len(shard))))

    with TemporaryDirectory() as folder:
        write_shard(Path(folder, "shard"), [*_pictures(), np.empty((0, 0, 3), np.uint8)], "x")
        return Format({"shard": Path(folder, "shard").read_bytes()}, read, exact=True)


def pytagi_cifar10() -> Format:
    labels, pixels = _images()

    def read(path: Path) -> Hashable:
        images, found = Utils().load_cifar_images(path, IMAGES)
        assert images.shape == (IMAGES * 3072,) and set(found.tolist()) <= set(range(10))
        return images.tobytes(), found.tobytes()

    return Format({"batch.bin": np.c_[labels.astype(np.uint8), pixels].tobytes()}, read)


def sharded_checkpoints() -> Format:
    """A folder with an index and files, loaded by its name: no manifest protects it."""
    net, name = small_network(), "step-0000000020-00000000"
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.mkdir()
        specs = [spec.having(saved=True) for spec in held(randomise(small_network()))]
        shards = [write_part(path / FILE.format(k, 2), specs[k::2], np.asarray) for k in (0, 1)]
        metadata = {"architecture": architecture(net), "position": "{}", "settings": "{}", "world_size": "2"}
        files = {INDEX: index_bytes(metadata, shards)}
        files |= {shard.file: (path / shard.file).read_bytes() for shard in shards}

    def read(path: Path) -> Hashable:
        contents = reading.read(path.parent, None)
        return tuple((key, array.tobytes()) for key, array in sorted(contents.tensors.items()))

    def read_unverified(path: Path) -> Hashable:
        """Whoever forges a file forges its checksum in the index too."""
        if path.name == INDEX:
            return read(path)
        with TensorReader(path.parent, sorted(path.parent.glob("rank-*"))) as reader:
            return tuple((key, array.tobytes()) for key, array in sorted(reader.read_whole()))

    return Format(files, read_unverified, names=lambda path, message: str(path.parent) in message)


def _read_uci(path: Path) -> Hashable:
    made = uci.Sizes(11, 2, 3, "")
    with mock.patch.dict(uci.UCI_SETS, {"yacht": made}):
        read = uci._read_archive(path, "yacht") if path.suffix == ".npz" else uci._read_text(path.parent, "yacht")
    assert read.x.shape == (11, 2) and read.y.shape == (11,) and read.test.shape == (3, 11)
    return read.checksum()


def _splits() -> uci.RegressionSplits:
    rng, test = np.random.default_rng(0), np.arange(11) % 3 == np.arange(3)[:, None]
    return uci.RegressionSplits("yacht", rng.normal(size=(11, 2)), rng.normal(size=11), test)


def uci_text() -> Format:
    return Format(texts(_splits()), _read_uci, names=lambda path, message: str(path.parent) in message)


def uci_archives() -> Format:
    data, memory = _splits(), io.BytesIO()
    np.savez_compressed(memory, x=data.x, y=data.y, test=np.packbits(data.test, axis=1))
    return Format({"yacht.npz": memory.getvalue()}, _read_uci)


def caches() -> Format:
    """The cache of compiled loops: a damaged file is not an error, it counts as missing."""
    content = b"code" * 99
    return Format(
        {"loop.code": checksummed.with_checksum(content)},
        checksummed.read_checksummed,
        errors=(),
        sound=lambda found: found in (None, content),
    )


FORMATS: dict[str, Callable[[], Format]] = {
    "safetensors": networks,
    "posterior update": posterior_updates,
    "earlier safetensors": earlier_networks,
    "checkpoint": checkpoints,
    "manifest": manifests,
    "pytagi binary": pytagi_networks,
    "csv": csv_files,
    "state dict": state_dicts,
    "position": positions,
    "log": logs,
    "idx": idx_files,
    "idx.gz": gzipped_idx_files,
    "cifar10 binary": binary_cifar10,
    "cifar10 python": python_cifar10,
    "uci text": uci_text,
    "uci npz": uci_archives,
    "cache": caches,
    "image shard": image_shards,
    "pytagi cifar10": pytagi_cifar10,
    "sharded checkpoint": sharded_checkpoints,
}
if importlib.util.find_spec("PIL"):
    FORMATS["picture"] = picture_files
