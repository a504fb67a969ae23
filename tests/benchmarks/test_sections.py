"""The sections beside training, as small as they get."""

import pytest

from benchmarks import loading
from benchmarks.options import Options
from benchmarks.peak import SgemmPeak

SMALLEST = Options(threads=1, repeat=1, workloads=("mlp-16-b8",))


@pytest.fixture(scope="module")
def peak():
    return SgemmPeak(1)


def test_loading(peak, monkeypatch, capsys):
    monkeypatch.setattr(loading, "IMAGES", 300)
    rows = loading.run(SMALLEST, peak)["rows"]
    assert [(row["augment"], row["prefetch"]) for row in rows] == [(False, 0), (False, 2), (True, 0), (True, 2)]
    assert all(row["median"] > 0 for row in rows)
    assert "crop and flip" in capsys.readouterr().out


@pytest.mark.mpi
def test_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    from benchmarks.ranks import launch

    found = launch(2, 1, 1, "mlp-16-b8", sizes=(4, 1 << 20))
    assert found["batch"] == 8
    assert found["nbytes"] >= 2 * 4 * (12 * 16 + 16 * 16 + 16 * 3 + 35)
    assert found["alone"] > 0
    assert found["step"] > 0
    assert [row[0] for row in found["reduce"]] == [4, 1 << 20]
    assert all(ours > 0 < bare for _, ours, bare in found["reduce"])


@pytest.mark.mpi
def test_a_job_that_fails():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    from benchmarks.ranks import launch

    with pytest.raises(RuntimeError, match="no-such"):
        launch(1, 1, 1, "no-such")


@pytest.mark.mpi
def test_parallel(peak, capsys):
    """Bytes of a step: DDP's all-reduce on 2 ranks is one buffer, in shards as much comes in two halves."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    from benchmarks import parallel

    rows = {row["way"]: row for row in parallel.run(SMALLEST, peak)["rows"]}
    assert list(rows) == list(parallel.WAYS)
    assert all(row["step"] > 0 and row["samples"] == 16 for row in rows.values())
    parameters = 12 * 16 + 16 * 16 + 16 * 3 + 35
    assert rows["DDP"]["memory"] == 16 * parameters + 16
    assert 8 * parameters <= rows["DDP"]["bytes"] <= 8 * parameters + 100
    in_shards = rows["FSDP"]["bytes"]
    assert 8 * parameters <= in_shards <= 8 * parameters + 400  # its only group stays for the backward pass
    piped = rows["pipeline 1F1B, 4 micro-batches"]
    assert piped["memory"] < rows["DDP"]["memory"]
    assert 0 < piped["bytes"] < 8 * parameters
    assert "times DDP" in capsys.readouterr().out
    exchanges = {row["way"]: row for row in parallel.launch("mlp-128-b8", 2, 1, tuple(parallel.EXCHANGES))}
    assert (exchanges["no exchange"]["bytes"], exchanges["no exchange"]["samples"]) == (0, 16)
    whole = exchanges["one all-reduce"]["bytes"]
    assert all(exchanges[f"{buckets} buckets"]["bytes"] == pytest.approx(whole, rel=1e-3) for buckets in (2, 4, 8))
    assert all(exchanges[half]["bytes"] == pytest.approx(whole / 2, rel=0.05) for half in parallel.HALF)
