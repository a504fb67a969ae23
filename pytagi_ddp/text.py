"""The part of a long text that says what happened."""


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
