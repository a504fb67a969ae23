"""An error on one rank is raised on all ranks."""

import pytest

from pytagi_ddp.distributed import initialize, run_threads
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks


class OfTwoArguments(Exception):
    """Pickles, but cannot be made again from its one argument."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


def one_of_a_function():
    class Local(Exception):
        """Does not pickle."""

    return Local("the file: is gone")


@pytest.mark.parametrize("make", [lambda: OfTwoArguments("the file", "is gone"), one_of_a_function])
def test_errors_that_python_cannot_send(make):
    def program():
        communicator, error = initialize(), make()
        try:
            with errors_of_all_ranks(communicator):
                if communicator.rank == 1:
                    raise error
        except Exception as raised:
            return type(raised), str(raised)

    own = type(make()).__name__
    (kind, text), (kind_of_1, text_of_1) = run_threads(program, 2)
    assert (kind, text) == (RuntimeError, f"{own}: the file: is gone")
    assert (kind_of_1.__name__, text_of_1) == (own, "the file: is gone")
