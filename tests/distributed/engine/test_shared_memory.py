"""Shared memory in /dev/shm: whether there is enough room, and what ended jobs have left there."""

import mmap
import os
import stat
import time
from pathlib import Path

import pytest

from pytagi_ddp.distributed.engine import shared_memory
from pytagi_ddp.distributed.engine.errors import LaunchError


@pytest.fixture
def shm(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "SHM", tmp_path)
    return tmp_path


def test_leftovers_are_files_that_nobody_has_mapped(shm):
    dead, alive, open_mpi = (shm / name for name in ("mpich_shm_dead_0", "mpich_shm_alive_0", "vader_segment.h.0.1"))
    (shm / "something_else").write_bytes(b"x" * 100)
    for file in (dead, alive, open_mpi):
        file.write_bytes(b"x" * 4096)
    with alive.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert shared_memory.leftovers() == [dead, open_mpi]
    assert sorted(shared_memory.leftovers()) == [alive, dead, open_mpi]


def test_processes_may_have_mapped_files_of_any_name(shm, tmp_path_factory):
    (shm / "mpich_shm_dead_0").write_bytes(b"x")
    file = Path(os.fsdecode(os.fsencode(tmp_path_factory.mktemp("folder")) + b"/caf\xe9"))  # Latin-1
    file.write_bytes(b"x")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 1, access=mmap.ACCESS_READ):
        assert shared_memory.leftovers() == [shm / "mpich_shm_dead_0"]


def test_links_and_files_of_others_are_no_leftovers(shm, monkeypatch):
    """Other users choose their names, which doctor gives to a shell, and what they lead to."""
    (shm / "mine").write_bytes(b"x")
    (shm / "mpich_shm_link").symlink_to(shm / "mine")
    (shm / "mpich_shm_folder").mkdir()
    (shm / "mpich_shm_x").write_bytes(b"x")
    assert shared_memory.leftovers() == [shm / "mpich_shm_x"]
    monkeypatch.setattr(os, "geteuid", lambda: (shm / "mine").stat().st_uid + 1)
    assert shared_memory.leftovers() == []


def test_own_files_lose_their_name_and_keep_their_memory(shm):
    own, other = shm / "mpich_shm_own_0", shm / "mpich_shm_other_0"
    for file in (own, other):
        file.write_bytes(b"x" * 4096)
    with own.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        shared_memory.unlink_own_files()
        assert memory[:2] == b"xx"
    assert list(shm.iterdir()) == [other]


def test_too_little_room_names_the_numbers_and_the_leftovers(shm, monkeypatch):
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: 16_000_000)
    (shm / "mpich_shm_dead_0").write_bytes(b"x")
    with pytest.raises(
        LaunchError, match=r"16\.0 MB free, and 2 ranks .* need 23\.0 MB. 1 files there belong to dead jobs"
    ):
        shared_memory.check_space(2)
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: 23_000_000)
    shared_memory.check_space(2)


def test_old_leftovers_are_removed_where_room_is_short(shm, monkeypatch):
    old, young, alive = (shm / f"mpich_shm_{name}" for name in ("old", "young", "alive"))
    for file in (old, young, alive):
        file.write_bytes(b"x" * 4096)
    for file in (old, alive):
        os.utime(file, (time.time() - 3600,) * 2)
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: 22_999_000 if old.exists() else 23_000_000)
    with alive.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        shared_memory.check_space(2)
    assert sorted(shm.iterdir()) == [alive, young]


def test_leftovers_stay_where_there_is_room(shm, monkeypatch):
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: 23_000_000)
    old = shm / "mpich_shm_old"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    shared_memory.check_space(2)
    assert old.exists()


def test_where_there_is_none_ranks_on_one_node_are_refused_on_linux(monkeypatch, tmp_path):
    assert shared_memory.free_bytes(tmp_path / "missing") is None
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: None)
    monkeypatch.setattr(shared_memory.sys, "platform", "linux")
    with pytest.raises(LaunchError, match=r"there is no /dev/shm, .* 2 ranks .* Mount it: mkdir -p /dev/shm &&"):
        shared_memory.check_space(2)
    shared_memory.check_space(1)
    monkeypatch.setattr(shared_memory.sys, "platform", "darwin")  # whose MPI uses something else
    shared_memory.check_space(1000)


class OneRank:
    """What `join_shared_sum` needs of an mpi4py communicator, for two ranks of which only one is here."""

    rank, size = 0, 2

    def __init__(self, other_has_it: bool):
        self.other_has_it = other_has_it

    def bcast(self, value):
        return value

    def allgather(self, value):
        return [value, self.other_has_it]


def test_memory_for_sums_leaves_no_file(shm):
    shared = shared_memory.join_shared_sum(OneRank(True))
    assert shared.floats == shared_memory.SUM_BYTES // 16 and list(shm.iterdir()) == []


@pytest.mark.parametrize("nameless", [True, False])
def test_memory_for_sums_is_this_users_from_its_creation(shm, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "memfd_create")
    seen = []

    class Looking(OneRank):
        def bcast(self, value):
            if path := value[0]:
                seen.append((path.parent, path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)))
            return super().bcast(value)

    before = os.umask(0)
    try:
        assert shared_memory.join_shared_sum(Looking(True)) is not None
    finally:
        os.umask(before)
    if nameless:
        assert seen == [(Path(f"/proc/{os.getpid()}/fd"), os.getuid(), 0o777)]  # which only this user may look into
        assert stat.S_IMODE(seen[0][0].stat().st_mode) & 0o077 == 0
    else:
        assert seen == [(shm, os.getuid(), 0o600)]
    assert list(shm.iterdir()) == []


def test_a_file_of_another_container_is_not_taken_for_the_shared_one(shm):
    mine, other = shm / "mine", shm / "other"
    for file in (mine, other):
        file.write_bytes(b"x" * 4096)
    assert shared_memory._map(mine, shared_memory._identity(mine))[:1] == b"x"
    assert shared_memory._map(mine, shared_memory._identity(other)) is None
    assert shared_memory._map(shm / "absent", (0, 0)) is None


def test_memory_that_one_rank_cannot_have_is_used_by_none(shm):
    assert shared_memory.join_shared_sum(OneRank(False)) is None and list(shm.iterdir()) == []


def test_no_room_and_no_place_for_sums(shm, monkeypatch):
    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared_memory.join_shared_sum(OneRank(True)) is None and list(shm.iterdir()) == []
    monkeypatch.setattr(shared_memory, "SHM", shm / "absent")
    assert shared_memory.join_shared_sum(OneRank(True)) is None
