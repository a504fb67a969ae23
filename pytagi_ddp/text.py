"""What a text of the environment or of another program says."""


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
