"""The one name under which the suite is installed.

The folders benchmark/, sweeps/, reports/ and results/ lie at the root of a checkout, and in this package if a wheel is
installed. Their modules have the names `benchmark...`, `sweeps...` and `reports...` in both cases, so that sources,
pickles and custom methods work in both. This package makes these names importable in this process and in the processes
that it starts. `fssl.benchmark...` is the same module as `benchmark...`.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES = ("benchmark", "sweeps", "reports")
HERE = Path(__file__).resolve().parent
IS_WHEEL = (HERE / "benchmark").is_dir()
PLACE = HERE if IS_WHEEL else HERE.parents[1]  # the folder that contains the packages


class Alias:
    """An importer for `import fssl.benchmark.errors`: it returns the module `benchmark.errors` instead of a copy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != __name__ or rest.partition(".")[0] not in NAMES:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # it has a loader's two methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.partition(".")[2])
        spec.loader_state = module.__spec__, module.__loader__, module.__package__, getattr(module, "__path__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore what the import system has just set; the module was executed under its own name."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__, module.__loader__, module.__package__, path = spec.loader_state
        if path is not None:
            module.__path__ = path


def make_importable() -> None:
    """Put the folder of the packages in front of all others, here and in the processes that this process starts."""
    if str(PLACE) not in sys.path:
        sys.path.insert(0, str(PLACE))
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(PLACE) not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLACE), *inherited]))
    if not any(isinstance(finder, Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias())  # type: ignore[arg-type]  # it has a finder's method


make_importable()


def __getattr__(name: str) -> Any:
    """Return `fssl.load` and `fssl.__version__`, which are those of `benchmark`."""
    if name in ("load", "__version__"):
        return getattr(importlib.import_module("benchmark"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> int:
    """Run the command `fssl`."""
    from benchmark.cli.entry import main as command

    return command()
