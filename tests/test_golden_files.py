"""The recorded results are those that were recorded: `python -m tests.golden`."""

import shutil

from tests.golden import __main__ as golden


def test_files_are_those_of_the_list(capsys):
    assert golden.differences() == []
    assert golden.main([]) == 0
    assert capsys.readouterr().out.startswith(f"{len(golden.recorded())} of {len(golden.recorded())} files of ")


def test_what_is_wrong_here_is_named(tmp_path, monkeypatch):
    shutil.copytree(golden.HERE, tmp_path / "golden")
    monkeypatch.setattr(golden, "HERE", tmp_path / "golden")
    monkeypatch.setattr(golden, "SUMS", tmp_path / "golden" / "SHA256SUMS")
    folder = tmp_path / "golden"
    assert golden.differences(folder) == []
    with open(folder / "linear_relu.npz", "ab") as file:
        file.write(b"!")
    (folder / "pytagi_files" / "conv.bin").unlink()
    (folder / "new.npz").touch()
    expected = ["linear_relu.npz has other bytes", "pytagi_files/conv.bin is missing", "new.npz is not in SHA256SUMS"]
    assert golden.differences(folder) == expected


def test_a_folder_elsewhere_may_lack_files_and_have_more(tmp_path, capsys):
    assert golden.main([str(tmp_path)]) == 1
    assert "has none of the files" in capsys.readouterr().out
    shutil.copy(golden.HERE / "linear_relu.npz", tmp_path)
    (tmp_path / "more.npz").touch()
    assert golden.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"1 of {len(golden.recorded())} files of ")
    (tmp_path / "linear_relu.npz").write_bytes(b"")
    assert golden.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "linear_relu.npz has other bytes\n"
