"""The marker of tests that need a GPU: `pytest -m gpu` runs these and nothing else."""


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
