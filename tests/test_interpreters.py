"""The library works on the newest Python of this machine, if that is not the one that runs the tests.

Once a week; before a change is taken, all tests run on every Python (.github/workflows/ci.yml). tests/test_packaging.py
tests that the sources compile there.
"""

import pytest

from tests import interpreters
from tests.conftest import weekly


@weekly
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_newest_python_builds_and_computes(tmp_path):
    newest = interpreters.newest()
    if newest is None:
        pytest.skip("there is no newer Python than the one that runs the tests")
    interpreters.check(newest, tmp_path)
