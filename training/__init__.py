"""Training of draft heads: the target's own text, its features, losses, the loop, and the report on held-out text.

``writing`` lets the target write dialogues and ``corpus`` keeps them in shards (``openings``: first words of guided
questions); ``features`` and ``branches`` hold what the target says about them; ``starts``, ``losses`` and ``loop``
train a head by its ``recipes``; ``evaluation`` measures it; ``runs`` goes from names to files; ``hints`` are what
errors advise and interrupts say. Command: ``python -m training``.
"""
