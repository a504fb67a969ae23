import pytest


@pytest.fixture
def empty_machine(monkeypatch, tmp_path):
    """No data but what the test makes: another working directory, no $PYTAGI_DATA; no proxy for downloads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTAGI_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
