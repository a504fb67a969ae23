"""What a text of the environment, of the system or of another program says."""

import os
from pathlib import Path


def first_sentence(text: str) -> str:
    """The first paragraph on one line: the first lines with letters or digits, up to one without.

    Programs and packages frame their messages with lines of dashes, and put advice after an empty line.
    """
    paragraph: list[str] = []
    for line in text.splitlines():
        if any(map(str.isalnum, line)):
            paragraph.append(line.strip())
        elif paragraph:
            break
    return " ".join(paragraph)


def whole_number(text: str) -> int | None:
    """The number of a text such as an environment variable: digits, at most nine; None if it is something else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def text_of(path: Path) -> str:
    """The text of a file of the system, such as /proc/self/stat.

    It has names of programs and files: bytes of any encoding, and the kernel cuts names of programs inside a character.

    Raises:
        OSError: it cannot be read.
    """
    return os.fsdecode(path.read_bytes())
