"""Training has moved: it is the package ``training`` beside this one, in a checkout of the repository."""

MOVED = (
    "specnb.training is now the package training, in a checkout of specnb beside this package: "
    "`import training`, `python -m training`"
)

if __name__ == "__main__":
    raise SystemExit(MOVED)
raise ImportError(MOVED)
