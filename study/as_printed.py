"""Algorithms and equations of the papers, read as they are printed: does what the paper says of them hold?

Each public function answers for one claim: it returns one truth value a case, True where it is as the paper says.
Models are random ones of a few tokens; all numbers are float64, and laws are enumerated.
"""

import random
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specnb import growth, masks
from specnb.drafters import ProgressiveDrafter, textbook
from specnb.drafters.pools import Trie
from specnb.exact import enumeration as exact
from specnb.exact import gallery
from specnb.models import Window
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn, TokenTree
from specnb.verifiers import one_hot

CLOSE = 1e-9  # two numbers are equal within rounding
DYNATREES = (4, 3, 0.01), (8, 3, 0.03), (3, 4, 0.05), (8, 3, 0.1)  # depth, branch, threshold


# ---- random worlds ------------------------------------------------------------------------------------------------


def _random_llama() -> LlamaForCausalLM:
    """A random model of three tokens; weights ten times as large as usual, so that it matters what a node sees."""
    config = LlamaConfig(vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    config.initializer_range = 0.2
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return exact.in_float64(LlamaForCausalLM(config))


@torch.no_grad()
def _after(model: LlamaForCausalLM, tokens: tuple[int, ...]) -> Tensor:
    """(V,) logits of a plain forward behind the last of these tokens."""
    return model(torch.tensor([tokens])).logits[0, -1]


def _as_alone(target: Target, text: tuple[int, ...], tree: TokenTree) -> list[bool]:
    """For each node of a tree behind a text: one forward of all gives it the logits of a plain one over its path."""
    target.prefill(text[:-1])  # the last token is the tree's root
    plain = torch.stack([_after(target.model, (*text, *tree.path_tokens(node))) for node in range(len(tree))])
    return ((target.forward(tree).logits - plain).abs().amax(1) < CLOSE).tolist()


def _random_trie(rng: random.Random, depth: int = 3) -> Trie:
    """Up to three children a node, of four tokens."""
    return {v: _random_trie(rng, depth - 1) for v in rng.sample(range(4), rng.randint(0, 3))} if depth else {}


def _behind(model: exact.Model, text: tuple[int, ...]) -> exact.Model:
    """The model of what comes after a text."""
    return lambda path: model((*text, *path))


def _greedy(model: exact.Model) -> Callable[[tuple[int, ...]], int]:
    """The model's likeliest token after a path."""
    return lambda path: int(model(path).argmax())


# ---- PTD ----------------------------------------------------------------------------------------------------------


def _merge_as_printed(T: Trie, other: Trie) -> Trie:
    """M, case by case: a child v that T lacks comes as a node, (V ∪ v, E ∪ (r, v)), without what is below it."""
    merged = {v: _merge_as_printed(below, other[v]) if v in other else below for v, below in T.items()}
    return merged | {v: {} for v in other if v not in T}


def _eligible(T: Trie, says: Callable[[tuple[int, ...]], int]) -> set[tuple[int, ...]]:
    """Edges (n, V_n) from a node of T, or its root, to a child that is what the target says there; as paths of V_n."""
    known = set(textbook.nodes(T))
    return {(*n, says(n)) for n in {(), *known} if (*n, says(n)) in known}


def ptd_algorithm_1_as_printed() -> list[bool]:
    """The merge M keeps every path of both trees, and line 20 finds section 3.3's edges (section 3.2, Algorithm 1).

    A case of M is a pair of random trees of four tokens: it fails where the second has a child with nodes below it
    that the first lacks, since M's first case adds the child alone. A case of line 20 is a step with a random draft
    tree and a random candidate tree: all fail. The line goes through V^i, the expanded draft tree, where every node
    has got the target's answer as a child (line 8), so all of it is eligible; section 3.3 goes through the candidates.
    """
    cases = []
    for rng in map(random.Random, range(10)):
        T, other = _random_trie(rng), _random_trie(rng)
        both = {*textbook.nodes(T), *textbook.nodes(other)}
        cases.append(set(textbook.nodes(_merge_as_printed(T, other))) == both)
    for seed in range(10):
        rng, says = random.Random(seed), _greedy(exact.random_model(4, seed))
        candidates, T = {0: _random_trie(rng)}, {1: _random_trie(rng)}
        V_i = textbook.expand(T, {v: says(v) for v in textbook.nodes(T)}, 4)  # line 8
        cases.append(_eligible(V_i, says) == _eligible(candidates, says))
    return cases


def ptd_algorithm_2_as_printed() -> list[bool]:
    """Algorithm 2 keeps the target's law; its first i candidates are rejected with the sum of their P (Appendix C).

    Two cases for each of three random targets and two or three candidates: the law of the text is the target's; all
    candidates are rejected with the sum of their probabilities. All fail. Line 13 renormalises over the remaining
    candidates, not over the vocabulary, so the last one is always accepted; and the sum is the probability that one is
    accepted. A single candidate is left out: nothing remains to renormalise over, and the printed loop does not end.
    """
    cases = []
    for (p, q), k in product(gallery.worlds(3, 4), (2, 3)):
        make = gallery.drawn(growth.kary(k, 1), Drawn.POINT)
        cases.append(gallery.bias(make, gallery.ptd_as_printed, p, q) < CLOSE)
        rejected = exact.accepted_law(make(q), one_hot, p, depth=1)[0]  # one_hot samples as the proof does
        cases.append(abs(rejected - float(p(())[q(()).topk(k).indices].sum())) < CLOSE)
    return cases


def _sampling_cases(p: exact.Model, q: exact.Model, k: int) -> list[bool]:
    """Appendix C: of k candidates, the i-th is selected with its probability P_i; and the text has the target's law."""
    make, chances = gallery.drawn(growth.kary(k, 1), Drawn.POINT), p(())[q(()).topk(k).indices].tolist()
    selected = exact.law(lambda coins: exact.verify_once(make(q), one_hot, p, coins, depth=1)[1].path)
    cases = [abs(selected[node,] - chance) < CLOSE for node, chance in enumerate(chances, start=1)]
    return [*cases, gallery.bias(make, one_hot, p, q) < CLOSE]


def _one_forward_cases(model: LlamaForCausalLM, text: tuple[int, ...], draft_tree: Trie) -> list[bool]:
    """Figure 3: each node of [X; T; C] has the logits of its own branch; it sees X and its branch, at their depth."""
    drafter, length = ProgressiveDrafter(), len(text) - 1
    drafter.begin(text, Warp(), {})
    drafter.tree = draft_tree
    drafter.pool.add(text[-1], {1: {1: {}, 2: {}}, 2: {}})
    tree = drafter.propose(RandomCoins(), 6).tree
    cases, positions = _as_alone(Target(model), text, tree), masks.positions(tree, length)[0].tolist()
    for node, row in enumerate(masks.visible(tree, length)):
        branch = [*range(length), *(length + above for above in (0, *tree.path(node)))]
        cases.append(row.nonzero().flatten().tolist() == branch and positions[node] == length + len(tree.path(node)))
    return cases


def ptd_law_is_kept() -> list[bool]:
    """One forward scores text, drafts and candidates, each behind its own branch; sampling keeps the target's law.

    Figures 2 and 3, Appendix C. Cases: each candidate's chance of being selected, and the law of the text, for one to
    three candidates of three random drafts; logits, and mask and position, of every node of two steps with a random
    model; and the law of the text that the whole method writes with it. Sampling renormalises over the vocabulary.
    """
    model, text, cases = _random_llama(), (0, 1, 2, 0), []
    for (p, q), k in product(gallery.worlds(3, 4), (1, 2, 3)):
        cases += _sampling_cases(p, q, k)
    for tree in ({1: {2: {0: {}}}, 0: {1: {}, 2: {}}}, {2: {}, 1: {0: {1: {2: {}}}}}):
        cases += _one_forward_cases(model, text, tree)
    written = exact.engine_law(Target(model), ProgressiveDrafter(2, 2), one_hot, text, 3)
    target = exact.joint(lambda path: _after(model, (*text, *path)).softmax(-1), 3)
    return [*cases, exact.total_variation(written, target) < CLOSE]


# ---- DynaTree -----------------------------------------------------------------------------------------------------


def dynatree_first_token() -> list[bool]:
    """Several continuations make it likelier than one chain that a path begins as the target goes on (section 1).

    A case is a random draft and target under one of four settings: some first token of the tree is more probable to
    be the target's than the first token of a chain. All fail: only the draft's top token stands below the prefix
    (Algorithm 1, line 9), so both are the same. Branching begins at the second token.
    """
    cases = []
    for (p, q), setting in product(gallery.worlds(10, 5), DYNATREES):
        tree = exact.toy_draft(q, growth.DynaTree(*setting))[0].tree
        some = sum(float(p(())[tree.token_list[node]]) for node in tree.children[0])
        cases.append(some > float(p(())[q(()).argmax()]))
    return cases


def dynatree_pruned_leaves() -> list[bool]:
    """Every leaf whose path probability is below the threshold is pruned (section 3.3, Figure 1).

    A case is the tree of a random draft under one of four settings: no node in it is below the threshold. All fail:
    Algorithm 1 asks for the threshold before it expands a node (line 17), so leaves below it are left as they are,
    and the target verifies them.
    """
    trees = product(gallery.worlds(10, 5), DYNATREES)
    drafts = [(exact.toy_draft(q, growth.DynaTree(*setting))[0], setting[2]) for (_, q), setting in trees]
    return [bool((draft.scores >= least).all()) for draft, least in drafts]


def dynatree_mask_alone() -> list[bool]:
    """The mask gives each node the distribution of sequential decoding along its path (section 3.4).

    A case is a node of four trees, the root included, scored by a random model with rotary positions: its logits are
    those of a plain forward over its path. No positions are printed, so nodes count on in breadth-first order; it
    fails where the number of the node, or of one above it, is not its depth. Only roots, their first children and
    chains hold.
    """
    target, cases = gallery.Unpositioned(_random_llama()), []
    for parents in ([-1, 0, 1, 2, 3], [-1, 0, 0], [-1, 0, 0, 1, 1], [-1, 0, 0, 0, 1, 2]):
        tokens = [node % 3 for node in range(len(parents))]
        cases += _as_alone(target, (0, 1, 2, 0, 1, 0), TokenTree(tokens, parents))
    return cases


def dynatree_writes_greedy_text() -> list[bool]:
    """Each committed token is the one that greedy decoding writes there (section 3.6, Algorithm 1).

    A case is a random draft and target under one of three settings (depth, branch, threshold, budget): the first 24
    tokens, a step of Algorithm 1 after the other, are those of greedy decoding.
    """
    cases = []
    for (p, q), setting in product(gallery.worlds(12, 5), ((3, 2, 0.1, 128), (8, 3, 0.03, 128), (6, 3, 0.05, 12))):
        text = ()
        while len(text) < 24:
            T = growth.textbook.draft_tree(_behind(q, text), *setting)
            text += growth.textbook.select_commit(T, _greedy(_behind(p, text)))
        cases.append(text[:24] == exact.sample(p, (), 24, exact.Argmax(RandomCoins())))
    return cases


def dynatree_window_drops() -> list[bool]:
    """The row "StreamingLLM + speculative (cache=1024)" of Table 1 compares with cache compression (section 4.3).

    A case is a prompt's length, which is not printed: with the 500 new tokens the text outgrows the cache. All of up
    to 512 tokens fail: the window drops nothing, so the row is speculative decoding with a full cache.
    """
    window = Window(4, 1020)
    return [prompt + 500 > window.start + window.recent for prompt in (16, 32, 64, 128, 256, 512)]


# ---- EDD and PCT --------------------------------------------------------------------------------------------------


def edd_equation_3_hides_labels() -> list[bool]:
    """When the draft predicts t_i, the target's state h_i of that token is out of its view (Equation 3).

    A case is a token of the first four blocks, of length 2, 5 or 10. The first token of each later block fails:
    Equation 3 shows h_k with k ≤ j L, the last of which is the state at that token. The text says blocks 0 to j − 1,
    rightly.
    """
    return [i not in range(i // L * L + 1) for L in (2, 5, 10) for i in range(1, 4 * L)]


def edd_break_even() -> list[bool]:
    """A draft step makes the loop faster exactly where its path probability exceeds the price (Equation 5).

    A case is a step of a chain of up to ten with a given acceptance a token, at the paper's two prices or at a tenth.
    Those fail whose probability is above the price, but below the price times the speed so far, in tokens per target
    call: Equation 5 takes the speed to be one, while a loop that is already fast loses more in a draft step's time.
    No step below the price pays.
    """
    cases = []
    for a, price in product((0.5, 0.6, 0.7, 0.8, 0.9), (1.1 / 29.8, 1.4 / 50.1, 0.1)):
        speed = [sum(a**i for i in range(m + 1)) / (1 + m * price) for m in range(11)]
        cases += [(speed[j] > speed[j - 1]) == (a**j > price) for j in range(1, 11)]
    return cases


def edd_path_products_choose_better() -> list[bool]:
    """Path products choose nodes better than a token's own confidence does (Table 3, "w/o expected time gain").

    A case is a random calibrated draft and a bar for a token's own confidence, below which a node gets no children:
    PCT's tree with as many nodes is expected to have at least as many tokens accepted.
    """
    cases = []
    for seed, bar in product(range(10), (0.1, 0.3, 0.5, 0.7)):
        law = exact.random_model(6, seed)
        full = exact.toy_draft(law, growth.kary(3, 4))[0]
        own = full.scores / full.scores[full.tree.parents.clamp_min(0)]
        above = full.tree.ancestors.clone().fill_diagonal_(False)
        kept = full.scores[~(above & (own < bar)).any(1)]  # no node above them is below the bar
        least = float(full.scores.sort(descending=True).values[len(kept) - 1]) * (1 - CLOSE)
        pct = exact.toy_draft(law, growth.Pct(least, 3, 4, least))[0].scores
        cases.append(len(pct) == len(kept) and float(pct.sum() - kept.sum()) > -CLOSE)
    return cases
