"""Every number of a training step against pytagi's, from the same parameters."""

import pytest

from tests.nn import golden
from tests.nn.networks import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:the running statistics of:UserWarning")  # pytagi's have none

LOOSE = ("mixturetanh_last", "mixturesigmoid_last", "closedformsoftmax_last")  # cancellation at the output


def assert_close(actual, expected, tolerance, what):
    assert_same({what: actual}, {what: expected}, tolerance)


@pytest.mark.parametrize("name", golden.NAMES)
def test_recorded_case(name):
    case = golden.load(name)
    tolerance = 2e-4 if name in LOOSE else 2e-5
    net = golden.make_network(case)
    net.input_state_update = True
    leaves = [leaf for _, leaf in net.named_leaves()]
    net.load_state_dict(golden.parameters(case, "params0"))

    for step in range(len(case["batches"])):
        if step:
            net.load_state_dict(golden.parameters(case, f"{step - 1}/params"))
        mu, var = net(case[f"{step}/x"], case.get(f"{step}/var_x"))
        assert_close(mu, case[f"{step}/out_mu"], tolerance, f"step {step} output means")
        assert_close(var, case[f"{step}/out_var"], tolerance, f"step {step} output variances")

        golden.update_output(net, case, step)
        deltas = net.input_delta_z_buffer
        assert_close(deltas.delta_mu, case[f"{step}/out_delta_mu"], tolerance, f"step {step} output delta means")
        assert_close(deltas.delta_var, case[f"{step}/out_delta_var"], tolerance, f"step {step} output delta variances")

        net.backward()
        of_input = ("mu", "var") if f"{step}/in_delta_mu" in case else ()  # categories have none
        for got, which in zip(net.get_input_states(), of_input, strict=bool(of_input)):
            assert_close(got, case[f"{step}/in_delta_{which}"], tolerance, f"step {step} input delta {which}")
        recorded = {int(key.split("/")[2]) for key in case if key.startswith(f"{step}/delta/")}
        assert recorded == {i for i, leaf in enumerate(leaves) if leaf.parameters is not None}
        for index in recorded:
            for field in golden.FIELDS:
                expected = case[f"{step}/delta/{index}/{field}"]
                got = getattr(leaves[index], f"delta_{field}")
                assert_close(got, expected, tolerance, f"step {step} delta {field} of layer {index}")

        net.step()
        state = net.state_dict()
        for key, arrays in golden.parameters(case, f"{step}/params").items():
            for field, got, expected in zip(golden.FIELDS, state[key], arrays, strict=True):
                assert_close(got, expected, tolerance, f"step {step} {field} of {key}")

    net.eval()
    mu, var = net(case["eval/x"])
    assert_close(mu, case["eval/out_mu"], tolerance, "evaluation means")
    assert_close(var, case["eval/out_var"], tolerance, "evaluation variances")


def test_all_recorded_cases_are_here():
    assert len(golden.NAMES) == 52
