"""How good a head is on held-out text: agreement by depth, and τ of greedy chains, exactly, by replay.

Decoding greedily, the target's text does not depend on the draft. So teacher-forced predictions at every (root,
depth) of the recorded text say which chain would have been accepted anywhere, without decoding again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import models
from specnb.heads import Frozen, Spec
from specnb.models import files, prompts
from specnb.training import loop, losses, writing
from specnb.training.branches import choose_roots, score
from specnb.training.features import Branches, Features

DEPTH = 5
RANKS = 5
ANSWERED = ("own", "humaneval", "gsm100")


@torch.no_grad()
def answer_greedily(pair: models.Pair, texts: Sequence[str], *, new_tokens: int = 128) -> list[writing.Dialogue]:
    """The target's greedy answers to user turns, in the order of the texts."""
    (before, after), found = writing.template(pair.tokenizer), []
    for text in tqdm(texts, desc="held-out answers", disable=files.QUIET):
        prompt = pair.encode(text)
        ids = torch.tensor([prompt], device=pair.target.device)
        out = pair.target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens)
        question, answer = prompt[len(before) : len(prompt) - len(after)], out[0, len(prompt) :].tolist()
        found.append(writing.Dialogue(tuple(question), tuple(answer), True))
    return found


def held_out_prompts() -> pd.DataFrame:
    """The prompts whose greedy answers drafts are measured on, in a fixed order: columns set, task, id, text.

    The committed answers (`runs.held_out`) stand in this order, so a prompt set added later does not join them.
    """
    return pd.concat([prompts.load(name).assign(set=name) for name in ANSWERED], ignore_index=True)


@torch.no_grad()
def matches(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Tensor:
    """(depth, B, n) bool: [d − 1, :, t] says whether the draft names the text's token t + 1 from root t − d + 1.

    The draft sees the text's own tokens below the root, as it does wherever its earlier guesses were right.
    """
    embedded, n = batch.embedded(frozen), batch.tokens.shape[1]
    if spec.kind == "vdm":
        out = [losses.vdm_pass(head, frozen, embedded)] * depth
    elif spec.kind == "medusa":
        states = head(batch.hidden[spec.hidden_layer])  # (B, n, heads, width); head d − 1 at row t − d
        out = [losses.shifted(states[:, :, d - 1], d) for d in range(1, min(depth, spec.count) + 1)]
    elif spec.kind in ("eagle", "eagle3"):
        features = head.fuse([batch.hidden[layer] for layer in spec.layers])
        out = [frozen.before_rows(spec.kind)(states) for states in losses.eagle_pass(head, embedded, features, depth)]
    else:
        rows = torch.arange(n, device=embedded.device)
        prompt = None if spec.hidden_layer is None else batch.hidden[spec.hidden_layer]
        out = embedded.new_zeros(depth, *embedded.shape)
        for offset in range(depth):  # block starts ≡ offset: together every row stands at every depth once
            block = rows - (rows - offset) % depth
            states = losses.edd_pass(head, frozen, embedded, prompt, block.clamp_min(0))
            out[rows - block, :, rows] = states.transpose(0, 1)
    target = batch.tokens.roll(-1, 1)
    found = [frozen.ids[(states @ frozen.rows.T).argmax(-1)] == target for states in out]
    found += [torch.zeros_like(target, dtype=torch.bool)] * (depth - len(found))
    return torch.stack(found)


def by_dialogue(head: nn.Module, spec: Spec, frozen: Frozen, features: Features) -> Iterator[tuple[int, Tensor]]:
    """(index, (depth, answer length) matches) of every dialogue; column 0 is the answer's first token."""
    schedule = loop.Schedule(epochs=1, batch_tokens=4096)
    for rows in loop.batches(features, list(range(len(features))), schedule, None):
        batch = loop.gather(features, rows, frozen.rows)
        found = matches(head, spec, frozen, batch)
        for row, i in enumerate(rows):
            yield i, found[:, row, batch.answers[row]].cpu()


def steps_of(match: Tensor) -> list[int]:
    """Accepted tokens of each step when greedy chains are drafted along a text; match: (depth, n) of one answer.

    A step whose root is text position s (−1 is the prompt's last token) drafts positions s + 1 to s + depth.
    """
    n, accepted, at = match.shape[1], [], 0
    while at < n:
        right = match[:, at : n - 1].diagonal()  # the last token is the bonus, never a draft
        accepted.append(int(right.int().cumprod(0).sum()))
        at += accepted[-1] + 1
    return accepted


def measure(
    name: str, head: nn.Module, spec: Spec, frozen: Frozen, features: Features, sets: Sequence[str]
) -> pd.DataFrame:
    """One row per prompt set and one for all: agreement at depths 1 to 5, τ of greedy chains of 5 (bonus included).

    sets: the set each dialogue belongs to. Agreement at depth d is over all answer tokens with a root d places
    before them, given the text's own tokens in between; τ is tokens over steps of the whole set.
    """
    rows = []
    for i, match in by_dialogue(head, spec, frozen, features):
        hits = {f"hits{d}": int(match[d - 1, d - 1 :].sum()) for d in range(1, DEPTH + 1)}
        seen = {f"seen{d}": max(0, match.shape[1] - d + 1) for d in range(1, DEPTH + 1)}
        rows.append({"set": sets[i], "tokens": match.shape[1], "steps": len(steps_of(match)), **hits, **seen})
    counts = pd.DataFrame(rows)
    sums = pd.concat([counts.groupby("set").sum(), counts.drop(columns="set").sum().to_frame("all").T])
    agreement = {f"depth{d}": sums[f"hits{d}"] / sums[f"seen{d}"] for d in range(1, DEPTH + 1)}
    table = pd.DataFrame({"tau": sums["tokens"] / sums["steps"], **agreement, "tokens": sums["tokens"]})
    return table.rename_axis("set").reset_index().assign(head=name)[["head", "set", *table.columns]]


@torch.no_grad()
def by_rank(
    head: nn.Module, spec: Spec, frozen: Frozen, model: PreTrainedModel, data: Features, *, roots: int, every: int = 1
) -> pd.DataFrame:
    """SALF & TALF's figure 2b, one row per (root, rank): the draft goes on from its own rank-n token; is it right?

    At each root the draft's n-th likeliest token is taken, whatever the target thinks of it; then the draft's top
    token after that is compared with the target's argmax after the same token. Columns: rank; hit; confidence, the
    draft's largest probability; p_target, its probability of the target's token (0 outside the draft's vocabulary).
    EAGLE-type heads only; every: take one in so many dialogues.
    """
    kept, chosen = choose_roots(data, range(0, len(data), every), roots, seed=0)
    output, rows = model.get_output_embeddings().weight, []
    for row, i in enumerate(tqdm(kept, desc="by rank", disable=files.QUIET)):
        batch = loop.gather(data, [i], frozen.rows)
        at = chosen[row : row + 1].to(frozen.rows.device)
        (text,) = losses.eagle_pass(head, batch.embedded(frozen), batch.hidden[spec.hidden_layer], 1)
        tokens = frozen.ids[(text[0, at[0]] @ frozen.rows.T).topk(RANKS).indices]  # (roots, RANKS)
        unused = torch.zeros_like(tokens)[None]
        trees = Branches(torch.tensor([i]), at, torch.stack([tokens, tokens])[None], unused, batch.soft[:, :0])
        _, after, _ = losses.tree_pass(head, frozen, replace(batch, branches=trees))
        law = (after[0] @ frozen.rows.T).float().softmax(-1)  # (roots, RANKS, V_d)
        (states,) = score(model, batch.tokens[0].cpu(), at[0].cpu(), tokens.cpu())
        target = (states @ output.T).argmax(-1)  # (roots, RANKS)
        column = torch.searchsorted(frozen.ids, target).clamp_max(len(frozen.ids) - 1)
        known = frozen.ids[column] == target
        confidence, best = law.max(-1)
        p_target = law.gather(-1, column[..., None])[..., 0] * known
        rank = torch.arange(1, RANKS + 1).expand_as(best)
        parts = (rank, known & (best == column), confidence, p_target)
        rows += zip(*(x.T.flatten().tolist() for x in parts), strict=True)
    return pd.DataFrame(rows, columns=["rank", "hit", "confidence", "p_target"])
