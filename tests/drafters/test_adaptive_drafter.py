"""AdaptiveDrafter: the text stays, what it has learnt too, and a clock of its own decides the threshold."""

from tiny import llama, near_copy

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import AdaptiveDrafter, CausalLMDraft, TreeDrafter
from specnb.target import Target

RULE = growth.Salf(20, 4, 0.6, 8)


def test_what_it_has_learnt_goes_on_to_the_next_text():
    model = llama()
    drafter = AdaptiveDrafter(CausalLMDraft(near_copy(model)), RULE)
    plain = TreeDrafter(CausalLMDraft(model), growth.chain(1))
    text = decode(Target(model), plain, verifiers.greedy, [7, 30, 12], max_new_tokens=12).tokens
    seen = 0
    for _ in range(2):
        out = decode(Target(model), drafter, verifiers.greedy, [7, 30, 12], max_new_tokens=12)
        seen += len(out.steps)
        assert out.tokens == text
        assert len(drafter.past) == seen
