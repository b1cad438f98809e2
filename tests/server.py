"""A JupyterLab of one's own, with no setting of the user's."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OWN = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
OWN += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]


@contextmanager
def running(command: Sequence[str], folder: Path, cwd: Path | None = None) -> Iterator[str]:
    """The address of the server that a command starts, which keeps its own files in a folder; ended at the end."""
    address = f"http://127.0.0.1:{free_port()}"
    options = ["--no-browser", "--allow-root", "--IdentityProvider.token="]
    options += ["--ServerApp.port=" + address.rpartition(":")[2], "--ServerApp.port_retries=0"]
    environment = os.environ | {name: str(folder / name) for name in OWN}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([*command, *options], cwd=cwd, env=environment, stdout=log, stderr=log)
    try:
        while not answers(f"{address}/api/status"):
            assert server.poll() is None, (folder / "server.log").read_text(encoding="utf-8")
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:  # a loaded machine: the folder is temporary, nothing is lost
            server.kill()
            server.wait()


def free_port() -> int:
    """A port of this machine that nobody uses just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(url: str) -> bool:
    """Whether somebody is at home."""
    try:
        return urllib.request.urlopen(url, timeout=10).status == 200
    except urllib.error.URLError:
        return False
