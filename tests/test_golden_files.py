"""The recorded results are those that were recorded: see `tests/golden`."""

import hashlib

from tests.nn.golden import FOLDER


def test_files_are_those_of_the_list():
    listed = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    paths = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    found = {path.relative_to(FOLDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    del found["SHA256SUMS"]
    assert found == listed
