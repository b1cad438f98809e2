"""Training of draft heads, small networks that draft tokens for a large target model.

``python -m training`` is the command. The modules, in the order of the work:

writing     the target writes dialogues by itself
openings    first words of questions on given subjects
corpus      dialogues on the disk, in shards
features    the target's states and laws (distributions over the vocabulary) on this text, computed once for all heads
branches    its laws away from the text: small trees, for TALF
recipes     how each head is trained, by name
starts      the weights that training begins with
losses      what a head is trained on
loop        the training loop
evaluation  how good a head is on held-out text
runs        from names to files: features, heads with their cards, reports
hints       texts for users: advice in errors, what an interrupted command keeps
"""
