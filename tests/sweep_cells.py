"""What test_sweep measures: importable by pools, by cluster workers and by a driver of its own."""

import os
import sys
import time
from pathlib import Path

from specnb import sweep


def cell(depth, branch, log):
    """depth · branch, and a line in the log for each time it is really measured."""
    with open(log, "a") as file:
        file.write(f"{depth},{branch}\n")
    return {"product": depth * branch, "ratio": depth / branch}


def slow(depth, branch, log):
    time.sleep(0.15)
    return cell(depth, branch, log)


def fragile(depth, branch, log):
    """Fails at depth 2 until somebody has mended it."""
    if depth == 2 and not Path(f"{log}.mended").exists():
        raise RuntimeError("depth 2 is\nbroken")
    return cell(depth, branch, log)


def wrong(depth, branch, log):
    return {"something": 1}


def deadly(depth, branch, log):
    """Takes its process along, the first time it is asked for depth 2."""
    if depth == 2 and not Path(f"{log}.died").exists():
        Path(f"{log}.died").touch()
        os.kill(os.getpid(), 9)
    return slow(depth, branch, log)


RESULTS = ("product", "ratio")


def cells(log, depths=range(1, 7)):
    return sweep.grid(depth=depths, branch=(1, 2), log=[str(log)])


if __name__ == "__main__":  # a driver to be killed
    sweep.run(slow, cells(sys.argv[2]), sys.argv[1], results=RESULTS)
