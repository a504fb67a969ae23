"""Limits of CPU time and memory by control groups, read from file trees as Linux would show them."""

import os
from pathlib import Path

import pytest

from pytagi_ddp import quota
from pytagi_ddp.kernels.cpu.runtime import threads

V2 = "30 1 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw"
V1 = "31 1 0:27 {root} {mount} rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
OTHER = "32 1 0:28 / {mount} rw - cgroup cgroup rw,cpuset"


def limit(percent: int) -> dict[str, str]:
    """The files of a quota, in both versions."""
    quota = percent * 1000
    return {"cpu.max": f"{quota} 100000\n", "cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"}


NONE = {"cpu.max": "max 100000\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Writes /proc/self/cgroup, mountinfo and groups; returns the cores that are usable of the machine's 8."""
    monkeypatch.setattr(quota, "PROCESS", tmp_path / "proc")
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(8), raising=False)

    def cores(own: str, mounts: str, groups: dict[str, dict[str, str]], root: str = "/", folder: str = "sys") -> int:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cgroup").write_text(own)
        where = str(tmp_path / folder).replace(" ", r"\040")
        (tmp_path / "proc/mountinfo").write_bytes(os.fsencode(mounts.format(root=root, mount=where)))
        for group, files in groups.items():
            Path(tmp_path, folder, group).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                Path(tmp_path, folder, group, name).write_text(text)
        return threads.usable_cores()

    return cores


versions = pytest.mark.parametrize(("own", "mounts"), [("0::{}\n", V2), ("5:memory:/x\n3:cpu,cpuacct:{}\n", V1)])


@versions
@pytest.mark.parametrize(("percent", "cores"), [(300, 3), (150, 1), (290, 2), (50, 1), (1600, 8)])
def test_a_part_of_a_core_is_no_core(machine, own, mounts, percent, cores):
    assert machine(own.format("/"), mounts, {"": limit(percent)}) == cores


@versions
def test_no_quota(machine, own, mounts):
    assert machine(own.format("/job"), mounts, {"": NONE, "job": NONE}) == 8


@versions
@pytest.mark.parametrize(("outer", "inner", "cores"), [(200, 400, 2), (400, 200, 2), (None, 300, 3), (300, None, 3)])
def test_the_tightest_group_around_counts(machine, own, mounts, outer, inner, cores):
    groups = {"a": NONE if outer is None else limit(outer), "a/b/c": NONE if inner is None else limit(inner)}
    assert machine(own.format("/a/b/c"), mounts, groups) == cores


@versions
def test_groups_beside_are_not_looked_at(machine, own, mounts):
    assert machine(own.format("/a"), mounts, {"a": limit(400), "a/below": limit(100), "other": limit(100)}) == 4


@versions
def test_a_container_sees_its_part_of_the_tree(machine, own, mounts):
    groups = {"": limit(600), "inner": limit(200)}
    assert machine(own.format("/docker/1f/inner"), mounts, groups, root="/docker/1f") == 2


@versions
def test_a_group_outside_of_what_is_mounted(machine, own, mounts):
    assert machine(own.format("/elsewhere"), mounts, {"": limit(500)}, root="/docker/1f") == 5


@versions
def test_a_group_whose_folder_is_not_there(machine, own, mounts):
    assert machine(own.format("/a/gone"), mounts, {"a": limit(200)}) == 2


def test_both_versions_side_by_side(machine):
    groups = {"job": {"cpu.cfs_quota_us": "300000\n", "cpu.cfs_period_us": "100000\n"}}
    assert machine("3:cpu,cpuacct:/job\n0::/\n", V1 + "\n" + V2, groups) == 3


def test_a_folder_with_a_space(machine):
    assert machine("0::/\n", V2, {"": limit(200)}, folder="control groups") == 2


@pytest.mark.parametrize("text", ["", "max", "100000", "100000 0", "many 100000", "1 2 3"])
def test_files_that_say_nothing(machine, text):
    assert machine("0::/\n", V2, {"": {"cpu.max": text}}) == 8


def test_other_controllers_have_no_say(machine):
    assert machine("3:cpuset:/\n", OTHER, {"": limit(100)}) == 8


def test_something_else_in_place_of_control_groups(machine):
    assert machine("none\n", "nothing\n", {"": limit(100)}) == 8


def test_without_control_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(quota, "PROCESS", tmp_path / "nothing")
    assert quota.cpu_quota() == quota.memory_limit() == float("inf")


V1_MEMORY = V1.replace("cpu,cpuacct", "memory")


@pytest.mark.parametrize(
    ("own", "mounts", "file", "none"),
    [
        ("0::/job\n", V2, "memory.max", "max\n"),
        ("5:memory:/job\n3:cpu,cpuacct:/\n", f"{V1}\n{V1_MEMORY}", "memory.limit_in_bytes", "9223372036854771712\n"),
    ],
)
def test_the_least_limit_of_memory(machine, own, mounts, file, none):
    groups = {"": {file: "1500000\n"}, "job": {file: none, "memory.current": "1000\n"}}
    assert machine(own, mounts, groups) == 8
    assert quota.memory_limit() == 1_500_000


@versions
def test_other_mounts_may_have_names_of_any_encoding(machine, own, mounts):
    name = b"/media/caf\xe9"  # Latin-1
    assert machine(own.format("/"), f"{OTHER.format(mount=os.fsdecode(name))}\n{mounts}", {"": limit(200)}) == 2
