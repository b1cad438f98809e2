"""The laboratory has moved: it is the package ``study`` beside this one, in a checkout of the repository."""

MOVED = (
    "specnb.lab is now the package study, in a checkout of specnb beside this package: "
    "`import study`, `python -m study` (docs/package.md has the new names)"
)

if __name__ == "__main__":
    raise SystemExit(MOVED)
raise ImportError(MOVED)
