"""What is written appears complete or not at all, and never in place of something else."""

from __future__ import annotations

import os
import pathlib

import pytest

from tfmp.errors import FileError, TargetError
from tfmp.files.places import FROZEN_GRAPH, OTHER_KINDS, SAVED_MODEL, Found, check_target, find, replacing


def saved_model(folder: pathlib.Path) -> Found:
    """Makes what looks like a SavedModel from outside."""
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"content")
    return Found(folder, SAVED_MODEL, folder / "saved_model.pb")


def graph(file: pathlib.Path) -> Found:
    """Makes what looks like a frozen graph from outside."""
    file.write_bytes(b"content")
    return Found(file, FROZEN_GRAPH, file)


def test_both_kinds_are_found(tmp_path: pathlib.Path) -> None:
    assert find(saved_model(tmp_path / "model").path) == Found(tmp_path / "model", SAVED_MODEL, tmp_path / "model" / "saved_model.pb")
    assert find(str(graph(tmp_path / "graph.pb").path)) == Found(tmp_path / "graph.pb", FROZEN_GRAPH, tmp_path / "graph.pb")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("nothing", None, "nothing cannot be read: No such file or directory."),
        ("empty.pb", "", "empty.pb is empty."),
        ("folder/other.txt", "x", "folder is not a SavedModel: it holds no saved_model.pb or saved_model.pbtxt."),
        ("folder/saved_model.pb", "", "folder/saved_model.pb is empty."),
        ("folder/saved_model.cpb", "x", "Its proto is split into pieces (saved_model.cpb); save it again with less than 2 GB."),
        *((f"model{ending}", "x", f"model{ending} is {what}.") for ending, what in OTHER_KINDS.items()),
    ],
)
def test_what_cannot_be_converted_is_named_with_the_remedy(tmp_path: pathlib.Path, name: str, content: str | None, error: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    with pytest.raises(FileError) as raised:
        find(file.parent if "/" in name else file)
    assert str(raised.value).endswith(error)


def test_a_part_of_a_saved_model_leads_to_its_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileError, match=r"saved_model.pb is a part of a SavedModel; give its folder, .*model\."):
        find(saved_model(tmp_path / "model").file)


@pytest.mark.parametrize("target", ["model", "model/inside", ".", "link"])
def test_the_original_cannot_be_the_target(tmp_path: pathlib.Path, target: str) -> None:
    source = saved_model(tmp_path / "model")
    (tmp_path / "link").symlink_to(source.path)
    with pytest.raises(TargetError, match="is the original, lies in it or has it inside; choose another place"):
        check_target(source, tmp_path / target, force=True)


def test_nothing_is_replaced_without_force(tmp_path: pathlib.Path) -> None:
    source = saved_model(tmp_path / "model")
    target = saved_model(tmp_path / "out").path
    with pytest.raises(TargetError, match=r"out is there already; --force \(force=True\) replaces it"):
        check_target(source, target, force=False)
    assert check_target(source, target, force=True) == target


def test_only_a_twin_is_replaced_even_with_force(tmp_path: pathlib.Path) -> None:
    model, file = saved_model(tmp_path / "model"), graph(tmp_path / "graph.pb")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.txt").write_text("dear")
    for source, target, what in ((model, tmp_path / "home", "SavedModel"), (model, file.path, "SavedModel"), (file, tmp_path / "home", "file")):
        with pytest.raises(TargetError, match=f"is not a {what}, and is not replaced by one; remove it, or choose another place"):
            check_target(source, target, force=True)
    (tmp_path / "empty").mkdir()
    assert check_target(model, tmp_path / "empty", force=True) == tmp_path / "empty"


def test_the_folder_of_the_target_must_be_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TargetError, match="there is no folder .*missing"):
        check_target(graph(tmp_path / "graph.pb"), tmp_path / "missing" / "out.pb", force=False)


@pytest.mark.parametrize("before", [None, "folder", "file"])
def test_a_finished_file_takes_the_place_of_what_was_there(tmp_path: pathlib.Path, before: str | None) -> None:
    target = tmp_path / "out"
    if before == "folder":
        (target / "old").mkdir(parents=True)
    elif before == "file":
        target.write_text("old")
    with replacing(target) as new:
        assert new.parent == tmp_path
        if before == "file":
            new.write_text("new")
        else:
            (new / "inner").mkdir(parents=True)
            (new / "inner" / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target if before == "file" else target / "inner" / "file").read_text() == "new"


@pytest.mark.parametrize("failure", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)])
def test_what_breaks_off_leaves_everything_as_it_was(tmp_path: pathlib.Path, failure: BaseException) -> None:
    target = saved_model(tmp_path / "out").path
    with pytest.raises(type(failure)), replacing(target) as new:
        new.mkdir()
        (new / "half").write_text("x")
        raise failure
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "saved_model.pb").read_bytes() == b"content"


def test_what_cannot_be_put_in_place_leaves_everything_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = saved_model(tmp_path / "out").path
    replace = pathlib.Path.replace

    def fails_for_the_new_one(self: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
        if ".tfmp-new-" in self.name:
            raise OSError(28, os.strerror(28))
        return replace(self, to)

    monkeypatch.setattr(pathlib.Path, "replace", fails_for_the_new_one)
    with pytest.raises(TargetError, match="out cannot be written: No space left on device"), replacing(target) as new:
        new.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "saved_model.pb").read_bytes() == b"content"


def test_new_files_have_the_permissions_that_the_user_gives_new_files(tmp_path: pathlib.Path) -> None:
    with replacing(tmp_path / "out") as new:
        new.mkdir()
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
