"""Print the oldest versions that pyproject.toml allows, as requirements: those of users, then the tools of tests."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]

if __name__ == "__main__":
    for line in PROJECT["dependencies"]:
        print(re.sub(r"(>=)([^,]+).*", r"==\2", line))
    extras = PROJECT["optional-dependencies"]
    for line in [*extras["dev"], *extras["postgres"], *extras["ray"]]:
        if not line.startswith(PROJECT["name"]):
            print(line)
