"""Files and dictionaries of networks: round trips, and what is refused."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.files import file_format, persistence
from tests.headers import with_header
from tests.nn.networks import pass_through, random_batch, randomise

GOLDEN = Path(__file__).parents[1] / "golden"


def make() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False, in_width=4, in_height=4),
        nn.MixtureReLU(),
        nn.BatchNorm2d(2),
        nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(2))),
        nn.Linear(32, 3),
    )


def train(net: nn.Sequential, steps: int = 3, seed: int = 0) -> None:
    for step in range(steps):
        pass_through(net, *random_batch(net, 5, seed + step))
        net.step()


@pytest.fixture
def trained() -> nn.Sequential:
    net = randomise(make())
    train(net)
    return net


def assert_continues_like(net: nn.Sequential, other: nn.Sequential) -> None:
    """Both take the same further steps, to the last bit, and predict the same."""
    train(net, seed=10)
    train(other, seed=10)
    assert net.state_dict() == other.state_dict()
    x = random_batch(net, 3, seed=5)[0]
    for mine, theirs in zip(net.predict(x), other.predict(x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_file_in_a_new_folder(trained, tmp_path):
    file = tmp_path / "new folder" / "net.safetensors"
    trained.save(file)
    other = make()
    other.load(str(file))
    assert other.state_dict() == trained.state_dict()
    assert np.abs(other.layers[2].running_mean).min() > 0


def test_any_safetensors_reader_understands_the_file(trained, tmp_path):
    from safetensors import safe_open

    trained.save(tmp_path / "net")
    with safe_open(tmp_path / "net", "numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("Linear.4/mu_w"), trained.layers[4].mu_w)
        np.testing.assert_array_equal(file.get_tensor("BatchNorm2d.2.running/var"), trained.layers[2].running_var)
        layers = json.loads(file.metadata()["architecture"])
    assert list(layers) == [key for key, _ in trained.named_layers()]
    assert layers["Conv2d.main.3.0"] == trained.layers[3].main_block.layers[0].settings()


def test_extra_metadata():
    data = persistence.to_bytes(make(), {"epoch": "7"})
    assert file_format.read(data, "memory").metadata["epoch"] == "7"


def test_a_copy_has_no_forward_pass_to_go_back_from(trained):
    trained(random_batch(trained, 4)[0])
    with pytest.raises(RuntimeError, match="forward pass in training mode"):
        copy.deepcopy(trained).backward()


def test_a_copy_of_a_data_parallel_network_is_on_its_own(trained):
    """The wrapper's running statistics move in its step; those of a copy of its network in the forward pass."""
    ddp = nn.DDPSequential(copy.deepcopy(trained), nn.DDPConfig(backend="serial"))
    assert_continues_like(copy.deepcopy(ddp.model), trained)


def test_a_layer_can_be_pickled_alone(trained):
    layer = pickle.loads(pickle.dumps(trained.layers[2]))
    net = nn.Sequential(layer, nn.Linear(2, 1))
    np.testing.assert_array_equal(layer.mu_w, trained.layers[2].mu_w)
    np.testing.assert_array_equal(layer.running_mean, trained.layers[2].running_mean)
    assert net.num_parameters == 4 + 3


# -- refused files ----------------------------------------------------------------------------------------------------


DAMAGES = {
    "empty": (lambda data: b"", "not a file of this architecture"),
    "half": (lambda data: data[: len(data) // 2], "truncated"),
    "one byte short": (lambda data: data[:-1], "truncated"),
    "one byte long": (lambda data: data + b"!", "truncated"),
    "only the header": (lambda data: data[: 8 + int.from_bytes(data[:8], "little")], "truncated"),
    "a value": (lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:], r"corrupt: .* checksum [0-9a-f]{8}, not"),
    "text": (lambda data: b"This is a text about networks.", "not a file of this architecture"),
    "json": (lambda data: b'{"a": 1}{"b": 2}', "not a file of this library"),
    "foreign safetensors": (lambda data: with_header(data, lambda h: h.pop("__metadata__")), "None, .* PyTorch"),
    "later version": (
        lambda data: with_header(data, lambda h: h["__metadata__"].update(format="pytagi_ddp 9")),
        "format 'pytagi_ddp 9', this version reads up to 'pytagi_ddp 3'",
    ),
    "no architecture": (
        lambda data: with_header(data, lambda h: h["__metadata__"].pop("architecture")),
        r"layer 0 is no layer there and Conv2d\.0 here",
    ),
    "other architecture text": (
        lambda data: with_header(data, lambda h: h["__metadata__"].update(architecture="[]")),
        "its architecture cannot be read: no layers by key",
    ),
    "renamed tensor": (
        lambda data: with_header(data, lambda h: h.update({"Linear.9/mu_w": h.pop("Linear.4/mu_w")})),
        r"the network has no place for Linear\.9/mu_w",
    ),
    "other type": (
        lambda data: with_header(data, lambda h: h["Linear.4/mu_w"].update(dtype="I32")),
        r"Linear\.4/mu_w.*int32",
    ),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_files(trained, tmp_path, change, message):
    """ValueError that names the file; the network stays as it was."""
    file = tmp_path / "net.safetensors"
    trained.save(file)
    file.write_bytes(change(file.read_bytes()))
    net = make()
    before = net.state_dict()
    with pytest.raises(ValueError, match=message) as error:
        net.load(file)
    assert str(file) in str(error.value)
    assert net.state_dict() == before


def test_every_damaged_byte_is_noticed(trained):
    """One bit flipped anywhere, in the header and its padding too."""
    data, net = persistence.to_bytes(trained), make()
    before = net.state_dict()
    for position in range(0, len(data), 5):
        changed = bytearray(data)
        changed[position] ^= 4
        with pytest.raises(ValueError, match=r"^memory "):
            persistence.check(net, file_format.read(bytes(changed), "memory"))
    assert net.state_dict() == before


def test_another_architecture(trained, tmp_path):
    trained.save(tmp_path / "net")
    other = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4), nn.ReLU(), nn.Linear(32, 3))
    with pytest.raises(
        ValueError, match=r"net has another architecture: bias of Conv2d\.0 is False there and True here"
    ):
        other.load(tmp_path / "net")
    with pytest.raises(FileNotFoundError, match="missing"):
        other.load(tmp_path / "missing")


# -- architecture -----------------------------------------------------------------------------------------------------


def images(*middle) -> nn.Sequential:
    """Every choice has the same sizes, so that all parameters fit; settings of layers are changed by the battery."""
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4), *middle, nn.Linear(32, 3))


OTHER_LAYERS = [
    (images(nn.ReLU()), images(nn.Tanh()), r"layer 1 is ReLU\.1 there and Tanh\.1 here"),
    (  # the same keys of layers that compute: f(x) + x, and then g of it; g(f(x)) + x
        images(nn.LayerBlock(*(nn.ResNetBlock(nn.LayerBlock(f())) for f in (nn.Sigmoid, nn.Tanh)))),
        images(nn.ResNetBlock(nn.LayerBlock(*(nn.LayerBlock(f()) for f in (nn.Sigmoid, nn.Tanh))))),
        r"layer 1 is LayerBlock\.1 there and ResNetBlock\.1 here",
    ),
]


@pytest.mark.parametrize(("written", "read", "message"), OTHER_LAYERS)
def test_a_file_of_other_layers_is_refused(written, read, message, tmp_path):
    """It would load silently: all sizes are equal."""
    read.load_state_dict(written.state_dict())
    written.save(tmp_path / "net")
    before = read.state_dict()
    with pytest.raises(ValueError, match=f"net has another architecture: {message}"):
        read.load(tmp_path / "net")
    assert read.state_dict() == before


def test_gains_and_given_image_sizes_do_not_matter(tmp_path):
    """Those of the prior are in the parameters already, and an image that comes has the size that could be given."""
    written, read = (
        nn.Sequential(
            nn.Conv2d(1, 2, 3, in_width=6, in_height=6, gain_weight=gain, gain_bias=gain),
            nn.Conv2d(2, 2, 3, **given),
            nn.BatchNorm2d(2, gain_weight=gain),
            nn.Linear(8, 1, gain_weight=gain, init_method=method),
        )
        for gain, method, given in ((1, "He", {}), (0.5, "Xavier", {"in_width": 4, "in_height": 4}))
    )
    written.save(tmp_path / "net")
    read.load(tmp_path / "net")
    assert read.state_dict() == written.state_dict()


OLD_FILE = GOLDEN / "pytagi_ddp_files" / "format_1.safetensors"


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_format_loads(version):
    """Means are k/64, variances (k + 1)/256, statistics 1, 2, ... in the order of the arena."""
    net = make()
    net.load(OLD_FILE.with_name(f"format_{version}.safetensors"))
    k = np.arange(net.num_parameters)
    np.testing.assert_array_equal(net.arena.theta, np.float32([k / 64, (k + 1) / 256]))
    np.testing.assert_array_equal(net.arena.statistics, 1 + np.arange(net.arena.statistics.size))


def test_a_changed_value_in_a_file_of_an_earlier_format_is_noticed(tmp_path):
    data = bytearray(OLD_FILE.read_bytes())
    data[-2] ^= 1
    (tmp_path / "net").write_bytes(data)
    with pytest.raises(ValueError, match=r"net is truncated or corrupt: it has checksum [0-9a-f]{8}, not [0-9a-f]{8}"):
        make().load(tmp_path / "net")


def test_a_file_cannot_pass_for_one_of_an_earlier_format(trained, tmp_path):
    """Whose header was not looked at."""
    data = persistence.to_bytes(trained)
    for version in (b"1", b"2"):
        (tmp_path / "net").write_bytes(data.replace(b'"format":"pytagi_ddp 3"', b'"format":"pytagi_ddp %s"' % version))
        with pytest.raises(ValueError, match="net is truncated or corrupt: it has checksum"):
            make().load(tmp_path / "net")


def test_a_file_without_settings_is_compared_by_its_sizes():
    other = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False, in_width=4, in_height=4), nn.ReLU(), nn.Linear(32, 3)
    )
    with pytest.raises(
        ValueError, match=r"layer 1 is MixtureReLU\.1: MixtureReLU\(\) there and ReLU\.1: ReLU\(\) here"
    ):
        other.load(OLD_FILE)
