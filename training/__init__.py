"""Training of draft heads: the target's own text, its features, losses, the loop, and the report on held-out text.

``python -m training`` is the command. The modules, in the order of the work:

writing     lets the target write dialogues by itself
openings    the first words of guided questions
corpus      keeps dialogues in shards
features    what the target says about them, computed once for all heads
branches    what it says off its own path: small trees, for TALF
recipes     how each head is trained, by name
starts      where its weights begin
losses      what it is trained on
loop        the training loop
evaluation  how good it is on held-out text
runs        from names to files
hints       what errors advise, and what an interrupted command says
"""
