"""SQLite belongs to one host: its locks do not hold on network file systems, where files then break."""

import hashlib
import re
import socket
from pathlib import Path

from benchmark.errors import ConfigError

MOUNTS = Path("/proc/mounts")
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "ncpfs")
    + ("orangefs", "pvfs2", "panfs", "virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs")
    + ("fuse.rclone", "fuse.gcsfuse", "fuse.juicefs", "fuse.cvmfs2")
)


def network_file_system(path: Path, mounts: str) -> str | None:
    """The type of the network file system that `path` (absolute) lies on, None for a local one.

    `mounts`: the text of /proc/mounts (proc(5)): device, mount point, type, ... a line. The deepest mount point above
    the path counts, and of equal ones the last, which covers the others.
    """
    kind, depth = "", -1
    for line in mounts.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), parts[1]))  # a space is \040
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = parts[2], len(point.parts)
    return kind if kind in NETWORK else None


def this_host() -> str:
    """16 hexadecimal digits; names no host."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        number = ""
    return hashlib.sha256(f"{number} {socket.gethostname()}".encode()).hexdigest()[:16]


def check_one_host(database: Path, mounts: str | None = None, host: str | None = None) -> None:
    """On a network file system the first host takes the database by a file beside it; another one is refused.

    Raises ConfigError, OSError. `mounts`, `host`: of this machine, where not given.
    """
    if mounts is None:
        mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    kind = network_file_system(database.resolve(), mounts)
    if kind is None:
        return
    host = host or this_host()
    owner = database.with_name(f"{database.name}.host")
    try:
        with open(owner, "x") as file:
            file.write(host)
    except FileExistsError:
        if owner.read_text() != host:
            raise ConfigError(
                f"--storage: sqlite:///{database} is on a network file system ({kind}), and another host is at it "
                f"({owner.name}): SQLite breaks there; a journal (--storage {database.with_suffix('.journal')}) or "
                "postgresql+psycopg://USER@HOST/DATABASE would be right"
            ) from None
