"""Whether Weights & Biases can be reached from here."""

import netrc
import os
import socket
from urllib.parse import urlsplit

SECONDS_TO_ANSWER = 3.0


def unreachable() -> str | None:
    """Why runs cannot go online: no key, or no answer at WANDB_BASE_URL in `SECONDS_TO_ANSWER`. None: they can."""
    address = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = address.hostname or ""
    if not os.environ.get("WANDB_API_KEY") and not _in_netrc(host):
        return "no API key was found; set WANDB_API_KEY, or type `wandb login`"
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        return f"{host} cannot be reached ({error})"
    return None


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
