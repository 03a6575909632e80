"""Whether W&B can be reached at all (its own client waits for half a minute, and then raises), and its agent's word."""

import netrc
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

SECONDS = 3.0


def agents_run(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The W&B run that a sweep's agent has made for this process: {"id", "project"}; None without an agent. The entity
    may be a person's name, and is not told."""
    if "WANDB_SWEEP_ID" not in environ or not environ.get("WANDB_RUN_ID"):
        return None
    project = environ.get("WANDB_PROJECT")
    return {"id": environ["WANDB_RUN_ID"], **({"project": project} if project else {})}


def unreachable() -> str | None:
    """Why runs cannot go online: no key, or nobody answers at WANDB_BASE_URL within `SECONDS`. None: they can."""
    address = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = address.hostname or ""
    if not os.environ.get("WANDB_API_KEY") and not _in_netrc(host):
        return "there is no API key (WANDB_API_KEY, or `wandb login`)"
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((host, port), timeout=SECONDS).close()
    except (OSError, ValueError) as error:
        return f"{host} cannot be reached ({error})"
    return None


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
