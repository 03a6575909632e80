"""Runs W&B's command line in the separate process that `fssl agent` starts, and hides one harmless traceback.

After each run, W&B's agent closes the connection to its service. Objects that are garbage-collected later use this
connection in a thread, which ends with AlreadyJoinedError. No data is lost.
"""

import threading


def _print_traceback(error: threading.ExceptHookArgs) -> None:
    if error.exc_type.__name__ != "AlreadyJoinedError":
        threading.__excepthook__(error)


if __name__ == "__main__":
    from wandb.cli import cli

    threading.excepthook = _print_traceback
    cli.cli(prog_name="wandb")
