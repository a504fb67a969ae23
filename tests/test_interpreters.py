"""The library works on the newest Python of this machine, if that is not the one that runs the tests.

Here in a quick way; in full once a week, and with all tests on every Python before a change is taken
(.github/workflows/ci.yml).
"""

import sys

import pytest

from tests import interpreters
from tests.conftest import ALL_TESTS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_newest_python_builds_and_computes(tmp_path):
    found = {version: interpreters.interpreter(version) for version in interpreters.supported()}
    newest = [version for version, path in found.items() if path][-1]
    if newest == f"3.{sys.version_info.minor}":
        pytest.skip(f"the tests run on Python {newest}, and no newer one is there")
    interpreters.check(found[newest], tmp_path, quick=not ALL_TESTS)


def test_interpreters_are_those_of_pyproject():
    assert interpreters.supported()[0] == "3.10"
    assert interpreters.interpreter(f"3.{sys.version_info.minor}") is not None
    assert interpreters.interpreter("3.99") is None
