import gzip
import hashlib
import tracemalloc

import numpy as np
import pytest

from pytagi_ddp.data import DatasetNotFoundError, find_mnist, load_mnist, mnist
from tests.data.file_server import file_server

pytestmark = pytest.mark.usefixtures("empty_machine")

COUNTS = {"train": 30, "t10k": 10}


def idx(array):
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    result = {}
    for prefix, count in COUNTS.items():
        result[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        result[f"{prefix}-labels-idx1-ubyte"] = rng.integers(0, 10, count)
    return result


def write(folder, arrays, gz=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if gz:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("subfolder", [".", "MNIST/raw"])
def test_gzipped_and_plain_files_load(tmp_path, arrays, gz, subfolder):
    write(tmp_path / "mine" / subfolder, arrays, gz)
    train, test = load_mnist(tmp_path / "mine", download=False)
    assert train.images.shape == (30, 1, 28, 28)
    assert test.images.shape == (10, 1, 28, 28)
    np.testing.assert_array_equal(train.images[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert test.classes[7] == "7"


@pytest.mark.parametrize("subfolder", [".", "MNIST/raw"])
def test_the_names_of_kaggle_are_found(tmp_path, arrays, subfolder):
    write(tmp_path / subfolder, {name.replace("-idx", ".idx"): array for name, array in arrays.items()}, gz=False)
    for name in arrays:
        (tmp_path / subfolder / name).mkdir()  # there, each holds the file once more
    assert find_mnist(tmp_path) == tmp_path / subfolder
    train, test = load_mnist(tmp_path, download=False)
    np.testing.assert_array_equal(train.images[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(test.labels, arrays["t10k-labels-idx1-ubyte"])


def test_search_order(tmp_path, arrays, monkeypatch):
    assert find_mnist() is None
    write(tmp_path / "data" / "mnist", arrays)
    assert find_mnist().absolute() == tmp_path / "data" / "mnist"
    write(tmp_path / "shared" / "mnist", arrays)
    monkeypatch.setenv("PYTAGI_DATA", str(tmp_path / "shared"))
    assert find_mnist() == tmp_path / "shared" / "mnist"
    write(tmp_path / "shared", arrays)
    assert find_mnist() == tmp_path / "shared"


def test_not_found_says_where_and_what_is_missing(tmp_path, arrays):
    del arrays["t10k-labels-idx1-ubyte"]
    write(tmp_path / "mine", arrays)
    with pytest.raises(DatasetNotFoundError, match=rf"{tmp_path / 'mine'} lacks t10k-labels-idx1-ubyte.gz;"):
        load_mnist(tmp_path / "mine", download=False)


SIZE = 16 + 30 * 784


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: gzip.compress(data[:1000]), rf"expected {SIZE} bytes for shape \(30, 28, 28\), found 1000"),
        (lambda data: gzip.compress(data + b"more"), f"expected {SIZE} bytes .* found {SIZE + 1} or more"),
        (lambda data: gzip.compress(data)[:9000], "corrupt gzip file of 9000 bytes: .* ended"),
        (lambda data: gzip.compress(b"\0\0\x08\1" + data[4:]), "begins with 00000801 .* expected 00000803"),
        (lambda data: gzip.compress(b""), r"\(0 bytes\)"),
        (lambda data: b"<html>not gzip</html>", "corrupt gzip file of 21 bytes"),
        (lambda data: gzip.compress(data)[:-8] + b"\0" * 8, "corrupt gzip file"),
    ],
)
def test_a_damaged_file_is_told_with_its_sizes(tmp_path, arrays, damage, message):
    write(tmp_path / "mine", arrays)
    path = tmp_path / "mine" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(idx(arrays["train-images-idx3-ubyte"])))
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte.gz: .*{message}"):
        load_mnist(tmp_path / "mine")


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(tmp_path, arrays):
    """As many zeros as the header says, or more."""
    write(tmp_path / "mine", arrays)
    path = tmp_path / "mine" / "train-images-idx3-ubyte.gz"
    zeros = gzip.compress(bytes(1 << 24)) * 20  # a gzip file may have several parts
    for count, message in ((1, "found 801 or more"), (400_000, "at most 67108864 are unpacked")):
        header = bytes((0, 0, 8, 3)) + np.array([count, 28, 28], ">u4").tobytes()
        path.write_bytes(gzip.compress(header) + zeros)
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=f"{path}: expected .*{message}"):
                load_mnist(tmp_path / "mine")
            assert tracemalloc.get_traced_memory()[1] < 10e6
        finally:
            tracemalloc.stop()


def test_changed_pixels_are_noticed_and_a_cut_end_too(tmp_path, arrays):
    """The checksum stands in the last 8 bytes; in a file that is packed without compression all else fits."""
    write(tmp_path / "mine", arrays)
    path = tmp_path / "mine" / "train-images-idx3-ubyte.gz"
    data = bytearray(gzip.compress(idx(arrays["train-images-idx3-ubyte"]), 0))
    data[500] ^= 255
    for changed in (data, data[:-8], data[:-1], data + b"more"):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=f"{path}: corrupt gzip file of {len(changed)} bytes"):
            load_mnist(tmp_path / "mine")


@pytest.mark.parametrize("size", [3, 1000, SIZE - 1, SIZE + 1])
def test_a_plain_file_of_another_size(tmp_path, arrays, size):
    write(tmp_path / "mine", arrays, gz=False)
    path = tmp_path / "mine" / "train-images-idx3-ubyte"
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(ValueError, match=rf"{path}: (begins with 000008|expected {SIZE} bytes for shape)"):
        load_mnist(tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("t10k-labels-idx1-ubyte", np.zeros(9), "10 images, but 9 labels"),
        ("t10k-labels-idx1-ubyte", np.full(10, 12), "label 12 of image 0"),
        ("train-images-idx3-ubyte", np.zeros((30, 27, 28)), "27 x 28, expected 28 x 28"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, arrays, name, array, message):
    write(tmp_path / "mine", {**arrays, name: array})
    with pytest.raises(ValueError, match=message):
        load_mnist(tmp_path / "mine")


@pytest.fixture
def files(arrays, monkeypatch):
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in arrays.items()}
    monkeypatch.setattr(mnist, "MD5", {name: hashlib.md5(data).hexdigest() for name, data in files.items()})
    return files


def test_downloads_and_loads(tmp_path, arrays, files, monkeypatch):
    with file_server(files) as url:
        monkeypatch.setattr(mnist, "URL", url)
        train, _ = load_mnist(progress=False)
    np.testing.assert_array_equal(train.labels, arrays["train-labels-idx1-ubyte"])
    assert sorted(path.name for path in (tmp_path / "data" / "mnist").iterdir()) == sorted(files)


def test_a_failed_download_is_a_data_set_not_found(files, monkeypatch):
    files["t10k-images-idx3-ubyte.gz"] = b"<html>log in first</html>"
    with file_server(files) as url:
        monkeypatch.setattr(mnist, "URL", url)
        with pytest.raises(DatasetNotFoundError, match=r"the download failed: .* 25 bytes with md5"):
            load_mnist(progress=False)
    assert find_mnist() is None
