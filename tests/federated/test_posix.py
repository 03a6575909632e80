"""A POSIX system without Linux's calls, such as macOS: each call is taken away, and runs give the same numbers."""

import ctypes
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmark.errors import ConfigError
from benchmark.federated import devices, machine, process_pool, processes
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from tests.conftest import ROOT, tiny_experiment
from tests.federated.helpers import FastHere, agree


def test_cores_are_counted_without_an_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(processes, "_quota", lambda: 4.0)
    assert processes.usable_cores() == 4
    monkeypatch.setattr(processes, "_quota", lambda: float("inf"))
    assert processes.usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processes.usable_cores() == 1


def test_an_allocator_without_glibc_s_settings_is_left_as_it_is(monkeypatch):
    class Library:
        """A C library in which nothing of glibc's is found."""

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    machine.keep_freed_memory()


@pytest.mark.parametrize("system", ["darwin", "freebsd14"])
def test_processes_are_fresh_where_a_fork_of_a_loaded_process_is_not_safe(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    with processes.process_context() as context:
        assert context.get_start_method() == "spawn"


@pytest.mark.parametrize("missing", ["memfd_create", "/proc/self/fd"])
def test_files_in_memory_need_both_of_linux_s_calls(monkeypatch, missing):
    assert process_pool.passes_files() == (sys.platform == "linux")
    if missing.startswith("/"):
        monkeypatch.setattr(process_pool, "DESCRIPTORS", Path("/no/such/folder"))
    else:
        monkeypatch.delattr(os, missing, raising=False)
    assert not process_pool.passes_files()


@pytest.mark.slow
def test_a_spawned_pool_without_files_in_memory_gives_the_same_numbers(monkeypatch):
    """Two rounds of two workers that get their messages through the pipe, against the reference engine."""
    monkeypatch.setattr(process_pool, "passes_files", lambda: False)
    monkeypatch.setattr(processes, "_method", lambda: "spawn")
    experiment = tiny_experiment()
    environment = prepare(experiment)
    expected = FederatedModule(environment, FastHere(environment))
    with closing(ProcessPool(environment, workers=2)) as pool:
        found = FederatedModule(environment, pool)
        for round_number in (1, 2):
            expected.training_step(round_number, 0)
            found.training_step(round_number, 0)
    for name, weights in expected.models().items():
        assert agree(weights, found.models()[name])


def test_apple_s_gpus_are_refused_and_the_cpu_is_offered():
    with pytest.raises(ConfigError) as refused:
        devices.devices_named("mps")
    (line,) = str(refused.value).splitlines()
    assert "Apple" in line and "--devices cpu" in line


def test_windows_is_one_line_that_names_wsl2(tmp_path):
    """The entry point runs with the name of the other system, and loads nothing that Windows lacks."""
    code = "import sys; sys.platform = 'win32'; from benchmark.cli.entry import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 65 and "WSL2" in line and not done.stdout
