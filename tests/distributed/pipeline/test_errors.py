"""What ends a pipeline: everybody hears of it, and nobody waits for ever."""

import os

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import DDPConfig, PipelineSequential, RankLeftError, run_threads

X, Y = np.ones((6, 4)), np.zeros((6, 2))


class Silent(nn.Tanh):
    """An activation that does not say that it gives a Jacobian."""

    gives_jacobian = False


def pipeline(*activations: nn.BaseLayer, **options) -> PipelineSequential:
    manual_seed(1)
    layers = activations or (nn.ReLU(),)
    model = nn.Sequential(nn.Linear(4, 5), *layers, nn.Linear(5, 2))
    return PipelineSequential(model, n_microbatches=3, **options)


def observe(states, rows, deltas) -> None:
    nn.OutputUpdater("cpu").update(states, Y[rows], 1.0, deltas)


def errors(program, **options) -> list[Exception | None]:
    """What `program(net)` raises on each of two ranks; a rank that raises leaves."""
    found = [None, None]

    def run() -> None:
        net = pipeline(**options)
        try:
            program(net)
        except Exception as error:
            found[net.rank] = error
            raise

    with pytest.raises(Exception):  # noqa: B017 - it is in `found`
        run_threads(run, 2)
    return found


@pytest.mark.parametrize(
    "call",
    [
        lambda net: net.predict(X),
        lambda net: net.save(os.devnull),
        lambda net: net.state_dict(),
        lambda net: net.forward_backward(X, observe),
        lambda net: net.step(),
        lambda net: net.update_bn([X]),
        lambda net: net.forget_evidence(2),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_alone(call, rank):
    found = errors(lambda net: call(net) if net.rank == rank else None)
    assert isinstance(found[rank], RankLeftError)
    assert found[1 - rank] is None


def test_ranks_that_call_different_methods():
    found = errors(lambda net: net.predict(X) if net.is_last else net.forward_backward(X, observe))
    assert "stage 1 is in predict(), the stage in front of it in forward_backward()" in str(found[1])
    assert isinstance(found[0], RankLeftError)


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    found = errors(lambda net: net.save(tmp_path / "file" / "net"))
    assert all(isinstance(error, OSError) and "file" in str(error) for error in found), found


def test_observations_that_fail():
    def fail(states, rows, deltas):
        if rows.start > 2:
            raise ZeroDivisionError("observations")
        observe(states, rows, deltas)

    found = errors(lambda net: net.forward_backward(X, fail))
    assert isinstance(found[1], ZeroDivisionError)
    assert isinstance(found[0], RankLeftError)


def test_no_observations():
    found = errors(lambda net: net.forward_backward(X, observe if net.is_first else None))
    assert "on the last stage needs a function observe, got None" in str(found[1])
    assert isinstance(found[0], RankLeftError)


def test_one_stage_in_evaluation_mode():
    def program(net):
        if net.is_last:
            net.eval()
        net(X)

    found = errors(program, schedule="GPipe")
    said = "is in forward() in evaluation mode, the stage in front of it in forward() in training mode"
    assert said in str(found[1])


def test_nobody_goes_on_after_a_pass_that_was_cut_short():
    """Also where the program does not mind: messages of that pass could be taken for those of another one."""
    said = []

    def program(net):
        try:
            net.forward_backward(X, lambda *_: 1 / 0)
        except ZeroDivisionError:
            for call in (lambda: net.forward_backward(X, observe), lambda: net.predict(X)):
                with pytest.raises(RuntimeError) as caught:
                    call()
                said.append(str(caught.value))

    errors(program)
    assert all("a pass was cut short by ZeroDivisionError" in text for text in said) and len(said) == 2


def test_a_single_stage_goes_on():
    trained = []
    for fails in (True, False):
        net = pipeline(config=DDPConfig(backend="serial"))
        if fails:
            with pytest.raises(ZeroDivisionError):
                net.forward_backward(X, lambda *_: 1 / 0)
        net.forward_backward(X, observe)
        net.step()
        trained.append(net.state_dict())
    assert trained[0] == trained[1]


def test_deltas_of_the_micro_batch_before():
    found = errors(lambda net: net.forward_backward(X, lambda *_: None))
    assert "observe has left the deltas of an earlier micro-batch" in str(found[1])


def cut_short(net, raises):
    """An accumulation that an exception ends, outside of passes; the next batch is another one."""
    try:
        with net.no_sync():
            net.forward_backward(X, observe)
            if raises:
                raise StopIteration
    except StopIteration:
        pass
    net.forward_backward(X[:3], observe)
    net.step()
    return net.state_dict()


def test_an_accumulation_that_is_cut_short_is_forgotten():
    net = pipeline(config=DDPConfig(backend="serial"))
    net.forward_backward(X[:3], observe)
    net.step()
    assert run_threads(lambda: cut_short(pipeline(), True), 2) == [net.state_dict()] * 2


def test_an_accumulation_that_is_cut_short_on_one_rank():
    found = errors(lambda net: cut_short(net, net.is_first))
    assert "stage 1 has deltas of 6 samples to add to, the stage in front of it of 0: what leaves" in str(found[1])


def test_deltas_of_another_size():
    found = errors(lambda net: net.forward_backward(X, lambda states, rows, deltas: deltas.set_size(3, 1)))
    assert "observe has left deltas of 1 x 3 units, the micro-batch has 2 x 2" in str(found[1])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((6, 5)), "x holds 30 values, not a whole number of samples of 4 inputs"),
        (np.full((6, 4), np.nan), "mu_x"),
        (None, "on the first stage needs an array of inputs, got NoneType"),
    ],
)
def test_inputs_that_do_not_fit(x, message):
    found = errors(lambda net: net.forward_backward(x, observe))
    assert message in str(found[0])
    assert isinstance(found[1], RankLeftError)


def test_a_layer_with_a_jacobian_that_it_does_not_tell_of():
    with pytest.raises(RuntimeError, match=r"Silent\(\) gives 3 arrays instead of 2|Tanh"):
        run_threads(lambda: pipeline(Silent(), balance=[2, 1]).forward_backward(X, observe), 2)


def test_deltas_of_another_batch():
    def program():
        net = pipeline(schedule="GPipe")
        net(X)
        if net.is_last:
            net.input_delta_z_buffer.set_size(4, 2)
        net.backward()

    with pytest.raises(ValueError, match="holds 2 x 2 deltas, the batch has 6 x 2"):
        run_threads(program, 2)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_a_step_without_the_backward_pass(schedule):
    """Every stage says so, and the pipeline can go on; a batch that is skipped is none."""

    def program():
        net = pipeline(schedule=schedule)
        net.step()
        before = net.state_dict()
        if schedule == "GPipe":
            for _ in range(2):
                net(X)
                if net.is_last:
                    nn.OutputUpdater("cpu").update(net.output_z_buffer, Y, 1.0, net.input_delta_z_buffer)
            with pytest.raises(RuntimeError, match=r"step\(\) while the deltas .* call backward\(\) first"):
                net.step()
            assert net.state_dict() == before
            net.backward()
            net.step()
            net(X)
            net.step()
        with pytest.raises(RuntimeError, match=r"step\(\) of a network in a PipelineSequential"):
            net.stage.step()

    run_threads(program, 2)


CHANGES = {
    "step": lambda net, values: net.step(),
    "load_state_dict": lambda net, values: net.load_state_dict(values),
    "eval": lambda net, values: net.eval(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_backward_by_other_parameters_or_in_another_mode(change):
    """Every stage says so before it waits for deltas of another one; so the pipeline can go on."""

    def learn(net, between=lambda: None):
        net(X)
        between()
        if net.is_last:
            nn.OutputUpdater("cpu").update(net.output_z_buffer, Y, 1.0, net.input_delta_z_buffer)
        net.backward()
        net.step()

    def program():
        net = pipeline(schedule="GPipe")
        values = net.state_dict()
        learn(net)
        with pytest.raises(RuntimeError, match="no step, and no other change"):
            learn(net, lambda: CHANGES[change](net, values))
        net.train()
        learn(net)

    run_threads(program, 2)
