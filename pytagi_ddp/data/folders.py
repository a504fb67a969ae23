"""Where data sets are looked for, and the error when they are in none of these places."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class DatasetNotFoundError(FileNotFoundError):
    """A data set is in none of the folders searched and could not be downloaded."""


class Layout(NamedTuple):
    """Files of a data set, and the subfolder in which they usually lie."""

    subfolder: str
    files: Sequence[str]


def search_folders(kind: str, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Folders to search, in order: data_dir, $PYTAGI_DATA, $PYTAGI_DATA/kind, ./data/kind."""
    folders = [Path(data_dir)] if data_dir else []
    if shared := os.environ.get("PYTAGI_DATA"):
        folders += [Path(shared), Path(shared, kind)]
    return [folder.expanduser() for folder in (*folders, Path("data", kind))]


def download_folder(kind: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder to download into: data_dir, else $PYTAGI_DATA/kind, else ./data/kind."""
    folder = Path(data_dir) if data_dir else Path(os.environ.get("PYTAGI_DATA") or "data", kind)
    return folder.expanduser()


def find_layout(folders: Sequence[Path], layouts: Sequence[Layout]) -> Path | None:
    """The first of the folders, or usual subfolder of one, that holds every file of a layout."""
    for place, missing, _ in _examine(folders, layouts):
        if not missing:
            return place
    return None


def not_found(
    name: str, folders: Sequence[Path], layouts: Sequence[Layout], source: str, cause: Exception | None = None
) -> DatasetNotFoundError:
    """The error that says where a data set was looked for, what is incomplete, and what to do."""
    places = ", ".join(str(folder.absolute()) for folder in folders)
    subfolders = ", ".join(sorted({layout.subfolder for layout in layouts}))
    parts = [f"{name} was not found in {places} (nor in their subfolders {subfolders})"]
    for place, missing, files in _examine(folders, layouts):
        if 0 < len(missing) < len(files):
            parts.append(f"{place.absolute()} lacks {', '.join(missing)}")
    if cause is not None:
        parts.append(f"the download failed: {cause}")
    parts.append(f"put the files of {source} into one of these folders, or name theirs by data_dir or $PYTAGI_DATA")
    return DatasetNotFoundError("; ".join(parts))


def _examine(folders: Sequence[Path], layouts: Sequence[Layout]) -> Iterator[tuple[Path, list[str], Sequence[str]]]:
    """Each place to look, with the files missing there and the files expected."""
    for folder in folders:
        for layout in layouts:
            for place in (folder, folder / layout.subfolder):
                yield place, [f for f in layout.files if not (place / f).is_file()], layout.files
