"""The training loop: AdamW, warm-up and cosine, gradient clipping, validation, checkpoints that resume bit for bit."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from specnb.heads import Frozen
from specnb.models import files
from training import hints
from training.features import Features, Pieces
from training.losses import Batch, Loss


@dataclass(frozen=True)
class Schedule:
    """How long, in what steps and how fast a head is trained.

    The peak of the learning rate is higher than in the papers (EAGLE 3e-5, EDD 1e-4, TALF 3e-4), because there is less
    text; ``recipes`` says which heads share their terms. Batches are small for the same reason: half an epoch of EAGLE
    ends .10 lower in validation loss with batches of 512 than with 2,048 at lr 1e-3, and takes an eighth longer on two
    cores.
    """

    epochs: int  # at most, over the training dialogues
    lr: float = 5e-4  # the peak of the learning rate, which warm-up reaches
    batch_tokens: int = 512  # of a step, padding included
    warmup: int = 200  # steps
    patience: int = 2  # epochs without a lower validation loss, after which training stops early
    checkpoint_every: int = 1000  # steps
    seed: int = 0
    decay: float = 0.01  # AdamW's weight decay
    clip: float = 1.0  # the largest norm of a step's gradient


def batches(features: Features, rows: list[int], schedule: Schedule, epoch: int | None) -> Iterator[list[int]]:
    """Dialogues in batches of about equal length, up to batch_tokens padded tokens; shuffled unless epoch is None.

    A batch begins with its longest dialogue, to which the others are padded. Example: dialogues 0 to 3 of 5, 3, 4 and
    9 tokens, and 10 tokens a batch. Alone stands 3, then 0 and 2 as 2 · 5 tokens, then 1.
    """
    lengths = features.start.diff().tolist()
    rank = {row: row for row in rows}  # among dialogues of one length
    if epoch is not None:
        rng = np.random.default_rng([schedule.seed, epoch + 1])
        rank = {row: rng.random() for row in rows}

    by_length = sorted(rows, key=lambda row: (lengths[row], rank[row]))
    batched = []
    batch = []
    for row in reversed(by_length):
        if batch:
            padded = lengths[batch[0]] * (len(batch) + 1)
            if padded > schedule.batch_tokens:
                batched.append(batch)
                batch = []
        batch.append(row)
    batched.append(batch)

    if epoch is None:
        yield from batched
        return
    for number in rng.permutation(len(batched)):
        yield batched[number]


def gather(features: Features, rows: list[int], like: Tensor) -> Batch:
    """One right-padded batch of dialogues on a tensor's device; hidden states in its dtype, the rest as it is kept."""
    device = like.device
    spans = [features.span(i) for i in rows]

    def pad(values: Pieces | Tensor) -> Tensor:
        return pad_sequence([values[span] for span in spans], batch_first=True).to(device)

    before_answer = []  # (n − 1,) bool for each dialogue: rows whose next token belongs to the answer
    for i, span in zip(rows, spans, strict=True):
        following = torch.arange(span.start + 1, span.stop)
        before_answer.append(following >= features.answer[i])
    answers = F.pad(pad_sequence(before_answer, batch_first=True), (0, 1))  # the last row has no next token
    trees = features.trees
    return Batch(
        tokens=pad(features.tokens),
        answers=answers.to(device),
        hidden={layer: pad(states).to(like.dtype) for layer, states in features.hidden.items()},
        soft=pad(features.soft),
        best=pad(features.best),
        best_p=pad(features.best_p),
        branches=None if trees is None else trees.of(rows, device),
    )


def split(dialogues: Sequence[int], every: int = 20) -> tuple[list[int], list[int]]:
    """Dialogues for training and, every so many, for validation: those whose index ``every`` divides."""
    training = [i for i in dialogues if i % every != 0]
    validation = [i for i in dialogues if i % every == 0]
    return training, validation


def train(
    head: nn.Module, frozen: Frozen, data: Features, loss: Loss, schedule: Schedule, checkpoint: Path
) -> tuple[nn.Module, list[dict]]:
    """Train a head to its best validation loss; returns it with the learning curve, one row per epoch.

    Where data has trees, the dialogues that carry them are used, else all.

    The checkpoint file holds everything a killed run needs to go on as if nothing had happened: each step's noise
    comes from (seed, step), each epoch's order from (seed, epoch). A run with other terms has another file, see
    ``runs.train``. Raises ValueError if the file is damaged or if the loss is no longer a number.
    """
    plan, validation = _plan(data, schedule)
    steps = len(plan)
    steps_an_epoch = steps // schedule.epochs
    optimizer = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=schedule.decay, fused=True)
    state = {"step": 0, "curve": [], "best": None}
    if checkpoint.exists():
        state = _restore(checkpoint, head, optimizer)
    begin = state["step"]
    kept = begin  # steps that the checkpoint holds

    bar = tqdm(range(begin, steps), total=steps, initial=begin, unit="step", disable=files.QUIET)
    with hints.interruptible(lambda: f"step {kept:,} of {steps:,} kept in {checkpoint}"), bar:
        for step in bar:
            if _since_best(state["curve"]) >= schedule.patience:
                break
            epoch, rows = plan[step]
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr * _rate(step, steps, schedule.warmup)
            batch = gather(data, rows, frozen.rows)
            value = _value(loss, head, frozen, batch, seed=schedule.seed * 1_000_003 + step)
            _descend(value, head, optimizer, schedule.clip, step)

            done = step + 1
            epoch_ends = done % steps_an_epoch == 0
            state["step"] = done
            state["loss"] = state.get("loss", 0.0) + value.item()  # summed since the epoch began
            if epoch_ends:
                measured = validate(head, frozen, data, validation, loss, schedule)
                mean = state.pop("loss") / steps_an_epoch
                state["curve"].append({"epoch": epoch, "step": done, "loss": mean, **measured})
                bar.set_postfix(measured)
                if _since_best(state["curve"]) == 0:
                    weights = head.state_dict()
                    state["best"] = {name: weight.detach().clone() for name, weight in weights.items()}
            if epoch_ends or done % schedule.checkpoint_every == 0:
                parts = {"state": state, "head": head.state_dict(), "optimizer": optimizer.state_dict()}
                files.write(checkpoint, partial(torch.save, parts))
                kept = done
    head.load_state_dict(state["best"])
    return head, state["curve"]


def _plan(data: Features, schedule: Schedule) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Each step's epoch and dialogues, and the dialogues for validation; ValueError if there is nothing to do."""
    if schedule.epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {schedule.epochs}")
    dialogues = range(len(data))
    if data.trees is not None:
        dialogues = data.trees.dialogues.tolist()
    training, validation = split(dialogues)
    if not training or not validation:
        raise ValueError(f"{len(training)} dialogues to train on and {len(validation)} to validate are too few")
    plan = []
    for epoch in range(schedule.epochs):
        for rows in batches(data, training, schedule, epoch):
            plan.append((epoch, rows))
    return plan, validation


def _descend(value: Tensor, head: nn.Module, optimizer: torch.optim.Optimizer, clip: float, step: int) -> None:
    """One step down the gradient of a loss; ValueError if the loss is no number."""
    if not torch.isfinite(value):
        raise ValueError(f"the loss is {value.item()} at step {step}: lower the learning rate and start over")
    optimizer.zero_grad()
    value.backward()
    nn.utils.clip_grad_norm_(head.parameters(), clip)
    optimizer.step()


def _since_best(curve: list[dict]) -> int:
    """Epochs since the validation loss was lowest; -1 before the first."""
    if not curve:
        return -1
    values = [row["validation_loss"] for row in curve]
    best = values.index(min(values))
    return len(values) - 1 - best


def _value(loss: Loss, head: nn.Module, frozen: Frozen, batch: Batch, seed: int) -> Tensor:
    """The loss of a batch in the target's precision, its noise from a seed."""
    in_bfloat16 = frozen.rows.dtype == torch.bfloat16
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(frozen.rows.device.type, torch.bfloat16, enabled=in_bfloat16):
        return loss(head, frozen, batch, generator)


def _rate(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step, as a share of its peak: linear warm-up, then a cosine down to a hundredth.

    Example: of 300 steps with a warm-up of 100, step 49 has .5, step 100 the peak, step 200 .505 and step 299 .01.
    """
    if step < warmup:
        return (step + 1) / warmup
    angle = math.pi * (step - warmup) / max(1, steps - warmup)  # 0 to π
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(angle))


@torch.no_grad()
def validate(head: nn.Module, frozen: Frozen, data: Features, rows: list[int], loss: Loss, schedule: Schedule) -> dict:
    """Mean loss over the validation dialogues, by a head in eval mode; blocks begin at the same places each time."""
    head.eval()
    values = []
    counts = []  # answer tokens of each batch
    for number, dialogues in enumerate(batches(data, rows, schedule, None)):
        batch = gather(data, dialogues, frozen.rows)
        value = _value(loss, head, frozen, batch, seed=number)
        values.append(value.item())
        counts.append(int(batch.answers.sum()))
    head.train()
    mean = np.average(values, weights=counts)
    return {"validation_loss": float(mean)}


def _restore(path: Path, head: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """The state in a checkpoint, whose weights go into head and optimizer; ValueError if the file is damaged."""
    try:
        saved = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise  # the disk's own words
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise ValueError(f"the checkpoint {path} is truncated or damaged: delete it to start over") from error
    head.load_state_dict(saved["head"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["state"]
