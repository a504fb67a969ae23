"""What ranks do together belongs to one thread, like everything else that a network does."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.distributed import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
from tests.nn.test_one_thread import BUSY, X, in_thread, learn, network

WRAPPERS = {
    "DDPSequential": DDPSequential,
    "FSDPSequential": FSDPSequential,
    "PipelineSequential": lambda model, config: PipelineSequential(model, config, schedule="GPipe"),
}
CALLS = {
    "step": lambda net: net.step(),
    "update_bn": lambda net: net.update_bn([X]),
    "forget_evidence": lambda net: net.forget_evidence(2),
    "barrier": lambda net: net.barrier(),
    "load_state_dict": lambda net: net.load_state_dict(network().state_dict()),
    "drop_deltas": lambda net: net.model.drop_deltas(),
    "forward": lambda net: net(X),
    "predict": lambda net: net.predict(X),
    "synchronize": lambda net: net.synchronize(),
    "unshard": lambda net: net.unshard().__enter__(),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_calls_of_another_thread_amid_an_exchange_are_refused(kind):
    net, said = WRAPPERS[kind](network(), DDPConfig(backend="serial")), {}
    calls = {name: call for name, call in CALLS.items() if hasattr(net, name) or name == "drop_deltas"}
    all_reduce = net.communicator.all_reduce

    def meanwhile(buffer):
        net.communicator.all_reduce = all_reduce
        for name, call in calls.items():
            said[name] = in_thread(lambda call=call: call(net))
        all_reduce(buffer)

    net.communicator.all_reduce = meanwhile
    learn(net)
    assert said.keys() == calls.keys()
    assert all(BUSY in str(text) for text in said.values()), said


def test_an_average_is_neither_made_nor_used_amid_what_another_thread_does():
    net, said = network(), []
    average = nn.PosteriorAverage(net)
    average.update()
    calls = [average.update, lambda: average.average_parameters().__enter__()]
    with net.add_hook(before=lambda *_: said.extend(in_thread(call) for call in calls)):
        net(X)
    assert said and all(BUSY in str(text) for text in said)
    assert average.n_averaged == 1 and not average.in_place
    np.testing.assert_array_equal(average.theta, net.arena.theta)
