"""How good a head is on held-out text: how often it agrees with the target by depth, and τ of greedy chains.

τ is the mean number of tokens that a decoding step adds, the bonus token included. No text is decoded for it. With
greedy decoding the target's text does not depend on the draft, so a head's predictions at every root and depth of the
recorded text say which chain would have been accepted at each root. The predictions are teacher-forced, see
``losses``. The target's states are those that ``features`` keeps, in bfloat16.
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

DEPTH = 5  # tokens of a drafted chain, and the greatest depth at which agreement is measured
RANKS = 5  # of a draft's likeliest tokens at a root, how many are followed in ``by_rank``
ANSWERED = ("own", "humaneval", "gsm100")  # the prompt sets of the held-out text
TUNING = "tuning"  # the name, in tables, of the set of prompts that calibrate heads
NEW_TOKENS = 128  # tokens of a held-out answer at most


def answer_greedily(
    pair: models.Pair, texts: Sequence[str], *, new_tokens: int = NEW_TOKENS, done: int = 0
) -> Iterator[writing.Dialogue]:
    """The target's greedy answers to texts, in the order of the texts. Each is yielded as soon as it is written.

    done: how many of the first texts have their answers already; they are left out.
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
    """The held-out prompts of ``table`` that ``names`` select (see ``prompts.chosen``), in the table's order.

    Raises ValueError if a name selects prompts that are not held-out ones, or if the selection does not contain both:
    prompts of the set "tuning" and others.
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
    """The prompts whose greedy answers heads are measured on, in a fixed order: columns set, task, id and text.

    The committed answers (``runs.held_out``) are in this order, so a prompt set that is added later is not among them.
    The first four of our own prompts of each domain form the set "tuning", which reports leave out.
    """
    sets = [prompts.load(name).assign(set=name) for name in ANSWERED]
    table = pd.concat(sets, ignore_index=True)
    first_of_domain = table.groupby("task").cumcount() < 4
    own = table["set"] == "own"
    table.loc[own & first_of_domain, "set"] = TUNING
    return table


@torch.no_grad()
def drafted(head: nn.Module, spec: Spec, frozen: Frozen, batch: losses.Batch, depth: int = DEPTH) -> Sequence[Tensor]:
    """For each depth d the states (B, n, width) from which the head drafts: row t has its draft of token t + 1.

    At depth d this draft is made from root t − d + 1. Below the root the head reads the text's own tokens, just as it
    does in decoding when its earlier drafts were right. The states are ready for the output rows. Medusa's depth ends
    with its last block.
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
    """EDD's states for ``drafted``, (depth, B, n, width). A block begins at a root; its row i is at depth i + 1.

    Blocks of ``depth`` rows are laid out in ``depth`` ways, so that every row is at every depth once. Example: with
    depth 2 the blocks are rows 0–1, 2–3, … in one pass and 1–2, 3–4, … in the other.
    """
    embedded = batch.embedded(frozen)
    rows = torch.arange(embedded.shape[1], device=embedded.device)
    prompt = None
    if spec.hidden_layer is not None:
        prompt = batch.hidden[spec.hidden_layer]
    out = embedded.new_zeros(depth, *embedded.shape)
    for offset in range(depth):
        row_in_block = (rows - offset) % depth  # (n,): 0 for a block's first row
        block = (rows - row_in_block).clamp_min(0)  # (n,): the first row of each row's block
        states = losses.edd_pass(head, frozen, embedded, prompt, block)
        out[row_in_block, :, rows] = states.transpose(0, 1)
    return out


@torch.no_grad()
def temperature(head: nn.Module, spec: Spec, frozen: Frozen, features: Features, dialogues: Sequence[int]) -> float:
    """The number that the head's logits are divided by to calibrate it (temperature scaling, Guo et al. 2017).

    It minimises the mean of −log q(x) over the text's tokens x at all depths together; q is the head's law, its
    probability distribution over the draft vocabulary. Tokens outside the draft vocabulary are left out. A calibrated
    head is right in 70 % of the cases in which its confidence is .7.
    """
    logits = []
    columns = []
    for i in dialogues:
        batch = loop.gather(features, [i], frozen.rows)
        next_tokens = batch.tokens.roll(-1, 1)
        known = batch.answers & torch.isin(next_tokens, frozen.ids)  # (1, n)
        column = torch.searchsorted(frozen.ids, next_tokens[known])
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
    """(depth, B, n) bool: [d − 1, :, t] is whether the head's likeliest token t + 1, at depth d, is the text's."""
    next_tokens = batch.tokens.roll(-1, 1)
    out = torch.zeros(depth, *next_tokens.shape, dtype=torch.bool, device=next_tokens.device)
    for level, states in enumerate(drafted(head, spec, frozen, batch, depth)):
        best = (states @ frozen.rows.T).argmax(-1)
        out[level] = frozen.ids[best] == next_tokens
    return out


def by_dialogue(head: nn.Module, spec: Spec, frozen: Frozen, features: Features) -> Iterator[tuple[int, Tensor]]:
    """The index of every dialogue with its matches (depth, answer length); column 0 is the answer's first token."""
    schedule = loop.Schedule(epochs=1, batch_tokens=4096)
    all_dialogues = list(range(len(features)))
    for dialogues in loop.batches(features, all_dialogues, schedule, None):
        batch = loop.gather(features, dialogues, frozen.rows)
        match = matches(head, spec, frozen, batch)
        for row, i in enumerate(dialogues):
            yield i, match[:, row, batch.answers[row]].cpu()


def steps_of(match: Tensor) -> list[int]:
    """The number of accepted tokens in each step when greedy chains are drafted along an answer.

    match: (depth, n) of one answer, see ``matches``. A step drafts ``depth`` positions, the first of which follows its
    root.

    Example: an answer of six tokens and chains of 2. First guesses are right at positions 0, 2, 4 and 5, second guesses
    at 1 and 5. The first step guesses positions 0 and 1, both right, and adds 2 as its bonus. The second is wrong at 3,
    where the target's own token is added. The third is right at 4, and 5 is its bonus. The result is [2, 0, 1].
    """
    n = match.shape[1]
    accepted = []
    begin = 0  # the first position that the step drafts
    while begin < n:
        guesses = match[:, begin : n - 1].diagonal()  # the answer's last token is always a bonus, never a draft
        until_wrong = guesses.int().cumprod(0)  # 1 up to the first wrong guess, then 0
        right = int(until_wrong.sum())
        accepted.append(right)
        begin += right + 1  # one for the bonus
    return accepted


def counts(
    name: str, head: nn.Module, spec: Spec, frozen: Frozen, features: Features, table: pd.DataFrame
) -> pd.DataFrame:
    """Counts on the answers, one row per prompt, from which ``summed`` makes agreement and τ.

    table: the prompts in the order of the dialogues, with columns set and id. The columns of the result:

    head, set, prompt    names
    tokens               tokens of the answer
    steps                decoding steps with greedy chains of 5 tokens
    hits1 … hits5        at depth d: tokens that the head drafts, given the text's own tokens between root and token
    seen1 … seen5        at depth d: tokens that have a root d positions before them
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
    """Agreement by depth and τ, bonus included: one row per head and prompt set, and one per head for all sets.

    table: of ``counts``, of one head or several. "all" leaves out the set "tuning". τ is the number of tokens divided
    by the number of steps, both over the prompt set.
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
    """Whether an EAGLE-type head is right after its own n-th choice: the data of SALF & TALF's figure 2b.

    There is one row per root and rank n. At m roots in each dialogue the head's n-th likeliest token is appended, be it
    likely for the target or not. Then the head's likeliest next token is compared with the target's. Columns:

    dialogue      its index
    rank          n, from 1 to RANKS
    hit           whether the two tokens are the same
    confidence    the head's probability of its likeliest token
    p_target      the head's probability of the target's token, 0 if that is not in the draft vocabulary
    """
    kept_dialogues, roots = choose_roots(data, dialogues, m, seed=0)
    tables = []
    for row, i in enumerate(tqdm(kept_dialogues, desc="by rank", disable=files.QUIET)):
        batch = loop.gather(data, [i], frozen.rows)
        table = _ranked(head, spec, frozen, model, batch, roots[row : row + 1])
        tables.append(table.assign(dialogue=i))
    columns = ["dialogue", "rank", "hit", "confidence", "p_target"]
    return pd.concat(tables, ignore_index=True)[columns]


def _ranked(
    head: nn.Module, spec: Spec, frozen: Frozen, model: PreTrainedModel, batch: losses.Batch, roots: Tensor
) -> pd.DataFrame:
    """The rows of ``by_rank`` for one dialogue, which is the batch, at its roots (1, m); all of rank 1 first."""
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
    states = score(model, batch.tokens[0].cpu(), roots[0].cpu(), tokens.cpu())  # (m, RANKS, width)
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
