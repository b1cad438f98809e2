"""Training draft heads: the corpus the target writes, its features, the losses, the loop. See ``__main__``."""
