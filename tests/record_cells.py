"""What the tests of study/record measure: importable by pools, by cluster workers and by a driver of its own."""

import os
import sys
import time
from pathlib import Path

from study import record


def cell(depth, branches, log):
    """One row a branch: depth · branch; and a line in the log for each time it is really measured."""
    with open(log, "a") as file:
        file.write(f"{depth}\n")
    return [{"branch": branch, "product": depth * branch, "name": "NA"} for branch in branches]


def slow(depth, branches, log):
    time.sleep(0.15)
    return cell(depth, branches, log)


def endless(depth, branches, log):
    """Is measured until somebody ends it."""
    cell(depth, branches, log)
    time.sleep(600)


def fragile(depth, branches, log):
    """Fails at depth 2 until somebody has mended it."""
    if depth == 2 and not Path(f"{log}.mended").exists():
        raise RuntimeError("depth 2 is\nbroken")
    return cell(depth, branches, log)


def deadly(depth, branches, log):
    """Takes its process along, the first time it is asked for depth 2."""
    if depth == 2 and not Path(f"{log}.died").exists():
        Path(f"{log}.died").touch()
        os.kill(os.getpid(), 9)
    return slow(depth, branches, log)


def blocks(log, depths=range(1, 7)):
    return record.grid(depth=depths, branches=[[1, 2]], log=[str(log)])


if __name__ == "__main__":  # a driver to be killed
    record.run("cell", slow, blocks(sys.argv[2]), sys.argv[1])
