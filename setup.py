"""Puts the start-up file `tfmp.pth` at the root of site-packages, from wheels, source archives and editable installs alike.

Everything else about the package is in setup.cfg. Python processes a `.pth` file only at that root (the `site` module), a place that
setuptools offers for modules and packages but not for other files.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import zipfile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

START_UP_FILE = pathlib.Path(__file__).with_name("tfmp.pth")


class BuildWithStartUpFile(build_py):
    """Copies the start-up file beside the packages; what lies there becomes the root of the wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(str(START_UP_FILE), str(pathlib.Path(self.build_lib, START_UP_FILE.name)))


class EditableWheelWithStartUpFile(editable_wheel):
    """Adds the start-up file to the finished editable wheel: setuptools builds that one without looking at build_py's folder."""

    def run(self) -> None:
        super().run()
        (wheel,) = pathlib.Path(self.dist_dir).glob("*editable*.whl")
        add_to_wheel(wheel, START_UP_FILE)


def add_to_wheel(wheel: pathlib.Path, file: pathlib.Path) -> None:
    """Adds `file` at the root of `wheel`, with its row in RECORD (binary distribution format: name, sha256 in URL-safe base64, size)."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    content = file.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    row = f"{file.name},sha256={digest},{len(content)}\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(file.name, content)
        for info, data in members:
            archive.writestr(info, row + data if info.filename.endswith(".dist-info/RECORD") else data)


setup(cmdclass={"build_py": BuildWithStartUpFile, "editable_wheel": EditableWheelWithStartUpFile})
