"""The search for data sets, and the error if they are not found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class DatasetNotFoundError(FileNotFoundError):
    """A data set is not in the searched folders and could not be downloaded."""


class Layout(NamedTuple):
    """Files of a data set, and their usual subfolder."""

    subfolder: str
    files: Sequence[str]


def search_folders(kind: str, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Folders to search, in order: data_dir, $PYTAGI_DATA, $PYTAGI_DATA/kind, ./data/kind."""
    folders = [Path(data_dir)] if data_dir else []
    if shared := os.environ.get("PYTAGI_DATA"):
        folders += [Path(shared), Path(shared, kind)]
    return [Path(os.path.expanduser(folder)) for folder in (*folders, Path("data", kind))]  # "~nobody" stays


def download_folder(kind: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder to download into: data_dir, else $PYTAGI_DATA/kind, else ./data/kind."""
    folder = Path(data_dir) if data_dir else Path(os.environ.get("PYTAGI_DATA") or "data", kind)
    try:
        return folder.expanduser()
    except RuntimeError as error:  # "~nobody"
        raise DatasetNotFoundError(f"there is no folder {folder} to download into: {error}") from None


class PublishedDataset(NamedTuple):
    """A published data set.

    Attributes:
        name: name in messages. kind: name of its folders. layouts: layouts of its files.
        source: origin of the files.
    """

    name: str
    kind: str
    layouts: Sequence[Layout]
    source: str

    def find(self, data_dir: str | os.PathLike[str] | None) -> Path | None:
        """The first folder, or usual subfolder, with every file of a layout."""
        for place, missing, _ in _examine(search_folders(self.kind, data_dir), self.layouts):
            if not missing:
                return place
        return None

    def find_or(self, download: Callable[[], Path] | None, data_dir: str | os.PathLike[str] | None) -> Path:
        """The result of `find`, or of `download`.

        Raises:
            DatasetNotFoundError: not found, and there is no `download`.
        """
        found = self.find(data_dir) or (download and download())
        if found is None:
            raise self.not_found(data_dir)
        return found

    def not_found(
        self, data_dir: str | os.PathLike[str] | None, cause: Exception | None = None
    ) -> DatasetNotFoundError:
        """The error, with the searched folders, incomplete ones, and what to do."""
        folders = search_folders(self.kind, data_dir)
        places = ", ".join(str(folder.absolute()) for folder in folders)
        subfolders = ", ".join(sorted({layout.subfolder for layout in self.layouts if layout.subfolder}))
        parts = [f"{self.name} was not found in {places} (nor in their subfolders {subfolders})"]
        for place, missing, files in _examine(folders, self.layouts):
            if 0 < len(missing) < len(files):
                parts.append(f"{place.absolute()} lacks {', '.join(missing)}")
        if cause is not None:
            parts.append(f"the download failed: {cause}")
        parts.append(
            f"put the files of {self.source} into one of these folders, or name theirs by data_dir or $PYTAGI_DATA"
        )
        return DatasetNotFoundError("; ".join(parts))


def _examine(folders: Sequence[Path], layouts: Sequence[Layout]) -> Iterator[tuple[Path, list[str], Sequence[str]]]:
    """Each place to look, with the files missing there and the files expected."""
    for folder in folders:
        for layout in layouts:
            for place in (folder, folder / layout.subfolder):
                yield place, [f for f in layout.files if not (place / f).is_file()], layout.files
