"""How good a head is on held-out text: agreement by depth, and τ of greedy chains, by replay.

In greedy decoding the target's text does not depend on the draft. So teacher-forced predictions at every (root, depth)
of the recorded text say which chain would have been accepted anywhere, without decoding again. The target's states are
those that ``features`` keeps, in bf16.
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
        if after:
            prompt = pair.encode(text)
        else:  # no chat template
            prompt = [*before, *pair.tokenizer(text, add_special_tokens=False)["input_ids"]]
        question = prompt[len(before) : len(prompt) - len(after)]
        if [*before, *question, *after] != prompt:
            raise ValueError("the chat template's parts are other tokens on their own than around a question")
        answer = models.generate(pair, prompt, new_tokens)
        yield writing.Dialogue(tuple(question), tuple(answer), greedy=True)


def among(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Some of the held-out prompts, by ``prompts.chosen``, in the table's order.

    ValueError on a prompt that is none of them, or unless there are both: some of the set "tuning", and others.
    """
    ids = set()
    for name in names:
        ids.update(prompts.chosen(name))
    foreign = ids - set(table["id"])
    if foreign:
        raise ValueError(f"{min(foreign)} is none of the prompts that drafts are measured on: {', '.join(ANSWERED)}")
    chosen = table[table["id"].isin(ids)].reset_index(drop=True)
    tuning = chosen["set"] == TUNING
    if tuning.all() or not tuning.any():
        raise ValueError(
            "the first four own prompts of each domain calibrate a head, others measure it: choose some of both, "
            "for example own:6"
        )
    return chosen


def held_out_prompts() -> pd.DataFrame:
    """The prompts whose greedy answers drafts are measured on, in a fixed order: columns set, task, id, text.

    The committed answers (`runs.held_out`) stand in this order, so a prompt set added later does not join them. The
    first four own prompts of each domain are the set "tuning": reports leave them out.
    """
    sets = [prompts.load(name).assign(set=name) for name in ANSWERED]
    table = pd.concat(sets, ignore_index=True)
    first_of_domain = table.groupby("task").cumcount() < 4
    own = table["set"] == "own"
    table.loc[own & first_of_domain, "set"] = TUNING
    return table


@torch.no_grad()
def drafted(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Sequence[Tensor]:
    """For each depth d (B, n, width) states for the output rows: row t holds the draft's guess at token t + 1.

    At depth d the guess is made from root t − d + 1. The draft sees the text's own tokens below the root, as it does
    wherever its earlier guesses were right. Medusa's go no deeper than its heads.
    """
    embedded = batch.embedded(frozen)
    if spec.kind == "vdm":
        states = losses.vdm_pass(head, frozen, embedded)
        return [states] * depth
    if spec.kind == "medusa":
        states = head(batch.hidden[spec.hidden_layer])  # (B, n, heads, width); head d − 1 at row t − d
        depths = range(1, min(depth, spec.count) + 1)
        return [losses.shifted(states[:, :, d - 1], d) for d in depths]
    if spec.kind in ("eagle", "eagle3"):
        features = head.fuse([batch.hidden[layer] for layer in spec.layers])
        before_rows = frozen.before_rows(spec.kind)
        return [before_rows(states) for states in losses.eagle_pass(head, embedded, features, depth)]
    return _drafted_by_edd(head, spec, frozen, batch, depth)


def _drafted_by_edd(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int) -> Tensor:
    """(depth, B, n, width): see ``drafted``. A row's depth is its place in its block, which begins at the root.

    Blocks of ``depth`` rows are laid out in ``depth`` ways, so that every row stands at every depth once. Example: with
    depth 2 the blocks are rows 0–1, 2–3, … in one pass and 1–2, 3–4, … in the other.
    """
    embedded = batch.embedded(frozen)
    rows = torch.arange(embedded.shape[1], device=embedded.device)
    prompt = None
    if spec.hidden_layer is not None:
        prompt = batch.hidden[spec.hidden_layer]
    out = embedded.new_zeros(depth, *embedded.shape)
    for offset in range(depth):
        place = (rows - offset) % depth  # of each row in its block
        block = (rows - place).clamp_min(0)
        states = losses.edd_pass(head, frozen, embedded, prompt, block)
        out[place, :, rows] = states.transpose(0, 1)
    return out


@torch.no_grad()
def temperature(head: nn.Module, spec: Spec, frozen: Frozen, features: Features, dialogues: Sequence[int]) -> float:
    """What the logits are to be divided by so that confidence is true (temperature scaling, Guo et al. 2017).

    It makes the mean surprise at the text's tokens least, at all depths together. Tokens that the draft does not know
    are left out.
    """
    logits = []
    columns = []
    for i in dialogues:
        batch = loop.gather(features, [i], frozen.rows)
        following = batch.tokens.roll(-1, 1)
        known = batch.answers & torch.isin(following, frozen.ids)  # (1, n)
        column = torch.searchsorted(frozen.ids, following[known])
        for states in drafted(head, spec, frozen, batch):
            state_logits = states[known] @ frozen.rows.T
            logits.append(state_logits.double())  # in float32 the surprise is flat around its minimum
            columns.append(column)
    logits = torch.cat(logits)  # (guesses, V_d)
    columns = torch.cat(columns)  # (guesses,)

    def surprise(t: float) -> float:
        return float(F.cross_entropy(logits / t, columns))

    return float(minimize_scalar(surprise, bounds=(0.3, 3.0)).x)


@torch.no_grad()
def matches(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Tensor:
    """(depth, B, n) bool: [d − 1, :, t] says whether the draft names the text's token t + 1, see ``drafted``."""
    following = batch.tokens.roll(-1, 1)
    out = torch.zeros(depth, *following.shape, dtype=torch.bool, device=following.device)
    for level, states in enumerate(drafted(head, spec, frozen, batch, depth)):
        best = (states @ frozen.rows.T).argmax(-1)
        out[level] = frozen.ids[best] == following
    return out


def by_dialogue(head: nn.Module, spec: Spec, frozen: Frozen, features: Features) -> Iterator[tuple[int, Tensor]]:
    """(index, (depth, answer length) matches) of every dialogue; column 0 is the answer's first token."""
    schedule = loop.Schedule(epochs=1, batch_tokens=4096)
    every = list(range(len(features)))
    for dialogues in loop.batches(features, every, schedule, None):
        batch = loop.gather(features, dialogues, frozen.rows)
        match = matches(head, spec, frozen, batch)
        for row, i in enumerate(dialogues):
            yield i, match[:, row, batch.answers[row]].cpu()


def steps_of(match: Tensor) -> list[int]:
    """Accepted tokens of each step when greedy chains are drafted along a text; match: (depth, n) of one answer.

    A step whose root is text position s (−1 is the prompt's last token) drafts positions s + 1 to s + depth. Example:
    six tokens and chains of 2, whose first guesses are right at positions 0, 2, 4, 5 and whose second ones at 1, 5.
    The first step guesses 0 and 1, both right, and brings 2 as its bonus. The next is wrong at 3, which the target
    puts right. The last is right at 4, and 5 is its bonus. Accepted are 2, 0 and 1.
    """
    n = match.shape[1]
    accepted = []
    begin = 0  # the first position that the step drafts
    while begin < n:
        guesses = match[:, begin : n - 1].diagonal()  # the last token is the bonus, never a draft
        until_wrong = guesses.int().cumprod(0)
        right = int(until_wrong.sum())
        accepted.append(right)
        begin += right + 1
    return accepted


def counts(
    name: str, head: nn.Module, spec: Spec, frozen: Frozen, features: Features, table: pd.DataFrame
) -> pd.DataFrame:
    """One row per prompt, of its answer: tokens, steps of greedy chains of 5, and hits1 … hits5 of seen1 … seen5.

    At depth d, seen are the answer's tokens that have a root d places before them, hits those of them that the draft
    names, given the text's own tokens in between. table: the prompts, with columns set and id, one row a dialogue.
    """
    rows = {}
    for i, match in by_dialogue(head, spec, frozen, features):
        tokens = match.shape[1]
        row = {"tokens": tokens, "steps": len(steps_of(match))}
        for d in range(1, DEPTH + 1):
            row[f"hits{d}"] = int(match[d - 1, d - 1 :].sum())
        for d in range(1, DEPTH + 1):
            row[f"seen{d}"] = max(0, tokens - d + 1)
        rows[i] = row
    named = table[["set", "id"]].rename(columns={"id": "prompt"})
    named.insert(0, "head", name)
    return named.join(pd.DataFrame(rows).T)


def summed(table: pd.DataFrame) -> pd.DataFrame:
    """One row per head and prompt set, and one for all but "tuning": agreement by depth, and τ, bonus included.

    table: of ``counts``, of any heads. τ is tokens over steps of the whole set.
    """
    table = table.filter(regex="head|set|tokens|steps|hits|seen")
    reported = table[table["set"] != TUNING].assign(set="all")
    by_head = pd.concat([table, reported]).sort_values("head", kind="stable")
    sums = by_head.groupby(["head", "set"], sort=False).sum()
    columns = {"tau": sums["tokens"] / sums["steps"]}
    for d in range(1, DEPTH + 1):
        columns[f"depth{d}"] = sums[f"hits{d}"] / sums[f"seen{d}"]
    columns["tokens"] = sums["tokens"]
    return pd.DataFrame(columns).reset_index()


@torch.no_grad()
def by_rank(
    head: nn.Module,
    spec: Spec,
    frozen: Frozen,
    model: PreTrainedModel,
    data: Features,
    dialogues: Sequence[int],
    m: int = 8,
) -> pd.DataFrame:
    """SALF & TALF's figure 2b, one row per (root, rank): the draft goes on from its own rank-n token; is it right?

    At each root the draft's n-th likeliest token is taken, whatever the target thinks of it; then the draft's top
    token after that is compared with the target's argmax after the same token. Columns: dialogue; rank; hit;
    confidence, the draft's largest probability; p_target, its probability of the target's token (0 outside the draft's
    vocabulary). EAGLE-type heads only. m: roots in each dialogue.
    """
    kept, roots = choose_roots(data, dialogues, m, seed=0)
    tables = []
    for row, i in enumerate(tqdm(kept, desc="by rank", disable=files.QUIET)):
        batch = loop.gather(data, [i], frozen.rows)
        table = _ranked(head, spec, frozen, model, batch, roots[row : row + 1])
        tables.append(table.assign(dialogue=i))
    columns = ["dialogue", "rank", "hit", "confidence", "p_target"]
    return pd.concat(tables, ignore_index=True)[columns]


def _ranked(
    head: nn.Module, spec: Spec, frozen: Frozen, model: PreTrainedModel, batch: losses.Batch, roots: Tensor
) -> pd.DataFrame:
    """The rows of ``by_rank`` of one dialogue, the batch, at its roots (1, m): rank by rank, and root by root."""
    roots = roots.to(frozen.rows.device)
    features = batch.hidden[spec.hidden_layer]
    (text,) = losses.eagle_pass(head, batch.embedded(frozen), features, 1)
    logits = text[0, roots[0]] @ frozen.rows.T  # (m, V_d)
    tokens = frozen.ids[logits.topk(RANKS).indices]  # (m, RANKS)

    # The draft's law after each token: tree_pass takes trees of two levels, of which the second is not used.
    trees = Branches(
        dialogues=torch.zeros(1, dtype=torch.int64),
        roots=roots,
        tokens=torch.stack([tokens, tokens])[None],
        parents=torch.zeros_like(tokens)[None],
        soft=batch.soft[:, :0],
    )
    _, after, _ = losses.tree_pass(head, frozen, replace(batch, branches=trees))
    law = (after[0] @ frozen.rows.T).float().softmax(-1)  # (m, RANKS, V_d)
    confidence, best = law.max(-1)  # (m, RANKS)

    # The target's choice after each token
    (states,) = score(model, batch.tokens[0].cpu(), roots[0].cpu(), tokens.cpu())
    output = model.get_output_embeddings().weight
    target = (states @ output.T).argmax(-1)  # (m, RANKS)
    last_column = len(frozen.ids) - 1
    column = torch.searchsorted(frozen.ids, target).clamp_max(last_column)
    known = frozen.ids[column] == target
    p_target = law.gather(-1, column[..., None])[..., 0] * known

    columns = {
        "rank": torch.arange(1, RANKS + 1).expand_as(best),
        "hit": known & (best == column),
        "confidence": confidence,
        "p_target": p_target,
    }
    return pd.DataFrame({name: values.T.flatten().tolist() for name, values in columns.items()})
