"""Sampling from the real model at T = 1: the first two tokens follow the target's law, a wrong q is caught.

The laws are the real model's over the V tokens that are likeliest first, which makes a draw twenty times cheaper.
"""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from specnb import growth, verifiers
from specnb.decode import steps
from specnb.drafters import TreeDrafter
from specnb.exact import gallery
from specnb.growth import Salf
from specnb.target import Scores, Target
from specnb.tree import Draft, Drawn, TokenTree

V = 1024
PROMPT = "Name one thing that a cat likes."
SHAPE = growth.Static(((0,), (1,), (0, 0)))
BINARY = growth.kary(2, 2)


class Remembering:
    """The real Target's tree forward over the root and its likely children, asked once, answering thousands of times.

    Tokens are counted among ids, the model's. Below other first tokens, and for third tokens, the law is uniform: the
    statistic does not look there.
    """

    def __init__(self, model, prompt, ids, likely):
        target = Target(model)
        self.model, self.context = model, target.context
        self.vocabulary, self.readable = target.vocabulary, target.readable
        target.prefill(prompt[:-1])
        tree = TokenTree.from_paths([(int(ids[x]),) for x in likely], root=prompt[-1])
        keys = [tuple(prompt), *((*prompt, x) for x in likely)]
        self.known = dict(zip(keys, target.forward(tree).logits[:, ids], strict=True))

    def prefill(self, tokens):
        self.committed = tuple(tokens)
        return {}

    def forward(self, tree):
        self.tree = tree
        keys = ((*self.committed, tree.token_list[0], *tree.path_tokens(i)) for i in range(len(tree)))
        return Scores(torch.stack([self.known.get(key, torch.zeros(V)) for key in keys]))

    def commit(self, path):
        self.committed += (self.tree.token_list[0], *(self.tree.token_list[node] for node in path))


class NoisyDraft:
    """A draft model that knows the target's first law only, sharpened and disturbed, and says it everywhere.

    size: over so many of the likeliest tokens only, as trained heads are; None for all.
    """

    hidden_layers, max_depth = (), None

    def __init__(self, logits, size=None):
        noise = torch.randn(len(logits), generator=torch.Generator().manual_seed(0))
        self.ids = None if size is None else logits.topk(size).indices.sort().values
        self.logits = 1.4 * logits + 0.7 * noise
        if size is not None:
            self.logits = self.logits[self.ids]

    def begin(self, prefix, hidden):
        pass

    def expand(self, tree, frontier):
        return self.logits.expand(len(frontier), -1)

    def commit(self, tree, path, next_token, hidden):
        pass


@pytest.fixture(scope="module")
def setting(smollm2):
    """The prompt's ids, the shared target, the first law in logs, and the law of two tokens, by plain forwards."""
    prompt = smollm2.encode(PROMPT)

    with torch.no_grad():
        logits = smollm2.target(torch.tensor([prompt])).logits[0, -1].double()
        ids = logits.topk(V).indices.sort().values
        first = logits[ids].softmax(0)
        likely = first.topk(25).indices.tolist()
        second = smollm2.target(torch.tensor([[*prompt, int(ids[x])] for x in likely])).logits[:, -1, ids]
        second = second.double().softmax(-1)
    expected = {
        (x, y): float(first[x] * law[y])
        for x, law in zip(likely, second, strict=True)
        for y in law.topk(25).indices.tolist()
    }
    commonest = dict(sorted(expected.items(), key=lambda item: -item[1])[:50])
    target = Remembering(smollm2.target, prompt, ids, likely)
    return prompt, target, first.log().float(), commonest


def p_value(setting, verifier, draws, shape=SHAPE, size=None, drawn=Drawn.SWOR):
    """Chi-square over the 50 commonest outcomes and the rest."""
    prompt, target, logits, expected = setting
    drafter = TreeDrafter(NoisyDraft(logits, size), shape, drawn)
    counts = Counter()
    accepted = 0
    for seed in range(draws):
        text = []
        for step in steps(target, drafter, verifier, prompt, max_new_tokens=3, temperature=1.0, seed=seed, eos=()):
            accepted += 0 if text else len(step.verdict.path)
            text += step.tokens
            if len(text) > 1:
                break
        counts[tuple(text[:2])] += 1
    assert 0.2 * draws < accepted < 1.8 * draws  # the draft is neither useless nor perfect
    observed = [counts[outcome] for outcome in expected]
    law = [draws * probability for probability in expected.values()]
    return chisquare([*observed, draws - sum(observed)], [*law, draws - sum(law)]).pvalue


@pytest.mark.model
@pytest.mark.parametrize(
    ("verifier", "shape", "size"),
    [
        (verifiers.rrsw, SHAPE, None),
        (verifiers.traversal, BINARY, 128),
        (verifiers.block, growth.chain(2), 128),  # block verifies chains alone
    ],
    ids=["rrsw", "traversal", "block"],
)
def test_two_tokens_follow_the_targets_law(setting, verifier, shape, size):
    assert p_value(setting, verifier, 3_000, shape, size) > 0.01


SEARCHES = {"beam": growth.Eagle2(5, 2, 3), "optimal": Salf(6, 2, 0.0, 3, depth=2), "salf": Salf(6, 2, 0.3, 3, depth=2)}


@pytest.mark.model
@pytest.mark.parametrize(
    "name", [pytest.param("beam", marks=pytest.mark.slow), pytest.param("optimal", marks=pytest.mark.slow), "salf"]
)
def test_searched_trees_verified_one_hot_follow_the_targets_law(setting, name):
    """Trees that keep nodes by their value are exact if they are verified as what they are, deterministic."""
    assert p_value(setting, verifiers.one_hot, 3_000, SEARCHES[name], 128, Drawn.POINT) > 0.01


@pytest.mark.model
def test_a_searched_tree_that_is_taken_for_a_drawn_one_is_caught(setting):
    """Negative control: the same tree, verified with the draft's law as if its nodes had been drawn from it."""
    _, _, logits, _ = setting
    model = NoisyDraft(logits, 128)
    q = model.logits.softmax(-1)

    def credulous(draft, p, coins):
        rows = q.expand(len(draft.tree), -1)
        return verifiers.rrsw(Draft(draft.tree, rows, Drawn.SWOR, model.ids), p, coins)

    assert p_value(setting, credulous, 500, SEARCHES["salf"], 128, Drawn.POINT) < 1e-6


@pytest.mark.model
def test_a_wrong_q_is_caught(setting):
    """Negative control: the verifier is told a flatter law than the one the children were drawn from."""

    def misinformed(draft, p, coins):
        if draft.q is None:
            return verifiers.rrsw(draft, p, coins)
        flat = (draft.q.clamp_min(1e-30) ** 0.5) * (draft.q.sum(1, keepdim=True) > 0)
        return verifiers.rrsw(
            Draft(draft.tree, flat / flat.sum(1, keepdim=True).clamp_min(1e-30), draft.drawn), p, coins
        )

    assert p_value(setting, misinformed, 500) < 1e-6


@pytest.mark.model
def test_a_traversal_that_forgets_to_recompute_survivals_is_caught(setting):
    """Negative control from notebook 02's gallery."""

    def forgetful(draft, p, coins):
        rule = verifiers.rrsw if draft.q is None else gallery.BUGS["survivals not recomputed"].verifier
        return rule(draft, p, coins)

    assert p_value(setting, forgetful, 2_000, BINARY) < 1e-6
