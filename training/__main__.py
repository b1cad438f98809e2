"""Train draft heads for a target, from text it writes itself: the embedded one, in data/, or any that load_pair takes.

python -m training corpus             the target writes dialogues; resumes (--guided: on given subjects)
python -m training held-out           its greedy answers to the prompts drafts are measured on
python -m training train NAME …       train heads; resumes; writes data/drafts/NAME.*
python -m training report             agreement, τ and calibration of trained heads on the held-out text

With --pair MODEL, a name on the hub or a folder, all of it lies in ./drafts_of_MODEL instead of data/.
"""

import sys
from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawFormatter
from pathlib import Path

from specnb import models
from specnb.models import files

COMMANDS = ("corpus", "held-out", "train", "report")


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    try:
        run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt as stop:
        kept = str(stop) or "what is written stays; the same command goes on"
        print(f"\ninterrupted: {kept}", file=sys.stderr)
        sys.exit(130)  # as shells report an interrupt


def _parser() -> ArgumentParser:
    """The command line: four commands, all of which take --dtype and --pair."""
    parser = ArgumentParser("python -m training", description=__doc__, formatter_class=RawFormatter)
    target = ArgumentParser(add_help=False)
    target.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="try what is faster here")
    target.add_argument("--pair", default=models.EMBEDDED, metavar="MODEL", help="another target: hub name or folder")
    commands = parser.add_subparsers(dest="what", required=True)

    corpus = commands.add_parser("corpus", parents=[target], help="let the target write dialogues; resumes")
    corpus.add_argument("--tokens", type=int, default=1_500_000, help="answer tokens in all")
    corpus.add_argument("--rows", type=int, default=192, help="dialogues written side by side")
    corpus.add_argument("--seed", type=int, default=0)
    corpus.add_argument("--guided", action="store_true", help="questions about code, sums and texts: given first words")

    held_out = commands.add_parser("held-out", parents=[target], help="greedy answers to the held-out prompts; resumes")
    held_out.add_argument("--prompts", nargs="+", default=(), help="only these, for example own:6 humaneval:8")

    train_heads = commands.add_parser("train", parents=[target], help="train heads; resumes")
    train_heads.add_argument("names", nargs="+", metavar="NAME", help="heads by name: training/recipes.py")
    train_heads.add_argument("--out", type=Path, help="folder for weights, card and learning curve")
    train_heads.add_argument("--vocabulary", type=int, default=8192, help="tokens that can be drafted: the commonest")

    report = commands.add_parser("report", parents=[target], help="measure trained heads on the held-out text")
    report.add_argument("--heads", type=Path, help="their folder")
    report.add_argument("--out", type=Path, help="folder for the tables heads_*.csv")
    return parser


def run(options: Namespace) -> None:
    """What the command line asks for."""
    import torch  # now: torch and transformers take seconds

    from specnb.heads.modules import final_norm
    from specnb.models import provenance
    from training import evaluation, recipes, runs

    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans again for every length, at many times a step's cost
    # What is mistyped is refused by a ValueError, before anything is loaded.
    for name in getattr(options, "names", ()):
        recipes.named(name)
    if getattr(options, "prompts", ()):
        evaluation.among(evaluation.held_out_prompts(), options.prompts)

    command = provenance.command("training")
    pair = models.load_pair(options.pair, dtype=options.dtype)
    if options.what in ("corpus", "train"):
        final_norm(pair.target)  # ValueError on a target that no head can be trained for, before hours are spent
    home = _home(pair)
    text = home / "corpus/held_out.npz"
    if options.what == "corpus":
        write_corpus(options, pair, home, command)
    elif options.what == "held-out":
        runs.write_held_out(pair, command, text, options.prompts)
    elif options.what == "train":
        train(options, pair, home, command)
    else:
        drafts = options.heads or home / "drafts"
        tables = options.out or home / "results"
        runs.report(pair, command, folder=drafts, out=tables, text=text)


def _home(pair: "models.Pair") -> Path:
    """Where all files of a target lie: the embedded one's in data/, another's in a folder of its name."""
    if pair.name == models.EMBEDDED:
        return files.DATA
    name = Path(pair.name).resolve().name
    return Path(f"drafts_of_{name}")


def write_corpus(options: Namespace, pair: "models.Pair", home: Path, command: str) -> None:
    """Let the target write dialogues, free ones or on given subjects."""
    from training import corpus, openings, writing

    if pair.target.config._attn_implementation == "sdpa":  # others add terms to scores that ours does not know
        pair.target.set_attn_implementation("specnb_grouped")
    folder = home / "corpus"
    begun = ()
    longer = {}
    if options.guided:
        folder = home / "corpus/guided"
        begun = openings.openings()
        longer = {"question_temperature": 0.8, "longest_question": 160}
    settings = writing.Settings(rows=options.rows, **longer)
    corpus.write(
        pair, options.tokens, command=command, folder=folder, settings=settings, seed=options.seed, openings=begun
    )


def train(options: Namespace, pair: "models.Pair", home: Path, command: str) -> None:
    """Train heads by name on all text of the target, each with the states that the others need, too."""
    from training import corpus, recipes, runs

    folders = [home / "corpus"]
    guided = home / "corpus/guided"
    if guided.exists():
        folders.append(guided)
    dialogues = corpus.load(*folders, pair=pair.name)
    ids = runs.vocabulary(folders, options.vocabulary, pair.name)
    out = options.out or home / "drafts"
    wanted = {name: recipes.named(name) for name in options.names}
    for name, recipe in wanted.items():
        layers = set()  # of all heads that read the same text, so that one pass of the target does for them
        for other in wanted.values():
            if other.tokens == recipe.tokens:
                layers |= other.layers(pair.target)
        runs.train(pair, name, command, dialogues=dialogues, ids=ids, out=out, layers=layers)


if __name__ == "__main__":
    main()
