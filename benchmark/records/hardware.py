"""What machine this is, asked of the operating system alone: also where torch cannot be imported."""

import os
import platform
from pathlib import Path
from typing import Any


def hardware() -> dict[str, Any]:
    """Processor and cores as the operating system names them."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux: the plain name has to do
    return {"processor": name, "cores": os.cpu_count() or 1}
