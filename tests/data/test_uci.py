"""The regression sets, with small ones in the place of the published."""

import io
import zipfile

import numpy as np
import pytest

from pytagi_ddp.data import DatasetNotFoundError, RegressionSplits, download_uci, find_uci, load_uci, uci
from pytagi_ddp.data.uci import UCI_SETS
from tests.data.file_server import file_server

pytestmark = pytest.mark.usefixtures("empty_machine")


@pytest.fixture
def small(monkeypatch):
    """A set "yacht" of 11 samples with 2 features and 3 splits."""
    rng = np.random.default_rng(0)
    test = np.zeros((3, 11), bool)
    for row in test:
        row[rng.choice(11, 2, replace=False)] = True
    made = RegressionSplits("yacht", rng.normal(size=(11, 2)), rng.normal(size=11), test)
    monkeypatch.setitem(UCI_SETS, "yacht", uci.Sizes(11, 2, 3, made.checksum()))
    return made


def texts(data):
    """The published files: the target stands between the features."""
    columns = np.c_[data.x[:, 0], data.y, data.x[:, 1]]
    files = {"data.txt": "\n".join(" ".join(map(repr, row)) for row in columns.tolist())}
    files |= {"index_features.txt": "0.000e+00\n2.000e+00\n", "index_target.txt": "1\n"}
    for k, row in enumerate(data.test):
        files[f"index_test_{k}.txt"] = "\n".join(map(str, np.flatnonzero(row)[::-1]))
    return {name: text.encode() for name, text in files.items()}


def write(folder, data):
    folder.mkdir(parents=True)
    for name, content in texts(data).items():
        (folder / name).write_bytes(content)


def same(found, data):
    return all(np.array_equal(getattr(found, name), getattr(data, name)) for name in ("x", "y", "test"))


def test_the_nine_sets_are_named():
    assert len(UCI_SETS) == 9 and UCI_SETS["bostonHousing"][:3] == (506, 13, 20)
    assert [name for name, published in UCI_SETS.items() if published.splits != 20] == ["protein-tertiary-structure"]


def test_a_split_has_each_sample_once(small):
    x, y, x_test, y_test = small.split(1)
    assert x.shape == (9, 2) and y_test.shape == (2,)
    assert sorted([*y, *y_test]) == sorted(small.y)
    np.testing.assert_array_equal(x_test, small.x[small.test[1]])


@pytest.mark.parametrize("subfolder", ["yacht/data", "UCI_Datasets/yacht/data"])
def test_text_files_load(tmp_path, small, subfolder):
    write(tmp_path / "mine" / subfolder, small)
    assert same(load_uci("yacht", tmp_path / "mine", download=False), small)
    assert find_uci("yacht", tmp_path / "mine") == tmp_path / "mine" / subfolder


def test_what_is_downloaded_is_kept_as_numbers(tmp_path, small, monkeypatch):
    with file_server({f"yacht/data/{name}": text for name, text in texts(small).items()}) as url:
        monkeypatch.setattr(uci, "URL", url)
        assert same(load_uci("yacht", tmp_path / "mine", progress=False), small)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["yacht.npz"]
    assert same(load_uci("yacht", tmp_path / "mine", download=False), small)


def test_other_numbers_than_the_published_are_refused(tmp_path, small, monkeypatch):
    files = texts(small) | {"index_test_2.txt": b"0 1"}
    with file_server({f"yacht/data/{name}": text for name, text in files.items()}) as url:
        monkeypatch.setattr(uci, "URL", url)
        with pytest.raises(DatasetNotFoundError, match="not the published yacht"):
            download_uci("yacht", tmp_path / "mine", progress=False)
    assert not (tmp_path / "mine").exists()
    with file_server({}) as url:
        monkeypatch.setattr(uci, "URL", url)
        with pytest.raises(DatasetNotFoundError, match="404"):
            load_uci("yacht", tmp_path / "mine", progress=False)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("data.txt", b"1 2 3", "3 numbers are not whole rows"),
        ("data.txt", b"1 2 x", "not only 66 numbers at most"),
        ("data.txt", b"1 " * 2000, "not only 66 numbers at most"),
        ("data.txt", b"", "expected finite numbers"),
        ("data.txt", b"1" * 6000, "6000 bytes for 66 numbers at most"),
        ("index_features.txt", b"0 0", "2 different integers from 0 to 2"),
        ("index_features.txt", b"0 3", "2 different integers from 0 to 2"),
        ("index_target.txt", b"0.5", "1 different integers"),
        ("index_test_1.txt", b"1e300", "some different integers from 0 to 10"),
    ],
)
def test_damaged_text_is_named(tmp_path, small, name, content, message):
    folder = tmp_path / "mine" / "yacht" / "data"
    write(folder, small)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{folder / name}.*{message}"):
        load_uci("yacht", tmp_path / "mine", download=False)


def test_what_does_not_belong_in_a_file_is_not_read(tmp_path, small, monkeypatch):
    """The list of the members of an archive took 20 times its size, and an error repeated the whole file."""
    (tmp_path / "data.txt").write_bytes(b"x" * 4000)
    with pytest.raises(ValueError, match="not only 66 numbers at most") as caught:
        uci._numbers(tmp_path / "data.txt", 66)
    assert len(str(caught.value)) < 1000
    with zipfile.ZipFile(tmp_path / "yacht.npz", "w") as archive:
        for number in range(100):
            archive.writestr(f"{number}", b"")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(ValueError, match="bytes, and this set has 4393 at most"):
        load_uci("yacht", tmp_path, download=False)


def test_damaged_archives_are_named(tmp_path, small):
    path = tmp_path / "yacht.npz"
    arrays = {"x": small.x, "y": small.y, "test": np.packbits(small.test, axis=1)}

    def refused(content, message):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path}.*{message}"):
            load_uci("yacht", tmp_path, download=False)

    def packed(**changed):
        memory = io.BytesIO()
        np.savez(memory, **(arrays | changed))
        return memory.getvalue()

    path.write_bytes(packed(x=np.asfortranarray(small.x)))
    assert same(load_uci("yacht", tmp_path, download=False), small)
    refused(b"nothing", "not a zip file")
    refused(packed(x=small.x[:3]), "cannot reshape")
    refused(packed(x=small.x[:, 0].astype(object)), "allow_pickle")
    refused(packed(y=small.y + 1)[:-40], "not a zip file")
    refused(packed(z=np.zeros(9000)), "bytes, and this set has")
    for header in (b"{'descr': (", b"{'descr':\n  '", b"  {\n {", b"{" * 90, b"1"):  # what Python's parser raised for
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w") as archive:
            start = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n"
            archive.writestr("x.npy", start + small.x.tobytes())
        refused(memory.getvalue(), "expected an npz file")
    for changed in (packed(x=small.x.T.copy()), packed(y=small.y + 1)):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="not the published yacht"):
            load_uci("yacht", tmp_path, download=False)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no set 'boston', only yacht, bostonHousing"):
        load_uci("boston", tmp_path)
    with pytest.raises(
        DatasetNotFoundError, match=r"energy was not found .* subfolders UCI_Datasets/energy/data, energy"
    ):
        load_uci("energy", tmp_path, download=False)
