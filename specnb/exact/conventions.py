"""How samplers in use are called: one ``Convention`` each, a few lines from p, q and a draft to the arguments.

A convention says what it hands over and reads what comes back; the sampler itself is not touched. One of your own is
``Convention("mine", lambda sampler: chain_step(lambda p, q, drafted: …), "what it takes")``.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch

from specnb import growth
from specnb.exact.enumeration import committed, toy_drafter, verify_once
from specnb.exact.judgement import Convention, Step, World, chain_step
from specnb.exact.random_functions import randomness
from specnb.sampling import Coins
from specnb.tree import Drawn

PLACEHOLDER = -1  # what vLLM puts where nothing was committed


def _plain(sampler: Callable) -> Step:
    return chain_step(sampler)


def _transformers(sampler: Callable) -> Step:
    def verify(p, q, drafted):
        candidates = torch.tensor([[0, *drafted]])  # a text of one token, and the draft behind it
        tokens, _ = sampler(candidates, q.log()[None], len(drafted), p.log()[None])
        return tokens[0].tolist()

    return chain_step(verify)


def _vllm(sampler: Callable) -> Step:
    def verify(p, q, drafted):
        gamma = len(drafted)
        bonus = torch.multinomial(p[-1], 1)[None]  # (1, 1), drawn outside of the sampler
        metadata = SimpleNamespace(
            all_greedy=False, all_random=True, temperature=torch.ones(1), generators={}, top_k=None, top_p=None
        )
        output = sampler(
            torch.tensor(drafted),
            [gamma],
            gamma,
            torch.tensor([gamma]),
            q.contiguous(),
            p[:-1].contiguous(),
            bonus,
            metadata,
        )
        return [token for token in output[0].tolist() if token != PLACEHOLDER]

    return chain_step(verify)


def _sglang(sampler: Callable) -> Step:
    def verify(p, q, drafted):
        nodes = len(drafted) + 1
        predicts = torch.full((nodes,), -1, dtype=torch.int32)
        accept_index = torch.full((1, nodes), -1, dtype=torch.int32)
        accept_token_num = torch.zeros(1, dtype=torch.int32)
        following = torch.tensor([[*range(1, nodes), -1]])  # the tree is a chain
        nobody = torch.full((1, nodes), -1)
        draft_probs = torch.cat([q, torch.zeros_like(p[-1:])])
        sampler(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            candidates=torch.tensor([[0, *drafted]]),
            retrive_index=torch.arange(nodes)[None],
            retrive_next_token=following,
            retrive_next_sibling=nobody,
            uniform_samples=torch.rand((1, nodes), dtype=torch.float64),
            uniform_samples_for_final_sampling=torch.rand((1,), dtype=torch.float64),
            target_probs=p[None],
            draft_probs=draft_probs[None],
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
        places = accept_index[0][accept_index[0] >= 0].long()
        return predicts[places].tolist()

    return chain_step(verify)


def _posterior(sampler: Callable) -> Step:
    """Trees of the likeliest tokens, which are chosen and not drawn: q says nothing about them."""

    def step(world: World, length: int, coins: Coins) -> tuple[int, ...]:
        width = 2
        likeliest = world.q(()).topk(width).indices.tolist()
        candidates = torch.tensor([[0, token] for token in likeliest])  # (leaves, 1 + depth)
        after_nothing = world.p(()).expand(width, -1)
        after_token = torch.stack([world.p((token,)) for token in likeliest])
        logits = torch.stack([after_nothing, after_token], dim=1).log()  # (leaves, 1 + depth, V)
        with randomness(coins):
            best, accepted, sample_p = sampler(logits, candidates, lambda _, scores: scores)
            accepted = int(accepted)
            following = int(torch.multinomial(sample_p, 1))
        path = candidates[int(best), 1 : 1 + accepted].tolist()
        return (*path, following)

    return step


def _verifier(sampler: Callable) -> Step:
    """A chain that was drawn, as this project's verifiers take it."""

    def step(world: World, length: int, coins: Coins) -> tuple[int, ...]:
        drafter = toy_drafter(world.q, growth.chain(length), Drawn.IID)
        draft, verdict = verify_once(drafter, sampler, world.p, coins, depth=length)
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
SGLANG = Convention(
    "sglang",
    _sglang,
    "sampler(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, "
    "retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, …), which "
    "writes into the first three, as SGLang's tree_speculative_sampling_target_only; on chains that were drawn from q",
)
POSTERIOR = Convention(
    "posterior",
    _posterior,
    "sampler(logits (leaves, 1 + depth, V), candidates (leaves, 1 + depth), logits_processor) → (best candidate, "
    "accepted tokens, law of the next token), as EAGLE-2's evaluate_posterior; the tree holds q's two likeliest tokens",
    lengths=(1,),
)
VERIFIER = Convention("verifier", _verifier, "sampler(draft, p (n, V), coins) → Verdict, as in specnb.verifiers")

CONVENTIONS = {one.name: one for one in (PLAIN, TRANSFORMERS, VLLM, SGLANG, POSTERIOR, VERIFIER)}
