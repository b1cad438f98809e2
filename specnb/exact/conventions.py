"""How samplers and drafters in use are called: one convention each, a few lines from p, q and a draft to arguments.

A convention says what it hands over and reads what comes back; the sampler itself is not touched. One of your own is
``Convention("mine", lambda sampler: chain_step(lambda p, q, drafted: …), "what it takes")``.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import torch

from specnb.exact.drafting import DraftConvention, DraftStep, Drawing
from specnb.exact.judgement import Convention, Step, chain_step, tree_step
from specnb.exact.laws import Model, committed, rows
from specnb.exact.random_functions import randomness
from specnb.exact.scripts import drafting
from specnb.exact.toy_worlds import CHAINS, TREES, World, draft_tree
from specnb.growth import Static
from specnb.sampling import Coins, Warp
from specnb.tree import Draft, Drawn, TokenTree

PLACEHOLDER = -1  # what vLLM puts where nothing was committed
PADDING = -1  # what EAGLE puts behind a path that is shorter than the longest


def _plain(sampler: Callable) -> Step:
    return chain_step(sampler)


def _transformers(sampler: Callable) -> Step:
    def verify(p, q, drafted):
        candidates = torch.tensor([[0, *drafted]])  # a text of one token, and the draft behind it
        tokens, _ = sampler(candidates, q.log()[None], len(drafted), p.log()[None])
        return tokens[0].tolist()

    return chain_step(verify)


def _tree(drawn: Drawn, sampler: Callable) -> Step:
    return tree_step(lambda p, q, tree: sampler(p, q, tree.token_list, tree.parent_list), drawn)


def _vllm(sampler: Callable) -> Step:
    def verify(p, q, drafted):
        return _call_vllm(sampler, p, drafted, q.contiguous())

    return chain_step(verify)


def _vllm_ngram(sampler: Callable) -> Step:
    """The draft was not drawn from a law, but looked up: here it is q's likeliest tokens."""

    def verify(p, _, tree):
        return _call_vllm(sampler, p, tree.token_list[1:], None)

    return tree_step(verify, Drawn.POINT)


def _call_vllm(sampler: Callable, p, drafted: list[int], draft_probs) -> list[int]:
    gamma = len(drafted)
    bonus = torch.multinomial(p[-1], 1)[None]  # (1, 1), drawn outside of the sampler
    output = sampler(
        torch.tensor(drafted),
        [gamma],
        gamma,
        torch.tensor([gamma]),
        draft_probs,
        p[:-1].contiguous(),
        bonus,
        _vllm_metadata(1),
    )
    return [token for token in output[0].tolist() if token != PLACEHOLDER]


def _vllm_metadata(requests: int) -> SimpleNamespace:
    return SimpleNamespace(
        all_greedy=False, all_random=True, temperature=torch.ones(requests), generators={}, top_k=None, top_p=None
    )


def _vllm_batch(sampler: Callable) -> Step:
    """The request that is judged stands behind another one, with a draft of one token, of which nothing is read."""

    def verify(p, q, drafted):
        gamma = len(drafted)
        other = int(q[0].argmax())
        bonus = torch.cat([torch.zeros(1, dtype=torch.int64), torch.multinomial(p[-1], 1)])
        output = sampler(
            torch.tensor([other, *drafted]),
            [1, gamma],
            gamma,
            torch.tensor([1, 1 + gamma]),
            torch.cat([q[:1], q]),
            torch.cat([p[:1], p[:-1]]),
            bonus[:, None],
            _vllm_metadata(2),
        )
        return [token for token in output[1].tolist() if token != PLACEHOLDER]

    return chain_step(verify)


def _sglang(sampler: Callable) -> Step:
    """SGLang's trees hold chosen tokens, and it hands its sampler zeros in place of q."""

    def verify(p, _, tree):
        nodes = len(tree)
        predicts = torch.full((nodes,), -1, dtype=torch.int32)
        accept_index = torch.full((1, nodes), -1, dtype=torch.int32)
        accept_token_num = torch.zeros(1, dtype=torch.int32)
        first_child, next_sibling = _links(tree)
        sampler(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            candidates=tree.tokens[None],
            retrive_index=torch.arange(nodes)[None],
            retrive_next_token=first_child[None],
            retrive_next_sibling=next_sibling[None],
            uniform_samples=torch.rand((1, nodes), dtype=torch.float64),
            uniform_samples_for_final_sampling=torch.rand((1,), dtype=torch.float64),
            target_probs=p[None].clone(),
            draft_probs=torch.zeros_like(p)[None],
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
        places = accept_index[0][accept_index[0] >= 0].long()
        return predicts[places].tolist()

    return tree_step(verify, Drawn.POINT)


def _links(tree: TokenTree) -> tuple[torch.Tensor, torch.Tensor]:
    """(n,) each: a node's first child, and its next sibling; −1 for none."""
    first_child = torch.full((len(tree),), -1)
    next_sibling = torch.full((len(tree),), -1)
    for node, children in enumerate(tree.children):
        if children:
            first_child[node] = children[0]
        for elder, younger in pairwise(children):
            next_sibling[elder] = younger
    return first_child, next_sibling


def _posterior(sampler: Callable) -> Step:
    """Trees of the likeliest tokens, which are chosen and not drawn: q says nothing about them."""

    def verify(p, _, tree):
        paths = [tree.path(leaf) for leaf in tree.leaves]  # of nodes, without the root
        longest = max(len(path) for path in paths)
        candidates = torch.full((len(paths), 1 + longest), PADDING)
        candidates[:, 0] = tree.tokens[0]
        logits = p[-1].log().expand(len(paths), 1 + longest, -1).clone()  # (leaves, 1 + depth, V)
        for leaf, path in enumerate(paths):
            nodes = [0, *path]
            candidates[leaf, : len(nodes)] = tree.tokens[nodes]
            logits[leaf, : len(nodes)] = p[nodes].log()
        best, accepted, sample_p = sampler(logits, candidates, lambda _, scores: scores)
        path = candidates[int(best), 1 : 1 + int(accepted)].tolist()
        following = int(torch.multinomial(sample_p, 1))
        return [*path, following]

    return tree_step(verify, Drawn.POINT)


def _verifier(drawn: Drawn, sampler: Callable) -> Step:
    """This project's verifiers take their coins as an argument."""

    def step(world: World, shape: Static, coins: Coins) -> tuple[int, ...]:
        with drafting(coins):
            tree = draft_tree(world.q, shape, drawn, coins)
        q = None if drawn is Drawn.POINT else rows(world.q, tree)
        draft = Draft(tree, q, drawn)
        p = rows(world.p, tree)
        with randomness(coins):  # a verifier takes its coins as an argument; whatever else it draws is seen
            verdict = sampler(draft, p, coins)
        return committed(draft, verdict)

    return step


PLAIN = Convention(
    "plain", _plain, "sampler(p, q, drafted) → tokens; p (γ + 1, V) and q (γ, V) probabilities, drafted a list"
)
TRANSFORMERS = Convention(
    "transformers",
    _transformers,
    "sampler(candidate_input_ids (1, 1 + γ), candidate_logits (1, γ, V), candidate_length, new_logits (1, γ + 1, V)) "
    "→ (valid tokens (1, n), n), as transformers' _speculative_sampling",
)
VLLM = Convention(
    "vllm",
    _vllm,
    "sampler(draft_token_ids (γ,), num_draft_tokens [γ], max_spec_len, cu_num_draft_tokens (1,), draft_probs (γ, V), "
    "target_probs (γ, V), bonus_token_ids (1, 1), sampling_metadata) → (1, γ + 1) with −1 for nothing, as vLLM's "
    "rejection_sample; the bonus token is drawn before, from p",
)
VLLM_NGRAM = Convention(
    "vllm-ngram",
    _vllm_ngram,
    "the same with draft_probs None: the draft was looked up, here it is q's likeliest tokens",
)
VLLM_BATCH = Convention(
    "vllm-batch",
    _vllm_batch,
    "the same with two requests, whose drafts stand one behind the other; the second one is judged",
)
SGLANG = Convention(
    "sglang",
    _sglang,
    "sampler(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, "
    "retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, …), which "
    "writes into the first three, as SGLang's tree_speculative_sampling_target_only; trees of q's likeliest tokens, "
    "and draft_probs are zeros, as SGLang hands them over",
    TREES,
)
POSTERIOR = Convention(
    "posterior",
    _posterior,
    "sampler(logits (leaves, 1 + depth, V), candidates (leaves, 1 + depth), logits_processor) → (best candidate, "
    "accepted tokens, law of the next token), as EAGLE-2's evaluate_posterior; trees of q's likeliest tokens, paths "
    "that are shorter than others end in −1",
    TREES,
)
_OF_TREES = (
    "sampler(p (n, V), q (n, V), tokens, parents) → tokens; a row of p and q for each node, tokens and parents are "
    "lists, node 0 is the last token of the text and has the parent −1; siblings are "
)
TREE = Convention("tree", partial(_tree, Drawn.IID), _OF_TREES + "drawn independently from q", TREES)
TREE_SWOR = Convention("tree-swor", partial(_tree, Drawn.SWOR), _OF_TREES + "drawn from q without replacement", TREES)
TREE_TOP_K = Convention("tree-top-k", partial(_tree, Drawn.POINT), _OF_TREES + "q's likeliest tokens", TREES)
_OF_VERIFIERS = "sampler(draft, p (n, V), coins) → Verdict, as in specnb.verifiers; siblings are "
VERIFIER = Convention("verifier", partial(_verifier, Drawn.IID), _OF_VERIFIERS + "drawn independently from q")
VERIFIER_SWOR = Convention(
    "verifier-swor", partial(_verifier, Drawn.SWOR), _OF_VERIFIERS + "drawn from q without replacement", TREES
)
VERIFIER_TOP_K = Convention(
    "verifier-top-k", partial(_verifier, Drawn.POINT), _OF_VERIFIERS + "q's likeliest tokens", TREES
)

_ALL = (
    PLAIN, TREE, TREE_SWOR, TREE_TOP_K, TRANSFORMERS, VLLM, VLLM_NGRAM, VLLM_BATCH, SGLANG, POSTERIOR, VERIFIER,
    VERIFIER_SWOR, VERIFIER_TOP_K,
)  # fmt: skip
CONVENTIONS = {one.name: one for one in _ALL}


# --- drafters: do they draw from the q that they report?


def _draft_chain(drafter: Callable) -> DraftStep:
    def step(q: Model, shape: Static, coins: Coins) -> tuple[Drawing, ...]:
        count = len(shape.paths)
        with randomness(coins):
            tokens, laws = drafter(lambda text: q(text).clone(), count)
            tokens = [int(token) for token in tokens]
        laws = [torch.as_tensor(law) for law in laws]
        if len(tokens) != count or len(laws) != count:
            raise ValueError(f"the drafter was asked for {count} tokens, it gave {len(tokens)} and {len(laws)} laws")
        return tuple(Drawing.of(token, law) for token, law in zip(tokens, laws, strict=True))

    return step


def _draft_tree(make: Callable) -> DraftStep:
    """This project's drafters propose a draft; a node's law is its parent's q, with elder siblings struck for SWOR."""

    def step(q: Model, shape: Static, coins: Coins) -> tuple[Drawing, ...]:
        with randomness(coins):
            drafter = make(q, shape)
            drafter.begin((0,), Warp(), {})
            draft = drafter.propose(coins, len(shape.paths))
        drawings = []
        for parent, children in enumerate(draft.tree.children):
            struck = []  # elder siblings that cannot be drawn again
            for child in children:
                token = draft.tree.token_list[child]
                drawings.append(Drawing.of(token, _reported(draft, parent, token, struck)))
                if draft.drawn is Drawn.SWOR:
                    struck.append(token)
        return tuple(drawings)

    return step


def _reported(draft: Draft, parent: int, token: int, struck: list[int]) -> torch.Tensor:
    """(V,) what a draft says about the law of a node."""
    if draft.q is None:  # chosen
        law = torch.zeros(token + 1)
        law[token] = 1
        return law
    if not struck:
        return draft.q[parent]
    law = draft.q[parent].clone()
    law[struck] = 0
    return law / law.sum()


DRAFT = DraftConvention(
    "draft",
    _draft_chain,
    "drafter(q, count) → (tokens, laws (count, V)); q is a function from a tuple of tokens to the draft model's law "
    "behind them, (V,); the laws are those that the drafter says its tokens were drawn from",
    CHAINS,
)
DRAFTER = DraftConvention(
    "drafter", _draft_tree, "make(q, shape) → a drafter with begin and propose, as in specnb.drafters", TREES
)
DRAFT_CONVENTIONS = {one.name: one for one in (DRAFT, DRAFTER)}
