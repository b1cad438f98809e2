"""python -m specnb.training corpus: let the target write the corpus."""

import argparse
import shlex
import sys
from pathlib import Path

from specnb import models
from specnb.training import corpus, writing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m specnb.training", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    text = commands.add_parser("corpus", help="let the target write dialogues; resumes")
    text.add_argument("--tokens", type=int, default=1_500_000, help="answer tokens in all")
    text.add_argument("--folder", type=Path, default=corpus.FOLDER)
    text.add_argument("--rows", type=int, default=192, help="dialogues written side by side")
    text.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "specnb.training", *sys.argv[1:]])
    pair = models.load_pair(dtype="bfloat16")
    pair.target.set_attn_implementation("specnb_grouped")
    settings = writing.Settings(rows=options.rows)
    corpus.write(pair, options.tokens, command=command, folder=options.folder, settings=settings, seed=options.seed)


if __name__ == "__main__":
    main()
