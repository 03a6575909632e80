"""`wandb agent` in a process of its own, as `fssl agent` starts it: W&B's, without one traceback that says nothing.

After each run W&B's agent closes its connection to its own service. What is collected as garbage later wants to be told
there, in a thread, which ends with a traceback of AlreadyJoinedError; no data is in it.
"""

import threading


def _told(error: threading.ExceptHookArgs) -> None:
    if error.exc_type.__name__ != "AlreadyJoinedError":
        threading.__excepthook__(error)


if __name__ == "__main__":
    from wandb.cli import cli

    threading.excepthook = _told
    cli.cli(prog_name="wandb")
