"""DistributedDataContainer and the backends it finds its rank by."""

import numpy as np
import pytest

from pytagi_ddp.distributed import DistributedDataContainer, SerialCommunicator


def share(data, rank, ranks):
    communicator = SerialCommunicator()
    communicator.rank, communicator.world_size = rank, ranks
    return DistributedDataContainer(communicator, data)


class Squares:
    """Length and items, nothing else."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        assert isinstance(index, int)
        return index**2


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("data", [list(range(10)), np.arange(10), range(10), "abcdefghij", Squares()])
def test_shares_are_disjoint_and_cover_the_data(data, ranks):
    shares = [share(data, rank, ranks) for rank in range(ranks)]
    assert [item for one in shares for item in one] == [data[i] for i in range(10)]
    sizes = [len(one) for one in shares]
    assert sum(sizes) == 10 and max(sizes) - min(sizes) <= 1 and min(sizes) > 0


def test_indices():
    one = share([f"item {i}" for i in range(10)], 1, 3)  # items 3, 4, 5
    assert one.indices == range(3, 6)
    assert (one[0], one[-1], one[np.int64(1)]) == ("item 3", "item 5", "item 4")
    assert one[1:] == ["item 4", "item 5"] and one[::-1] == ["item 5", "item 4", "item 3"] and one[5:] == []
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index {index} is out of range for a share of 3 items"):
            one[index]
    with pytest.raises(TypeError):
        one["a"]


def test_arrays_are_shared_as_views():
    data = np.arange(20.0).reshape(10, 2)
    one = share(data, 2, 3)
    one[0][:] = -1
    assert (data[6] == -1).all() and np.shares_memory(one[1:3], data)
    assert one[[0, 3], 1].tolist() == [-1, 19] and one[-1, 0] == 18
    with pytest.raises(IndexError):
        one[4]


def test_fewer_items_than_ranks_are_refused():
    with pytest.raises(ValueError, match="2 items cannot be shared by 3 ranks"):
        share([1, 2], 0, 3)
    with pytest.raises(TypeError, match=r"len\(\) and items, got generator"):
        share((i for i in range(9)), 0, 3)
