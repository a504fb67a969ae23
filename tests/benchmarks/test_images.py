"""The comparison of reading images with learning from them: its files, and what it takes for a rate."""

from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from benchmarks.images import reading_rate, write_images
from pytagi_ddp.data import FolderLoader, ImageFolder


def test_the_rate_counts_the_images_behind_the_first_batch(tmp_path, monkeypatch):
    write_images(tmp_path, 7)
    found = ImageFolder.find(tmp_path)
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert all(20_000 < Path(found.source(k).path).stat().st_size < 80_000 for k in range(7))
    times = iter([0.0, 0.5])
    monkeypatch.setattr("benchmarks.images.time.perf_counter", lambda: next(times))
    with FolderLoader(found, 2, size=32, prefetch=0) as loader:
        assert reading_rate(loader, 0) == 5 / 0.5
