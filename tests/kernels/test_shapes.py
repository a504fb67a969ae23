"""Compiled loops neither read nor write beside their arrays: arrays that do not fit together are refused before."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import layer_norm
from pytagi_ddp.kernels.cpu.runtime.shapes import KEPT, Shapes
from pytagi_ddp.kernels.tensors import Delta, State, Tensor
from tests.kernels.all_loops import arguments, loops

LOOPS = dict(loops())


def test_deltas_of_another_batch_do_not_reach_layer_normalisation():
    """As many numbers: it wrote past the rows of its scratch memory."""
    x = State(*np.ones((2, 64, 1, 6), np.float32))
    deltas = Delta(*np.ones((2, 1, 64, 6), np.float32))
    affine = Tensor(*np.ones((4, 6), np.float32))
    mean, r, partial = np.zeros(64, np.float32), np.ones(64, np.float32), np.zeros((4, 64, 6), np.float32)
    with pytest.raises(ValueError, match=r"layer_norm._backward: .* mu \(64, 1, 6\), .* delta_mu \(1, 64, 6\)"):
        layer_norm.backward(x, deltas, mean, r, affine, affine, partial, False)
    assert not partial.any()


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_refuses_an_array_that_is_one_longer(name):
    loop = LOOPS[name]
    fitting = arguments(name, loop, np.random.default_rng(0))
    loop.shapes.check(fitting)
    words = loop.shapes.words
    arrays = [(k, word) for k, word in enumerate(words) if word[0] not in "=_"]
    assert arrays
    for k, word in arrays:
        for axis, letter in enumerate(word):
            if letter.isdigit() or "".join(words).count(letter) > 1:
                shape = list(fitting[k].shape)
                shape[axis] += 1
                with pytest.raises(ValueError, match=name):
                    loop.shapes.check((*fitting[:k], np.zeros(shape, fitting[k].dtype), *fitting[k + 1 :]))


def test_arrays_that_fit_keep_every_loop_within_them():
    """Uncompiled, an index beyond an array is an IndexError."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "tests.kernels.all_loops"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == LOOPS.keys()


def a_loop(values, table, count):
    """Stands for one."""


def test_lengths_numbers_and_what_else_is_declared():
    shapes = Shapes(a_loop, "n 2n =c", lambda n: n.c <= n.n)
    values, table = np.zeros(3), np.zeros((2, 3))
    shapes.check((values, table, 3))
    for wrong in ((values, table, 4), (values, table[:, :2], 1), (values, table[:1], 1), (table, table, 1)):
        with pytest.raises(ValueError, match=r"test_shapes.a_loop: .* values \(.*\), table \(.*\)"):
            shapes.check(wrong)
    with pytest.raises(TypeError, match="a_loop"):
        Shapes(a_loop, "n n")


def test_ever_other_batch_sizes_are_not_all_remembered():
    shapes = Shapes(a_loop, "n n _")
    for size in range(KEPT + 10):
        shapes.check((np.zeros(size), np.zeros(size), None))
    assert len(shapes._known) <= KEPT
