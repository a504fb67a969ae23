"""A process that a rank forks cannot change what the ranks have."""

import json
import os
import threading

import numpy as np
import pytest

from pytagi_ddp.nn import DDPConfig, FSDPSequential
from tests.learning import learn
from tests.mpi.ddp_networks import WITHOUT_BATCH_NORM, batch, error_of
from tests.mpi.rank import job_folder, note
from tests.mpi.shared import on_ranks


def in_child(work) -> list:
    """What ``work()`` returns in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            note(f"child {os.getppid()}", json.dumps(work()))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return json.loads((job_folder() / f"child {os.getpid()}").read_text())


def forks(comm, reshard):
    config = DDPConfig(backend=comm.backend)
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), config, reshard_after_forward=reshard, min_num_params=60)
    x, y = batch(net.model, 3, comm.rank)
    for _ in range(3):  # passes are recorded
        learn(net, x, y)
        before = net.predict(x)[0]
    state, layer = net.model.state_dict() if not reshard else {}, net.model.layers[0]
    view = None if reshard else layer.mu_w

    def work():
        if view is not None:
            view[:] = 9
        calls = {
            "predict": lambda: net.predict(x),
            "read": lambda: layer.mu_w,
            "write": lambda: setattr(layer, "mu_w", np.full(layer.num_weights, 9.0)),
            "load": lambda: net.load_state_dict({k: [np.full_like(a, 9) for a in v] for k, v in state.items()}),
        }
        return {name: error_of(call, RuntimeError) for name, call in calls.items()}

    said = in_child(work)
    comm.barrier()
    return said, np.array_equal(net.predict(x)[0], before)


@on_ranks(forks, 2, threads=False)
@pytest.mark.parametrize("reshard", [True, False])
def test_a_forked_process_changes_nothing_of_the_ranks(results, reshard):
    for rank, (said, unchanged) in enumerate(results):
        assert unchanged
        refused = {name for name, text in said.items() if f"forked from rank {rank}" in text}
        if reshard:
            assert "predict" in refused
        else:
            assert refused == {"load"}  # which is collective
            assert all(not text for name, text in said.items() if name not in refused)


def forks_beside_a_pass(comm):
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), DDPConfig(backend=comm.backend), min_num_params=60)
    x, _ = batch(net.model, 3, comm.rank)
    said = []

    def work():
        return [error_of(lambda: net.predict(x), RuntimeError)]

    def fork(*_):
        if not said:
            thread = threading.Thread(target=lambda: said.extend(in_child(work)))
            thread.start()
            thread.join()

    with net.model.add_hook(before=fork):
        net(x)
    comm.barrier()
    return said


@on_ranks(forks_beside_a_pass, 2, threads=False)
def test_a_process_that_another_thread_forks_amid_a_pass(results):
    for (said,) in results:
        assert "another thread" in said
