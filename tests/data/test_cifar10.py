import copy
import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from pytagi_ddp.data import DatasetNotFoundError, cifar10, download_cifar10, find_cifar10, load_cifar10
from tests.data.file_server import file_server
from tests.data.python2_pickle import cifar10_batch, python2_pickle

pytestmark = pytest.mark.usefixtures("empty_machine")

COUNT = 20  # images per file, instead of 10,000
NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


RNG = np.random.default_rng(0)
RECORDS = {name: (RNG.integers(0, 10, COUNT), RNG.integers(0, 256, (COUNT, 3072), dtype=np.uint8)) for name in NAMES}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH_SIZE", COUNT)
    digests = {name: hashlib.md5(cifar10_batch(*record)).hexdigest() for name, record in RECORDS.items()}
    monkeypatch.setattr(cifar10, "PYTHON_MD5", digests)


@pytest.fixture
def records():
    """For each file, its labels and pixels."""
    return copy.deepcopy(RECORDS)


def write_binary(folder, records):
    folder.mkdir(parents=True)
    for name, (labels, pixels) in records.items():
        np.c_[labels.astype(np.uint8), pixels].tofile(folder / f"{name}.bin")


def write_python(folder, records):
    folder.mkdir(parents=True)
    for name, (labels, pixels) in records.items():
        (folder / name).write_bytes(cifar10_batch(labels, pixels))


WRITERS = {"cifar-10-batches-bin": write_binary, "cifar-10-batches-py": write_python}


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("inside", [True, False])
def test_both_official_layouts_load_from_the_folder_or_its_parent(tmp_path, records, layout, inside):
    folder = tmp_path / "sets" / layout
    WRITERS[layout](folder, records)
    train, test = load_cifar10(folder if inside else folder.parent, download=False)
    assert train.images.shape == (5 * COUNT, 3, 32, 32)
    assert test.images.shape == (COUNT, 3, 32, 32)
    assert train.classes == test.classes
    assert train.classes[3] == "cat"
    for i, name in enumerate(NAMES[:5]):
        labels, pixels = records[name]
        part = slice(i * COUNT, (i + 1) * COUNT)
        np.testing.assert_array_equal(train.labels[part], labels)
        np.testing.assert_array_equal(train.images[part].reshape(COUNT, -1), pixels)
    np.testing.assert_array_equal(test.labels, records["test_batch"][0])


def test_search_order(tmp_path, records, monkeypatch):
    assert find_cifar10() is None
    write_binary(tmp_path / "data" / "cifar" / "cifar-10-batches-bin", records)
    assert find_cifar10().absolute() == tmp_path / "data" / "cifar" / "cifar-10-batches-bin"
    write_binary(tmp_path / "shared" / "cifar", records)
    monkeypatch.setenv("PYTAGI_DATA", str(tmp_path / "shared"))
    assert find_cifar10() == tmp_path / "shared" / "cifar"
    write_python(tmp_path / "mine", records)
    assert find_cifar10(tmp_path / "mine") == tmp_path / "mine"
    assert find_cifar10(tmp_path / "nowhere") == tmp_path / "shared" / "cifar"


def test_not_found_says_where_and_what_is_missing(tmp_path, records, monkeypatch):
    monkeypatch.setenv("PYTAGI_DATA", str(tmp_path / "shared"))
    write_binary(tmp_path / "mine", records)
    os.remove(tmp_path / "mine" / "data_batch_3.bin")
    with pytest.raises(DatasetNotFoundError) as caught:
        load_cifar10(tmp_path / "mine", download=False)
    message = str(caught.value)
    for place in ("mine", "shared", "shared/cifar", "data/cifar"):
        assert str(tmp_path / place) in message
    assert f"{tmp_path / 'mine'} lacks data_batch_3.bin" in message
    assert cifar10.URL in message
    assert "$PYTAGI_DATA" in message


def test_the_folder_of_a_user_who_does_not_exist_is_named(monkeypatch):
    """It was "Could not determine home directory"."""
    monkeypatch.setenv("PYTAGI_DATA", "~nobody-of-this-name/sets")
    with pytest.raises(DatasetNotFoundError, match=r"was not found in .*/~nobody-of-this-name/sets"):
        load_cifar10(download=False)
    with pytest.raises(DatasetNotFoundError, match="there is no folder ~nobody-of-this-name/sets/cifar to download"):
        load_cifar10()


def test_a_truncated_binary_file_is_told_with_its_sizes(tmp_path, records):
    write_binary(tmp_path / "bin", records)
    path = tmp_path / "bin" / "data_batch_2.bin"
    os.truncate(path, 3073 * 7 + 11)
    with pytest.raises(ValueError, match=rf"data_batch_2.bin: expected {3073 * COUNT} bytes, found {3073 * 7 + 11}"):
        load_cifar10(tmp_path / "bin")


def test_a_label_out_of_range_is_told(tmp_path, records):
    records["test_batch"][0][3] = 77
    write_binary(tmp_path / "bin", records)
    with pytest.raises(ValueError, match=r"test_batch.bin: label 77 is outside 0\.\.9"):
        load_cifar10(tmp_path / "bin")


class RunsCommand:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize(
    "content",
    [b"", python2_pickle([1, 2]), pickle.dumps(RunsCommand(), protocol=2), cifar10_batch(*RECORDS["data_batch_1"])],
)
def test_a_python_file_that_is_not_the_official_one_is_not_unpickled(tmp_path, records, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "py", records)
    (tmp_path / "py" / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=rf"test_batch: {len(content)} bytes with md5 .* official .* binary files"):
        load_cifar10(tmp_path / "py")
    assert not (tmp_path / "was-run").exists()


def test_a_python_file_that_is_too_large_is_not_read(tmp_path, records):
    write_python(tmp_path / "py", records)
    with (tmp_path / "py" / "data_batch_1").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=f"data_batch_1 has {1 << 40} bytes, more than the"):
        load_cifar10(tmp_path / "py")


def archive_of(folder):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, f"cifar-10-batches-bin/{path.name}")
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    return stream.getvalue()


@pytest.fixture
def served(tmp_path, records, monkeypatch):
    """Serve an archive as if it were the official one."""
    write_binary(tmp_path / "source", records)

    def serve(archive, md5=None, **options):
        server = file_server({"cifar-10-binary.tar.gz": archive}, **options)
        url = server.__enter__()
        monkeypatch.setattr(cifar10, "URL", url + "cifar-10-binary.tar.gz")
        monkeypatch.setattr(cifar10, "MD5", md5 or hashlib.md5(archive).hexdigest())
        servers.append(server)

    servers = []
    yield serve
    for server in servers:
        server.__exit__(None, None, None)


def test_downloads_once_and_loads(tmp_path, records, served, capfd, monkeypatch):
    served(archive_of(tmp_path / "source"))
    train, _ = load_cifar10(progress=False)
    np.testing.assert_array_equal(train.images[:COUNT].reshape(COUNT, -1), records["data_batch_1"][1])
    folder = tmp_path / "data" / "cifar"
    assert [path.name for path in folder.iterdir()] == ["cifar-10-batches-bin"]
    assert len(list((folder / "cifar-10-batches-bin").iterdir())) == 6
    assert not (folder / "outside").exists()
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/not-asked")
    load_cifar10()
    assert capfd.readouterr() == ("", "")


def test_downloads_into_the_folder_named(tmp_path, served, monkeypatch):
    served(archive_of(tmp_path / "source"))
    assert download_cifar10(tmp_path / "mine", progress=False) == tmp_path / "mine" / "cifar-10-batches-bin"
    monkeypatch.setenv("PYTAGI_DATA", str(tmp_path / "shared"))
    assert download_cifar10(progress=False) == tmp_path / "shared" / "cifar" / "cifar-10-batches-bin"


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"md5": "0" * 32}, "expected md5 000"), ({"broken_off": True}, "broke off")],
)
def test_a_failed_download_is_a_data_set_not_found(tmp_path, served, options, reason):
    served(archive_of(tmp_path / "source"), **options)
    with pytest.raises(DatasetNotFoundError, match=f"the download failed: .*{reason}"):
        load_cifar10(progress=False)
    assert find_cifar10() is None
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written_is_a_data_set_not_found(tmp_path, served):
    served(archive_of(tmp_path / "source"))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DatasetNotFoundError, match="the download failed"):
        download_cifar10(tmp_path / "file", progress=False)
