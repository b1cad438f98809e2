"""How good a head is on held-out text: agreement by depth, and τ of greedy chains, by replay (states are bf16).

Decoding greedily, the target's text does not depend on the draft. So teacher-forced predictions at every (root,
depth) of the recorded text say which chain would have been accepted anywhere, without decoding again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import models
from specnb.heads import Frozen, Spec
from specnb.models import files, prompts
from training import loop, losses, writing
from training.branches import choose_roots, score
from training.features import Branches, Features

DEPTH = 5
RANKS = 5
ANSWERED = ("own", "humaneval", "gsm100")
TUNING = "tuning"
NEW_TOKENS = 128  # of a held-out answer at most


def answer_greedily(
    pair: models.Pair, texts: Sequence[str], *, new_tokens: int = NEW_TOKENS, done: int = 0
) -> Iterator[writing.Dialogue]:
    """The target's greedy answers to user turns, in the order of the texts, each as it is written.

    done: how many of the texts are answered already, and left out.
    """
    before, after = writing.template(pair.tokenizer)
    bar = {"desc": "held-out answers", "total": len(texts), "initial": done, "disable": files.QUIET}
    for text in tqdm(texts[done:], **bar):
        prompt = pair.encode(text) if after else [*before, *pair.tokenizer(text, add_special_tokens=False)["input_ids"]]
        question = prompt[len(before) : len(prompt) - len(after)]
        if [*before, *question, *after] != prompt:
            raise ValueError("the chat template's parts are other tokens on their own than around a question")
        yield writing.Dialogue(tuple(question), tuple(models.generate(pair, prompt, new_tokens)), True)


def among(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Some of the held-out prompts, by ``prompts.chosen``, in the table's order.

    ValueError on a prompt that is none of them, or unless there are both: some of the set "tuning", and others.
    """
    ids = {prompt for name in names for prompt in prompts.chosen(name)}
    foreign = ids - set(table["id"])
    if foreign:
        raise ValueError(f"{min(foreign)} is none of the prompts that drafts are measured on: {', '.join(ANSWERED)}")
    found = table[table["id"].isin(ids)].reset_index(drop=True)
    tuning = found["set"] == TUNING
    if tuning.all() or not tuning.any():
        raise ValueError(
            "the first four own prompts of each domain calibrate a head, others measure it: choose some of both, "
            "for example own:6"
        )
    return found


def held_out_prompts() -> pd.DataFrame:
    """The prompts whose greedy answers drafts are measured on, in a fixed order: columns set, task, id, text.

    The committed answers (`runs.held_out`) stand in this order, so a prompt set added later does not join them. The
    first four own prompts of each domain are the set "tuning": reports leave them out.
    """
    table = pd.concat([prompts.load(name).assign(set=name) for name in ANSWERED], ignore_index=True)
    table.loc[(table["set"] == "own") & (table.groupby("task").cumcount() < 4), "set"] = TUNING
    return table


@torch.no_grad()
def drafted(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Sequence[Tensor]:
    """Per depth d (B, n, width) states for the output rows: the draft's guess at the text's token t + 1 from root
    t − d + 1, at row t. Medusa's go no deeper than its heads.

    The draft sees the text's own tokens below the root, as it does wherever its earlier guesses were right.
    """
    embedded, n = batch.embedded(frozen), batch.tokens.shape[1]
    if spec.kind == "vdm":
        return [losses.vdm_pass(head, frozen, embedded)] * depth
    if spec.kind == "medusa":
        states = head(batch.hidden[spec.hidden_layer])  # (B, n, heads, width); head d − 1 at row t − d
        return [losses.shifted(states[:, :, d - 1], d) for d in range(1, min(depth, spec.count) + 1)]
    if spec.kind in ("eagle", "eagle3"):
        features = head.fuse([batch.hidden[layer] for layer in spec.layers])
        return [frozen.before_rows(spec.kind)(states) for states in losses.eagle_pass(head, embedded, features, depth)]
    rows = torch.arange(n, device=embedded.device)
    prompt = None if spec.hidden_layer is None else batch.hidden[spec.hidden_layer]
    out = embedded.new_zeros(depth, *embedded.shape)
    for offset in range(depth):  # block starts ≡ offset: together every row stands at every depth once
        block = rows - (rows - offset) % depth
        states = losses.edd_pass(head, frozen, embedded, prompt, block.clamp_min(0))
        out[rows - block, :, rows] = states.transpose(0, 1)
    return out


@torch.no_grad()
def temperature(head: nn.Module, spec: Spec, frozen: Frozen, features: Features, dialogues: Sequence[int]) -> float:
    """What the logits are to be divided by so that confidence is true: the least surprise at the text's tokens, at all
    depths together (temperature scaling, Guo et al. 2017). Tokens that the draft does not know are left out."""
    logits, columns = [], []
    for i in dialogues:
        batch = loop.gather(features, [i], frozen.rows)
        following = batch.tokens.roll(-1, 1)
        at = batch.answers & torch.isin(following, frozen.ids)
        column = torch.searchsorted(frozen.ids, following[at])
        for states in drafted(head, spec, frozen, batch):
            logits.append((states[at] @ frozen.rows.T).double())  # in float32 its minimum is flat
            columns.append(column)
    logits, columns = torch.cat(logits), torch.cat(columns)
    return float(minimize_scalar(lambda t: float(F.cross_entropy(logits / t, columns)), bounds=(0.3, 3.0)).x)


@torch.no_grad()
def matches(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Tensor:
    """(depth, B, n) bool: [d − 1, :, t] says whether the draft names the text's token t + 1, see ``drafted``."""
    target = batch.tokens.roll(-1, 1)
    states = drafted(head, spec, frozen, batch, depth)
    found = [frozen.ids[(state @ frozen.rows.T).argmax(-1)] == target for state in states]
    return torch.stack([*found, *[torch.zeros_like(target, dtype=torch.bool)] * (depth - len(found))])


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


def counts(
    name: str, head: nn.Module, spec: Spec, frozen: Frozen, features: Features, prompts: pd.DataFrame
) -> pd.DataFrame:
    """One row per prompt, of its answer: tokens, steps of greedy chains of 5, and hits1 … hits5 of seen1 … seen5.

    seen: answer tokens with a root d places before them, hits: those that are named given the text's own tokens in
    between. prompts: columns set and id, one row a dialogue.
    """
    rows = {}
    for i, match in by_dialogue(head, spec, frozen, features):
        hits = {f"hits{d}": int(match[d - 1, d - 1 :].sum()) for d in range(1, DEPTH + 1)}
        seen = {f"seen{d}": max(0, match.shape[1] - d + 1) for d in range(1, DEPTH + 1)}
        rows[i] = {"tokens": match.shape[1], "steps": len(steps_of(match)), **hits, **seen}
    named = prompts[["set", "id"]].rename(columns={"id": "prompt"}).assign(head=name)[["head", "set", "prompt"]]
    return named.join(pd.DataFrame(rows).T)


def summed(table: pd.DataFrame) -> pd.DataFrame:
    """One row per head and prompt set, and one for all but "tuning": agreement by depth, and τ, bonus included.

    table: of ``counts``, of any heads. τ is tokens over steps of the whole set.
    """
    table = table.filter(regex="head|set|tokens|steps|hits|seen")
    reported = table[table["set"] != TUNING].assign(set="all")
    sums = pd.concat([table, reported]).sort_values("head", kind="stable").groupby(["head", "set"], sort=False).sum()
    agreement = {f"depth{d}": sums[f"hits{d}"] / sums[f"seen{d}"] for d in range(1, DEPTH + 1)}
    return pd.DataFrame({"tau": sums["tokens"] / sums["steps"], **agreement, "tokens": sums["tokens"]}).reset_index()


@torch.no_grad()
def by_rank(
    head: nn.Module, spec: Spec, frozen: Frozen, model: PreTrainedModel, data: Features, some: Sequence[int], m: int = 8
) -> pd.DataFrame:
    """SALF & TALF's figure 2b, one row per (root, rank): the draft goes on from its own rank-n token; is it right?

    At each root the draft's n-th likeliest token is taken, whatever the target thinks of it; then the draft's top
    token after that is compared with the target's argmax after the same token. Columns: dialogue; rank; hit;
    confidence, the draft's largest probability; p_target, its probability of the target's token (0 outside the draft's
    vocabulary). EAGLE-type heads only. some: dialogues; m: roots in each.
    """
    kept, chosen = choose_roots(data, some, m, seed=0)
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
        parts = (torch.full_like(best, i), rank, known & (best == column), confidence, p_target)
        rows += zip(*(x.T.flatten().tolist() for x in parts), strict=True)
    return pd.DataFrame(rows, columns=["dialogue", "rank", "hit", "confidence", "p_target"])
