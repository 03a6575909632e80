"""Build the wheel with one top-level name: benchmark/, sweeps/, reports/ and results/ become folders of `fssl`."""

from pathlib import Path
from typing import Any

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

NAME = "fssl"


def below(package: str) -> str:
    return package if package.partition(".")[0] in ("", NAME, "*") else f"{NAME}.{package}"


class BuildPy(build_py):
    """Copies every package below `fssl` into the wheel. An editable install keeps all folders where they are."""

    def run(self) -> None:
        if not self.editable_mode:
            folders = {package: package.replace(".", "/") for package in self.packages}
            self.package_dir = {
                below(package): self.package_dir.get(package, path) for package, path in folders.items()
            }
            self.package_data = {below(package): patterns for package, patterns in self.package_data.items()}
            self.packages = [below(package) for package in self.packages]
        super().run()


class EggInfo(egg_info):
    """Lists the one name in the metadata."""

    def run(self) -> Any:
        super().run()
        Path(self.egg_info, "top_level.txt").write_text(f"{NAME}\n")
