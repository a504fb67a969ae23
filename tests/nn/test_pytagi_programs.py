"""What programs written for pytagi do beyond calling the same functions: names they read, sizes they count on."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn import (
    AvgPool2d,
    Conv2d,
    LayerNorm,
    Linear,
    MaxPool2d,
    OutputUpdater,
    ReLU,
    ResNetBlock,
    Sequential,
)
from pytagi_ddp.nn.core.attributes import TORCH

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)


@pytest.fixture
def net():
    manual_seed(1)
    return Sequential(Linear(3, 4), ReLU(), Linear(4, 2))


def deltas(net, y, var_obs):
    net(X[: len(y)])
    OutputUpdater(net.device).update(net.output_z_buffer, y, var_obs, net.input_delta_z_buffer)
    return net.input_delta_z_buffer.delta_mu.copy(), net.input_delta_z_buffer.delta_var.copy()


def test_variances_made_for_a_full_batch_serve_the_smaller_last_one(net):
    full = np.linspace(0.1, 1, 10, dtype=np.float32)
    for _ in range(3):  # walked, recorded, replayed
        np.testing.assert_array_equal(deltas(net, Y[:3], full), deltas(net, Y[:3], full[:6]))
    with pytest.raises(ValueError, match="var_obs must hold 10 values, got 6"):
        deltas(net, Y, full[:6])


def test_variances_that_rounding_has_made_negative_are_zero(net):
    """Such as a posterior variance that a program has computed by a difference."""
    var = np.linspace(0, 2, X.size, dtype=np.float32)
    rounded = var.copy()
    rounded[0] = -3e-16
    for _ in range(3):  # walked, recorded, and where the common case is replayed
        np.testing.assert_array_equal(net(X, rounded), net(X, var))
    assert rounded[0] < 0  # the caller's array is as it was
    rounded[0] = -1e-6
    with pytest.raises(ValueError, match="var_x holds variances and must not be negative"):
        net(X, rounded)


def test_missing_inputs_are_an_error_unless_they_are_asked_for(net):
    x = X.copy()
    x[1, 2] = np.nan
    with pytest.raises(
        ValueError, match=r"NaN or infinite, the first in row 1, column 2; .*net.missing_inputs = 'standard normal'"
    ):
        net(x)
    with pytest.raises(ValueError, match="missing_inputs must be one of 'error', 'standard normal', 'pass'"):
        net.missing_inputs = "mean"
    net = Sequential(Linear(3, 2))
    net.missing_inputs = "pass"
    mu, var = (moments.reshape(5, 2) for moments in net(x))
    for moments in (mu, var):
        assert np.isnan(moments[1]).all() and np.isfinite(moments[[0, 2, 3, 4]]).all()
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="mu_x: 1 of 15"):
        net(x)


@pytest.mark.parametrize("var_x", [None, np.full((5, 3), 0.5, np.float32)])
def test_a_missing_input_is_a_standard_normal(net, var_x):
    x = X.copy()
    x[1, 2] = np.nan
    filled, var = x.copy(), np.zeros((5, 3), np.float32) if var_x is None else var_x.copy()
    filled[1, 2], var[1, 2] = 0, 1
    expected = net(filled, var)
    net.missing_inputs = "standard normal"
    for _ in range(3):
        np.testing.assert_array_equal(net(x, var_x), expected)
    np.testing.assert_array_equal(net.predict(x, var_x=var_x), np.reshape(expected, (2, 5, 2)))
    assert np.isnan(x[1, 2])  # the caller's array is as it was


def test_names_of_layers():
    manual_seed(1)
    conv = Conv2d(1, 2, 3, bias=False, stride=2, padding=1, padding_type=2, in_width=8, in_height=8, gain_weight=0.5)
    assert (conv.kernel_size, conv.stride, conv.padding, conv.padding_type, conv.is_bias) == (3, 2, 1, 2, False)
    assert (conv.gain_w, conv.gain_b) == (0.5, 1.0)
    assert (MaxPool2d(3, 2).kernel_size, AvgPool2d(2).stride) == (3, 2)
    with pytest.raises(RuntimeError, match=re.escape("call to_device('cuda') of the Sequential")):
        conv.to_cuda()


@pytest.mark.parametrize(
    "name", ["input_size", "out_width", "num_weights", "is_bias", "device", "num_threads", "gain_w"]
)
def test_what_cannot_be_assigned_says_what_to_do(net, name):
    with pytest.raises(AttributeError, match=f"Linear.{name} cannot be assigned: "):
        setattr(net.layers[0], name, 3)


def test_blocks_show_their_buffers():
    block = ResNetBlock(Linear(4, 4))
    assert block.input_z.size == 0
    manual_seed(1)
    net = Sequential(Linear(3, 4), ReLU(), block)
    net(X)
    head = Sequential(copy.deepcopy(net.layers[0]), ReLU())
    head(X)
    for buffer in (block.input_z, block.shortcut_output_z):  # the shortcut is the identity
        np.testing.assert_array_equal(buffer.mu_a, head.output_z_buffer.mu_a)
        np.testing.assert_array_equal(buffer.jcb, head.output_z_buffer.jcb)
        with pytest.raises(AttributeError, match="variances inside a network are not kept"):
            _ = buffer.var_a
    for name in ("main_block", "shortcut", "input_z"):
        with pytest.raises(AttributeError, match="cannot be assigned"):
            setattr(block, name, None)
    with pytest.raises(AttributeError, match="not kept"):
        _ = block.input_delta_z
    with pytest.raises(AttributeError, match="the output of a shortcut is not kept"):
        _ = ResNetBlock(Linear(4, 4), Linear(4, 4)).shortcut_output_z
    net.eval()
    with pytest.raises(AttributeError, match="in evaluation mode nothing is kept"):
        _ = block.input_z


def test_a_device_that_is_assigned_is_where_the_network_goes(net):
    net.device = "cpu"
    with pytest.raises(ValueError, match="tpu"):
        net.device = "tpu"
    with pytest.raises(AttributeError, match="follows from the last forward pass"):
        net.z_buffer_size = 3


def test_a_foreign_state_dict_is_answered_with_all_that_is_wrong(net):
    before = net.state_dict()
    foreign = Sequential(Linear(3, 5), ReLU(), Linear(5, 2), ReLU(), Linear(2, 2)).state_dict()
    foreign["Linear.7"] = foreign.pop("Linear.2")
    with pytest.raises(KeyError) as caught:
        net.load_state_dict(foreign)
    message = caught.value.args[0]
    for part in ("it lacks Linear.2", "no place for Linear.4, Linear.7", "Linear.0 mu_w must hold 12 values, got 15"):
        assert part in message
    assert net.state_dict() == before


def test_a_file_for_pytagi_with_a_layer_norm_is_read_again(tmp_path):
    norm = [Sequential(Linear(3, 4), LayerNorm([4]), ReLU(), Linear(4, 2)) for _ in range(2)]
    norm[0].save_pytagi(tmp_path / "net.bin")
    norm[1].load(tmp_path / "net.bin")
    assert norm[0].state_dict() == norm[1].state_dict()


def test_the_file_for_pytagi_is_that_of_pytagi(tmp_path):
    """A file that pytagi wrote, loaded and written again, is the same file."""
    from tests.nn.test_pytagi_files import FOLDER, NETWORKS

    for name in NETWORKS.keys() - {"dense"}:  # which has a LayerNorm, whose last batch pytagi writes too
        net = NETWORKS[name]()
        net.load(FOLDER / f"{name}.bin")
        net.save_pytagi(tmp_path / "again.bin")
        assert (tmp_path / "again.bin").read_bytes() == (FOLDER / f"{name}.bin").read_bytes(), name


def test_what_is_a_view_and_what_is_a_copy(net):
    """As docs/pytagi.md says: pytagi gives copies of all of them."""

    def learn():
        deltas(net, Y, 0.1)
        net.backward()
        net.step()

    learn()
    mu_w, kept = net.layers[0].mu_w, net.layers[0].mu_w.copy()
    copies = [net.state_dict()["Linear.0"][0], net.parameters()[0][0]]
    learn()
    assert not np.array_equal(mu_w, kept) and np.array_equal(mu_w, net.layers[0].mu_w)
    np.testing.assert_array_equal(copies, [kept, kept])


def test_an_update_needs_an_output(net):
    updater = OutputUpdater(net.device)
    calls = (
        lambda: updater.update(net.output_z_buffer, Y, 0.1, net.input_delta_z_buffer),
        lambda: updater.update_using_indices(net.output_z_buffer, Y[:, 0], 0.1, [1] * 5, net.input_delta_z_buffer),
        lambda: updater.update_heteros(net.output_z_buffer, Y[:, 0], net.input_delta_z_buffer),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="call the network first"):
            call()


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match=r"pytagi_ddp\.nn has no 'LeakyRelu'; did you mean LeakyReLU"):
        _ = nn.LeakyRelu
    for name in ("relu", "Relu"):
        with pytest.raises(AttributeError, match=f"has no '{name}'; did you mean ReLU\\?"):
            getattr(nn, name)
    for name, hint in (
        ("Flatten", "it is not needed"),
        ("Upsample", "use ConvTranspose2d"),
        ("GRU", "use LSTM"),
        ("GELU", "there is none"),
    ):
        with pytest.raises(AttributeError, match=f"has no '{name}'; {hint}"):
            getattr(nn, name)
    assert not TORCH.keys() & set(nn.__all__)
    with pytest.raises(AttributeError, match="has no 'Zzz'; there are ELU, LSTM"):
        _ = nn.Zzz
    assert not hasattr(nn, "__path_of_nothing__")


class Tensor:
    """What NumPy refuses to read as PyTorch's tensors that take part in a gradient."""

    def __init__(self, values):
        self._values = values

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    def detach(self):
        return SimpleNamespace(cpu=lambda: self._values)


def test_tensors_that_take_part_in_a_gradient(net):
    np.testing.assert_array_equal(net(Tensor(X)), net(X))


PROGRAM = """
import sys
import numpy as np
import pytagi
import pytagi.metric as metric
from pytagi import HRCSoftmax, Normalizer, cuda, manual_seed
from pytagi.metric import HRCSoftmaxMetric
from pytagi.nn import DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential
from pytagi.nn.base_layer import BaseLayer
from pytagi.nn.data_struct import BaseDeltaStates, BaseHiddenStates, HRCSoftmax
from pytagi.nn.ddp import DDPSequential as same
from pytagi.nn.rms_norm import RMSNorm
from pytagi.nn.tlstm import TLSTM
from pytagi.tagi_utils import Utils

assert same is DDPSequential and issubclass(Linear, BaseLayer)
manual_seed(3)
net = Sequential(Linear(1, 8), ReLU(), Linear(8, 1))
ddp = DDPSequential(net, DDPConfig([0], "nccl", 0, 1), True)
updater = OutputUpdater(net.device)
x, y = np.linspace(-1, 1, 10, dtype=np.float32), np.linspace(0, 1, 10, dtype=np.float32)
var_y = np.full(16, 0.01, np.float32)
net.lstm_look_back_len, net.smooth = 4, True  # Canari keeps values of its own in a network
assert (net.lstm_look_back_len, net.smooth, net.num_samples) == (4, True, 0)
try:
    net.learning_rate = 0.1
except AttributeError as error:
    assert "TAGI has none" in str(error)
else:
    raise AssertionError("an attribute of another library")
errors = []
for _ in range(30):
    mu, var = ddp(x)
    updater.update(ddp.output_z_buffer, y, var_y, ddp.input_delta_z_buffer)
    ddp.backward()
    ddp.step()
    errors.append(metric.mse(mu, y))
assert errors[-1] < 0.2 * errors[0], errors
print(sys.argv[1], __name__, pytagi.__name__)
"""


def test_a_program_of_pytagi_runs_as_it_is(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytagi_ddp.as_pytagi", str(tmp_path / "program.py"), "seven"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["seven", "__main__", "pytagi_ddp"]
    assert done.stderr.count("UserWarning") == 1 and "instead of NCCL" in done.stderr


def test_a_module_of_a_package_runs_as_it_is(tmp_path):
    """pytagi's examples import each other by the name of their folder, from where they are started."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "data_loader.py").write_text("from pytagi import Normalizer")
    lines = (
        "import sys",
        "from programs.data_loader import Normalizer",
        "print(__name__, Normalizer.__module__, sys.argv)",
    )
    (folder / "program.py").write_text("\n".join(lines))
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytagi_ddp.as_pytagi", "-m", "programs.program", "7"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"__main__ pytagi_ddp.tagi_utils ['{folder / 'program.py'}', '7']"


STARTS_A_PROCESS = """
import sys
from multiprocessing import get_context
import pytagi
from pytagi.nn import Linear

def library(_):
    import pytagi.nn.linear
    return f"{pytagi.__name__} {pytagi.nn.linear.Linear.__module__} {Linear is pytagi.nn.linear.Linear}"

if __name__ == "__main__":
    for method in sys.argv[1:]:
        with get_context(method).Pool(1) as pool:
            print(method, pool.map(library, [0])[0])
"""


def test_a_process_that_a_program_starts_has_this_library_too(tmp_path):
    """Even where pytagi lies beside the program, as it does in its own repository."""
    (tmp_path / "program.py").write_text(STARTS_A_PROCESS)
    (tmp_path / "pytagi.py").write_text("raise ImportError('the other library')")
    command = [sys.executable, "-m", "pytagi_ddp.as_pytagi", str(tmp_path / "program.py"), "spawn", "forkserver"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [f"{method} pytagi_ddp pytagi_ddp.nn.layers.linear True" for method in ("spawn", "forkserver")]
    assert (done.returncode, done.stdout.splitlines()) == (0, found), done.stderr


USAGE = """
from pytagi_ddp.as_pytagi import main
for argv in (["--help"], ["--no-such-option"], ["no.py"], ["-m", "no.such"]):
    try:
        main(argv)
    except SystemExit as error:
        print("exits:", str(error).replace(chr(10), "; "))
"""


def test_usage_of_as_pytagi():
    done = subprocess.run([sys.executable, "-c", USAGE], capture_output=True, text=True, timeout=120, check=True)
    usage = "usage: python -m pytagi_ddp.as_pytagi PROGRAM.py ARGUMENTS ..., or -m MODULE ARGUMENTS ..."
    assert done.stdout.splitlines() == [
        usage,
        f"exits: {usage}",
        f"exits: there is no program no.py; {usage}",
        f"exits: there is no module no.such; {usage}",
    ]
