"""PTX that was compiled before is not compiled again."""

from types import SimpleNamespace

import pytest

from tests.cuda import compile_report, kept

pytestmark = pytest.mark.skipif(compile_report.missing() is not None, reason=str(compile_report.missing()))


def test_each_variant_is_compiled_once(monkeypatch, tmp_path):
    from pytagi_ddp.kernels.cuda.runtime.compile import Kernel  # where numba-cuda is there

    compiled = []
    monkeypatch.setattr(Kernel, "_ptx", lambda kernel, variant: compiled.append(variant) or f"{kernel.name} {variant}")
    monkeypatch.setattr(kept, "folder", lambda name: tmp_path)
    kept.keep_ptx()
    for variant in [(True,), (False,), (True,)]:
        assert Kernel._ptx(SimpleNamespace(name="one"), variant) == f"one {variant}"
    assert compiled == [(True,), (False,)]


def test_what_nobody_asked_for_in_long_goes(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "loops")
    place = kept.folder("some")
    for name in ("old", "new"):
        kept.keep(place / name, name)
    long_ago = kept.time.time() - (kept.DAYS + 1) * 86400
    kept.os.utime(place / "old", (long_ago, long_ago))
    assert [path.name for path in kept.folder("some").iterdir()] == ["new"]
    assert kept.fresh(place / "new") and not kept.fresh(place / "old")
