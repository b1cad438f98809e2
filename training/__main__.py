"""Train draft heads for a target, on text that the target writes itself.

python -m training corpus             let the target write dialogues (--guided: on given subjects)
python -m training held-out           write its greedy answers to the prompts that heads are measured on
python -m training train NAME …       train heads; writes data/drafts/NAME.*
python -m training report             measure trained heads on the held-out text: agreement, τ and calibration

A draft head is a small network that drafts tokens for a large model, the target. The first three commands go on where
they were interrupted. The target is the embedded model, whose files are in data/. With --pair MODEL, a name on the hub
or a folder, it is another model, and all its files are in ./drafts_of_MODEL.
"""

import sys
from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawFormatter
from pathlib import Path

from specnb import models
from specnb.models import files

COMMANDS = ("corpus", "held-out", "train", "report")


def main() -> None:
    """Run the command line; errors that a user can mend are printed without a traceback."""
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
    """The parser of the four commands, all of which take --dtype and --pair."""
    parser = ArgumentParser("python -m training", description=__doc__, formatter_class=RawFormatter)
    target = ArgumentParser(add_help=False)
    target.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the target's weights; which is faster depends on the machine",
    )
    target.add_argument(
        "--pair", default=models.EMBEDDED, metavar="MODEL", help="another target: its name on the hub, or its folder"
    )
    commands = parser.add_subparsers(dest="what", required=True)

    corpus = commands.add_parser("corpus", parents=[target], help="let the target write dialogues; resumes")
    corpus.add_argument(
        "--tokens", type=int, default=1_500_000, help="answer tokens in all, those of earlier runs included"
    )
    corpus.add_argument("--rows", type=int, default=192, help="dialogues written at the same time")
    corpus.add_argument("--seed", type=int, default=0, help="of the sampling")
    corpus.add_argument("--guided", action="store_true", help="give the first words of questions: code, sums, texts")

    held_out = commands.add_parser("held-out", parents=[target], help="greedy answers to the held-out prompts; resumes")
    held_out.add_argument("--prompts", nargs="+", default=(), help="only these, for example own:6 humaneval:8")

    train_heads = commands.add_parser("train", parents=[target], help="train heads; resumes")
    train_heads.add_argument("names", nargs="+", metavar="NAME", help="names of heads, see training/recipes.py")
    train_heads.add_argument("--out", type=Path, help="folder for weights, card and learning curve")
    train_heads.add_argument(
        "--vocabulary", type=int, default=8192, help="how many tokens can be drafted: the commonest"
    )

    report = commands.add_parser("report", parents=[target], help="measure trained heads on the held-out text")
    report.add_argument("--heads", type=Path, help="folder of the heads")
    report.add_argument("--out", type=Path, help="folder for the tables heads_*.csv")
    return parser


def run(options: Namespace) -> None:
    """Run the command that was asked for. A mistyped name raises ValueError before anything is loaded."""
    import torch  # here and not above: torch and transformers take seconds to import, and --help needs neither

    from specnb.heads.modules import final_norm
    from specnb.models import provenance
    from training import evaluation, recipes, runs

    # cuDNN's attention plans anew for every length of text, which takes many times longer than a step.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Both are called for their ValueError on a mistyped name.
    for name in getattr(options, "names", ()):
        recipes.named(name)
    if getattr(options, "prompts", ()):
        evaluation.among(evaluation.held_out_prompts(), options.prompts)

    command = provenance.command("training")
    pair = models.load_pair(options.pair, dtype=options.dtype)
    if options.what in ("corpus", "train"):
        final_norm(pair.target)  # called for its ValueError on a target without one, before hours of work are spent
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
    """The folder with all files of a target: data/ for the embedded one, else drafts_of_NAME."""
    if pair.name == models.EMBEDDED:
        return files.DATA
    name = Path(pair.name).resolve().name
    return Path(f"drafts_of_{name}")


def write_corpus(options: Namespace, pair: "models.Pair", home: Path, command: str) -> None:
    """Let the target write dialogues, on subjects of its own or on given ones."""
    from training import corpus, openings, writing

    # Any other implementation may add terms to the scores, which specnb_grouped would leave out.
    if pair.target.config._attn_implementation == "sdpa":
        pair.target.set_attn_implementation("specnb_grouped")
    folder = home / "corpus"
    first_words = ()
    changed_settings = {}
    if options.guided:
        folder = home / "corpus/guided"
        first_words = openings.openings()
        # A question that begins with code or a text is longer than a free one.
        changed_settings = {"question_temperature": 0.8, "longest_question": 160}
    settings = writing.Settings(rows=options.rows, **changed_settings)
    corpus.write(
        pair, options.tokens, command=command, folder=folder, settings=settings, seed=options.seed, openings=first_words
    )


def train(options: Namespace, pair: "models.Pair", home: Path, command: str) -> None:
    """Train heads by name, on all text of the target.

    The target runs once over the text of several heads: each head's turn computes the states that the others need, too.
    """
    from training import corpus, recipes, runs

    folders = [home / "corpus"]
    guided = home / "corpus/guided"
    if guided.exists():
        folders.append(guided)
    dialogues = corpus.load(*folders, pair=pair.name)
    ids = runs.vocabulary(folders, options.vocabulary, pair.name)
    out = options.out or home / "drafts"
    recipe_of = {name: recipes.named(name) for name in options.names}
    for name, recipe in recipe_of.items():
        layers = set()  # states that any of the heads on the same text needs
        for other_recipe in recipe_of.values():
            if other_recipe.tokens == recipe.tokens:
                layers |= other_recipe.layers(pair.target)
        runs.train(pair, name, command, dialogues=dialogues, ids=ids, out=out, layers=layers)


if __name__ == "__main__":
    main()
