"""n-grams merged into a draft model's tree: lossless, nothing of either lost, caches committed as they should be."""

from dataclasses import replace

import pytest
import torch
from tiny import llama, near_copy, tau

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, MergedDrafter, NgramDrafter, TreeDrafter
from specnb.exact import engine_law, in_float64, joint, total_variation
from specnb.sampling import Warp
from specnb.target import Target
from specnb.tree import Drawn

TINY = llama(0, max_position_embeddings=512)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1]


def merged(model, shape):
    return MergedDrafter(TreeDrafter(CausalLMDraft(model), shape), NgramDrafter())


@pytest.mark.parametrize("shape", [growth.chain(4), growth.kary(2, 3), growth.Eagle2(8, 3, 3)])
@pytest.mark.parametrize("other", [llama(1, max_position_embeddings=512), near_copy(TINY)], ids=["stranger", "near"])
def test_greedy_text_is_plain_decodings(shape, other):
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        plain = TINY.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=80)
    out = decode(Target(TINY), merged(other, shape), verifiers.greedy, PROMPT, max_new_tokens=80)
    assert list(out.tokens) == plain[0, len(PROMPT) :].tolist()


def test_the_tree_holds_both_and_the_models_nodes_come_first():
    both = merged(llama(1), growth.Eagle2(6, 3, 3))
    alone = TreeDrafter(CausalLMDraft(llama(1)), growth.Eagle2(6, 3, 3)), NgramDrafter()
    for drafter in (both, *alone):
        drafter.begin(PROMPT, Warp(), {})
    tree, *parts = (drafter.propose(None, 5).tree for drafter in (both, *alone))
    paths = [{t.path_tokens(node) for node in range(len(t))} for t in (tree, *parts)]
    assert paths[0] == paths[1] | paths[2]
    assert tree.token_list[: len(parts[0])] == parts[0].token_list
    assert len(parts[1]) > 1


def test_drafts_after_an_accepted_n_gram_are_those_of_a_fresh_draft_model():
    """The draft model's cache must hold accepted n-gram tokens that it never expanded."""
    both = merged(llama(1, max_position_embeddings=512), growth.kary(2, 2))
    out = decode(Target(TINY), both, verifiers.greedy, PROMPT, max_new_tokens=60)
    seen, foreign = [*PROMPT, *out.steps[0].tokens], 0
    for step in out.steps[1:]:
        fresh = TreeDrafter(CausalLMDraft(llama(1, max_position_embeddings=512)), growth.kary(2, 2))
        fresh.begin(seen, Warp(), {})
        tree = fresh.propose(None, 60 - (len(seen) - len(PROMPT)) - 1).tree
        assert step.draft.tree.token_list[: len(tree)] == tree.token_list
        foreign += any(node >= len(tree) for node in step.verdict.path)
        seen += step.tokens
    assert foreign > 2


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL, OTHER = (in_float64(llama(seed, vocab_size=3, num_hidden_layers=1, **SIZES)) for seed in (3, 4))


@torch.no_grad()
def small_law(prefix):
    return SMALL(torch.tensor([[0, 1, 2, 0, *prefix]])).logits[0, -1].softmax(-1)


def test_sampling_is_exact_and_a_broken_rule_is_caught():
    drafter = merged(OTHER, growth.kary(2, 2))
    right = engine_law(Target(SMALL), drafter, verifiers.one_hot, [0, 1, 2, 0], 4)
    assert total_variation(right, joint(small_law, 4)) < 1e-12

    def forgetful(draft, p, coins):
        """A broken rule: accept any candidate with what p gives it, rejected siblings forgotten."""
        path, node = [], 0
        while True:
            for child in draft.candidates[node]:
                if coins.accept(float(p[node, draft.tree.token_list[child]])):
                    path.append(child)
                    node = child
                    break
            else:
                return verifiers.Verdict(tuple(path), coins.choose(p[node]))

    wrong = engine_law(Target(SMALL), drafter, forgetful, [0, 1, 2, 0], 3)
    assert total_variation(wrong, joint(small_law, 3)) > 0.01


def test_tau_is_at_least_that_of_either_alone_on_the_same_text():
    shape, other = growth.chain(3), near_copy(TINY)
    parts = {"model": TreeDrafter(CausalLMDraft(other), shape), "ngram": NgramDrafter(), "both": merged(other, shape)}
    found = {}
    for name, drafter in parts.items():
        found[name] = tau(decode(Target(TINY), drafter, verifiers.greedy, PROMPT, max_new_tokens=120).steps)
    assert found["both"] >= max(found["model"], found["ngram"])


def test_a_drawn_tree_is_refused():
    with pytest.raises(ValueError, match="must be POINT, got SWOR"):
        MergedDrafter(TreeDrafter(CausalLMDraft(TINY), growth.chain(2), Drawn.SWOR))


# ---- where each node came from -------------------------------------------------------------------------------------


def test_sources_are_the_nodes_that_the_draft_model_grew():
    """After the draft's own nodes, dropped ones left out, come those that were looked up, which have no source."""
    both = merged(llama(1), growth.Eagle2(6, 3, 3))
    both.begin(PROMPT, Warp(), {})
    draft = both.propose(None, 5)
    grown, sources = both.drafter.grown, draft.sources.tolist()
    own = [source for source in sources if source >= 0]
    assert own == sorted(own)
    assert sources == own + [-1] * (len(sources) - len(own))
    assert len(own) == 7 < len(sources)
    assert len(grown) > 7
    for node, source in enumerate(own):
        assert grown.path_tokens(source) == draft.tree.path_tokens(node)


class Handed(MergedDrafter):
    """A drafter that changes what the inner ones drafted before it is handed on."""

    def __init__(self, drafter, change):
        super().__init__(drafter)
        self.change = change

    def propose(self, coins, max_depth):
        return self.change(super().propose(coins, max_depth))


class Committed(CausalLMDraft):
    """A draft model that keeps what was committed, as tokens, and sees that it is a path of the tree."""

    def begin(self, prefix, hidden):
        super().begin(prefix, hidden)
        self.texts = []

    def commit(self, tree, path, next_token, hidden):
        assert tuple(path) == tree.path(path[-1] if path else 0)
        self.texts.append((*(tree.token_list[node] for node in path), next_token))
        super().commit(tree, path, next_token, hidden)


def test_the_draft_model_commits_what_the_text_has_taken():
    """Accepted nodes that it never drafted are nodes of the committed tree, too."""
    model = Committed(llama(1, max_position_embeddings=512))
    both = MergedDrafter(TreeDrafter(model, growth.Eagle2(8, 3, 3)))
    out = decode(Target(TINY), both, verifiers.greedy, PROMPT, max_new_tokens=60)
    assert model.texts[:-1] == [step.tokens for step in out.steps[:-1]]
    assert any(step.draft.sources[node] < 0 for step in out.steps for node in step.verdict.path)


def test_the_path_is_found_again_whatever_nodes_were_dropped():
    """Only the nodes of even number, with their ancestors, are handed on: the cache keeps what it should."""

    def halved(draft):
        nodes = {above for node in range(0, len(draft.tree), 2) for above in draft.tree.path(node)}
        return draft.keep(nodes)

    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        plain = TINY.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=80)
    model = near_copy(TINY)
    model.config.max_position_embeddings = 512
    drafter = Handed(TreeDrafter(Committed(model), growth.kary(2, 3)), halved)
    out = decode(Target(TINY), drafter, verifiers.greedy, PROMPT, max_new_tokens=80)
    assert list(out.tokens) == plain[0, len(PROMPT) :].tolist()
    seen, longest = [*PROMPT, *out.steps[0].tokens], 0
    for step in out.steps[1:]:
        fresh = Handed(TreeDrafter(CausalLMDraft(model), growth.kary(2, 3)), halved)
        fresh.begin(seen, Warp(), {})
        tree = fresh.propose(None, 80 - (len(seen) - len(PROMPT)) - 1).tree
        assert step.draft.tree.token_list == tree.token_list
        longest = max(longest, len(step.verdict.path))
        seen += step.tokens
    assert longest >= 2


def test_expansions_are_the_draft_models_alone():
    both = merged(llama(1), growth.kary(2, 3))
    alone = TreeDrafter(CausalLMDraft(llama(1)), growth.kary(2, 3))
    for drafter in (both, alone):
        drafter.begin(PROMPT, Warp(), {})
    found, expected = (drafter.propose(None, 5).expansions for drafter in (both, alone))
    assert [(each.nodes, each.mass) for each in found] == [(each.nodes, each.mass) for each in expected]
    assert [each.nodes for each in found] == [1, 2, 4]


def test_a_draft_without_sources_is_refused():
    drafter = Handed(TreeDrafter(CausalLMDraft(llama(1)), growth.chain(2)), lambda draft: replace(draft, sources=None))
    with pytest.raises(ValueError, match="which nodes the draft model grew: hand its sources on"):
        decode(Target(TINY), drafter, verifiers.greedy, PROMPT, max_new_tokens=8)


def test_a_drawn_tree_may_not_be_pruned_by_a_later_rule_either():
    """A rule may be set between steps: the ban on dropping drawn nodes holds there, too."""
    drafter = TreeDrafter(CausalLMDraft(TINY), growth.chain(2), Drawn.SWOR)
    with pytest.raises(ValueError, match="Eagle2 drops nodes by their value: a tree drawn SWOR would be biased"):
        drafter.growth = growth.Eagle2(8, 3, 3)
    drafter.growth = growth.kary(2, 2)
    assert drafter.growth == growth.kary(2, 2)
