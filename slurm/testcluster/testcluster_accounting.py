"""The accounting of a test cluster: a MariaDB that only its owner can reach, and slurmdbd in front of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

COMMANDS = {"mariadbd": "mariadb-server-core", "slurmdbd": "slurmdbd"}
"""What accounting needs beyond a cluster without, and the Debian packages that have it."""
_TABLES = Path("/usr/share/mysql")
_LEAN = (
    "--skip-networking",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-log-file-size=16M",
    "--innodb-buffer-pool-size=32M",
    "--innodb-doublewrite=0",
    "--innodb-use-native-aio=0",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=8M",
    "--innodb-lock-wait-timeout=900",
)
"""Small and quick; nothing here has to survive its machine. slurmdbd asks for so long a lock wait; native I/O is what
containers often forbid."""

Launch = Callable[..., subprocess.Popen[bytes]]


def database_dir(directory: Path) -> Path:
    """Closed to others: whoever reaches the socket in it may do anything to the database."""
    return directory / "db"


def database_socket(directory: Path) -> Path:
    return database_dir(directory) / "socket"


def environment(directory: Path) -> dict[str, str]:
    """What makes slurmdbd's client library find the socket, which slurmdbd.conf cannot name."""
    return {"MYSQL_UNIX_PORT": str(database_socket(directory))}


def make_database(directory: Path, *, environment: dict[str, str]) -> None:
    """An empty database with MariaDB's own tables, in a second. Raises RuntimeError with its words."""
    place = database_dir(directory)
    place.mkdir(mode=0o700)
    (place / "data").mkdir(mode=0o700)
    (place / "tmp").mkdir(mode=0o700)
    text = "create database mysql;\nuse mysql;\n"
    for name in ("system_tables.sql", "system_tables_data.sql"):
        (found,) = (path for path in _TABLES.glob(f"m*_{name}") if not path.is_symlink())
        text += found.read_text()
    done = subprocess.run(
        ["mariadbd", *_options(directory), "--bootstrap"],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"mariadbd --bootstrap ended with {done.returncode}: {done.stderr[-2000:]}")


def server(directory: Path) -> tuple[str, ...]:
    """The command line of the database server."""
    place = database_dir(directory)
    return ("mariadbd", *_options(directory), f"--socket={place}/socket", f"--pid-file={place}/pid")


def _options(directory: Path) -> tuple[str, ...]:
    place = database_dir(directory)
    # No passwords: only the owner of the directory gets as far as the socket.
    own = ("--no-defaults", "--user=root", "--skip-grant-tables", f"--datadir={place}/data", f"--tmpdir={place}/tmp")
    return (*own, *_LEAN)


def slurmdbd_conf(directory: Path, *, hostname: str, port: int, munge_socket: Path, plugin_dir: Path | None) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost={hostname}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
LogFile={directory}/log/slurmdbd
PidFile={directory}/pid/slurmdbd
{f"PluginDir={plugin_dir}" if plugin_dir else ""}
"""
