"""Make the environment that make installs into, unless it is there: ``python tools/environment.py FOLDER``.

One that is there is kept; if it has no pip (uv's have none), it is given one. One that is made here is marked, so that
``make clean`` removes no other. Any Python 3 can run this file, to say which one is needed.
"""

import os
import shutil
import subprocess
import sys

OLDEST = (3, 11)
MARK = ".made-by-make"  # the Makefile's clean looks for it


def works(*command):
    """Whether a command ends well; what it says is not shown."""
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


def has_pip(python):
    return works(python, "-m", "pip", "--version")


def give_pip(python):
    """Put pip into an environment: from Python's own copy, else by the pip of the Python that runs this file.

    Debian's Python without python3-venv has no copy. Its pip may not install for the system or the user (PEP 668),
    but into an environment it may.
    """
    if has_pip(python) or works(python, "-m", "ensurepip"):
        return
    if works(sys.executable, "-m", "pip", "--python", python, "install", "pip"):
        return
    sys.exit(
        f"{python} has no pip, and none could be put there. On Debian or Ubuntu `sudo apt install python3-venv`, for "
        f"an environment of uv `uv pip install --python {python} pip`; then the same again"
    )


def create(folder):
    """A new environment with pip, marked as ours; nothing is left of one that could not be made."""
    if sys.version_info < OLDEST:
        needed, given = ".".join(map(str, OLDEST)), ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"specnb needs Python {needed} or newer, {sys.executable} is {given}: make PYTHON=python3.12 …")
    if os.path.isdir(folder) and os.listdir(folder):
        sys.exit(f"{folder} has no Python in bin/ and is not empty: remove it, or name another folder (make VENV=…)")
    done = False
    try:
        if not works(sys.executable, "-m", "venv", folder):
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        give_pip(os.path.join(folder, "bin", "python"))
        done = True
    finally:
        if not done:
            shutil.rmtree(folder, ignore_errors=True)
    with open(os.path.join(folder, MARK), "w") as mark:
        mark.write("make clean removes this environment\n")


def main(folder):
    python = os.path.join(folder, "bin", "python")
    if os.path.exists(python):
        give_pip(python)
    else:
        create(folder)


if __name__ == "__main__":
    main(sys.argv[1])
