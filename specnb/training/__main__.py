"""Train draft heads for the embedded target, from text it writes itself.

python -m specnb.training corpus             the target writes dialogues; resumes (--guided: on given subjects)
python -m specnb.training held-out           its greedy answers to the prompts drafts are measured on
python -m specnb.training train NAME …       train heads; resumes; writes data/drafts/NAME.*
python -m specnb.training ranks              EAGLE, HASS and TALF by rank of the conditioning token
python -m specnb.training report             agreement and τ of every trained head on the held-out text
"""

from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawFormatter
from pathlib import Path

COMMANDS = ("corpus", "held-out", "train", "report", "ranks")


def main() -> None:
    parser = ArgumentParser("python -m specnb.training", description=__doc__, formatter_class=RawFormatter)
    number = ArgumentParser(add_help=False)
    number.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="try what is faster here")
    commands = parser.add_subparsers(dest="what", required=True)
    text = commands.add_parser("corpus", parents=[number], help="let the target write dialogues; resumes")
    text.add_argument("--tokens", type=int, default=1_500_000, help="answer tokens in all")
    text.add_argument("--rows", type=int, default=192, help="dialogues written side by side")
    text.add_argument("--seed", type=int, default=0)
    text.add_argument("--guided", action="store_true", help="questions about code, sums and texts: given first words")
    commands.add_parser("held-out", parents=[number], help="greedy answers to the held-out prompts")
    train = commands.add_parser("train", parents=[number], help="train heads; resumes")
    train.add_argument("names", nargs="+", metavar="NAME", help="heads by name: data/heads.toml")
    train.add_argument("--out", type=Path, help="folder for weights, card and learning curve")
    train.add_argument("--again", action="store_true", help="train anew what was trained on the same terms")
    trained = ArgumentParser(add_help=False, parents=[number])
    trained.add_argument("--heads", type=Path)
    report = commands.add_parser("report", parents=[trained], help="measure trained heads on the held-out text")
    report.add_argument("--out", type=Path, help="writes OUT.csv and OUT.json")
    ranks = commands.add_parser("ranks", parents=[trained], help="EAGLE-type heads by rank of the conditioning token")
    ranks.add_argument("--every", type=int, default=3, help="one in so many held-out texts")
    options = parser.parse_args()
    try:
        run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def run(options: Namespace) -> None:
    """What the command line asks for."""
    from specnb import heads, models  # now: torch and transformers take seconds
    from specnb.models import provenance
    from specnb.training import corpus, openings, recipes, runs, writing

    wanted = {name: recipes.named(name) for name in getattr(options, "names", ())}
    command = provenance.command("specnb.training")
    pair = models.load_pair(dtype=options.dtype)
    if options.what == "corpus":
        pair.target.set_attn_implementation("specnb_grouped")
        folder, begun = (corpus.GUIDED, openings.openings()) if options.guided else (corpus.FOLDER, ())
        longer = {"question_temperature": 0.8, "longest_question": 160} if options.guided else {}
        terms = {"settings": writing.Settings(rows=options.rows, **longer), "seed": options.seed, "openings": begun}
        corpus.write(pair, options.tokens, command=command, folder=folder, **terms)
    elif options.what == "held-out":
        runs.write_held_out(pair, command)
    elif options.what == "train":
        dialogues, ids = corpus.load(corpus.FOLDER, corpus.GUIDED), runs.vocabulary()
        out = options.out or heads.FOLDER
        untrained = [recipe for name, recipe in wanted.items() if options.again or not (out / f"{name}.json").exists()]
        for tokens in {recipe.tokens for recipe in untrained}:  # one pass of the target for all heads on one text
            alike = [recipe for recipe in untrained if recipe.tokens == tokens]
            layers = set().union(*(recipe.layers for recipe in alike))
            runs.corpus_features(pair, alike[0].text(dialogues), ids, sorted(layers), questions=True)
        for name in wanted:
            runs.train(pair, name, command, dialogues=dialogues, ids=ids, out=out, again=options.again)
    elif options.what == "ranks":
        runs.report_ranks(pair, command, folder=options.heads or heads.FOLDER, every=options.every)
    else:
        runs.report(pair, command, folder=options.heads or heads.FOLDER, out=options.out or runs.REPORT)


if __name__ == "__main__":
    main()
