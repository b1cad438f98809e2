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
    """epochs over the training dialogues at most; lr: peak, after warmup steps; batch_tokens: padded tokens a step.

    Training stops early once the validation loss has not fallen for ``patience`` epochs. Steps are larger than in the
    papers, on less text (EAGLE 3e-5, EDD 1e-4, TALF 3e-4); ``recipes`` says which heads share their terms. Small
    batches, since text is what is short: half an epoch of EAGLE ends .10 lower in validation loss with batches of 512
    than with 2,048 at lr 1e-3, and takes an eighth longer on two cores.
    """

    epochs: int
    lr: float = 5e-4
    batch_tokens: int = 512
    warmup: int = 200
    patience: int = 2
    checkpoint_every: int = 1000  # steps
    seed: int = 0
    decay: float = 0.01
    clip: float = 1.0


def batches(features: Features, rows: list[int], schedule: Schedule, epoch: int | None) -> Iterator[list[int]]:
    """Dialogues in batches of about equal length, up to batch_tokens padded tokens; shuffled unless epoch is None."""
    lengths = features.start.diff()
    rng = np.random.default_rng([schedule.seed, 0 if epoch is None else epoch + 1])
    order = sorted(rows, key=lambda i: (int(lengths[i]), i if epoch is None else rng.random()))
    found, batch = [], []
    for row in reversed(order):
        if batch and int(lengths[batch[0]]) * (len(batch) + 1) > schedule.batch_tokens:
            found, batch = [*found, batch], []
        batch.append(row)
    found.append(batch)
    yield from found if epoch is None else (found[i] for i in rng.permutation(len(found)))


def gather(features: Features, rows: list[int], like: Tensor) -> Batch:
    """One right-padded batch of dialogues on a tensor's device; hidden states in its dtype, the rest as it is kept."""
    spans = [slice(int(features.start[i]), int(features.start[i + 1])) for i in rows]

    def pad(values: Pieces | Tensor) -> Tensor:
        return pad_sequence([values[s] for s in spans], batch_first=True).to(like.device)

    following = [torch.arange(s.start + 1, s.stop) >= features.answer[i] for i, s in zip(rows, spans, strict=True)]
    answers = F.pad(pad_sequence(following, batch_first=True), (0, 1))
    hidden = {layer: pad(values).to(like.dtype) for layer, values in features.hidden.items()}
    tokens, soft, best, best_p = (pad(x) for x in (features.tokens, features.soft, features.best, features.best_p))
    branches = features.trees and features.trees.of(rows, like.device)
    return Batch(tokens, answers.to(like.device), hidden, soft, best, best_p, branches)


def split(dialogues: Sequence[int], every: int = 20) -> tuple[list[int], list[int]]:
    """Dialogues for training and, every so many, for validation."""
    return [i for i in dialogues if i % every], [i for i in dialogues if i % every == 0]


def train(
    head: nn.Module, frozen: Frozen, data: Features, loss: Loss, schedule: Schedule, checkpoint: Path
) -> tuple[nn.Module, list[dict]]:
    """Train a head to its best validation loss; returns it with the learning curve, one row per epoch.

    Where data has trees, the dialogues that carry them are used, else all.

    The checkpoint file holds everything a killed run needs to go on as if nothing had happened: each step's noise
    comes from (seed, step), each epoch's order from (seed, epoch). A run with other terms has another file, see
    ``runs.train``. Raises ValueError if the file is damaged or if the loss is no longer a number.
    """
    if schedule.epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {schedule.epochs}")
    training, validation = split(data.trees.dialogues.tolist() if data.trees else range(len(data)))
    if not training or not validation:
        raise ValueError(f"{len(training)} dialogues to train on and {len(validation)} to validate are too few")
    plan = [(epoch, rows) for epoch in range(schedule.epochs) for rows in batches(data, training, schedule, epoch)]
    steps, per_epoch = len(plan), len(plan) // schedule.epochs
    optimizer = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=schedule.decay, fused=True)
    state = {"step": 0, "curve": [], "best": None}
    if checkpoint.exists():
        state = _restore(checkpoint, head, optimizer)
    saved = [state["step"]]  # steps of which there was a checkpoint
    bar = tqdm(range(state["step"], steps), total=steps, initial=state["step"], unit="step", disable=files.QUIET)
    with hints.interruptible(lambda: f"step {saved[-1]:,} of {steps:,} kept in {checkpoint}"), bar:
        for step in bar:
            if _since_best(state["curve"]) >= schedule.patience:
                break
            epoch, batch = plan[step]
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr * _rate(step, steps, schedule.warmup)
            value = _value(loss, head, frozen, gather(data, batch, frozen.rows), schedule.seed * 1_000_003 + step)
            _descend(value, head, optimizer, schedule.clip, step)
            state["step"] = step + 1
            state["loss"] = state.get("loss", 0.0) + value.item()
            if state["step"] % per_epoch == 0:
                measured = validate(head, frozen, data, validation, loss, schedule)
                mean = state.pop("loss") / per_epoch
                state["curve"].append({"epoch": epoch, "step": step + 1, "loss": mean, **measured})
                bar.set_postfix(measured)
                if _since_best(state["curve"]) == 0:
                    state["best"] = {name: w.detach().clone() for name, w in head.state_dict().items()}
            if state["step"] % schedule.checkpoint_every == 0 or state["step"] % per_epoch == 0:
                parts = {"head": head.state_dict(), "optimizer": optimizer.state_dict()}
                files.write(checkpoint, partial(torch.save, {"state": state, **parts}))
                saved.append(state["step"])
    head.load_state_dict(state["best"])
    return head, state["curve"]


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
    values = [row["validation_loss"] for row in curve]
    return len(values) - 1 - values.index(min(values)) if values else -1


def _value(loss: Loss, head: nn.Module, frozen: Frozen, batch: Batch, seed: int) -> Tensor:
    """The loss of a batch in the target's precision, its noise from a seed."""
    with torch.autocast(frozen.rows.device.type, torch.bfloat16, enabled=frozen.rows.dtype == torch.bfloat16):
        return loss(head, frozen, batch, torch.Generator().manual_seed(seed))


def _rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def validate(head: nn.Module, frozen: Frozen, data: Features, rows: list[int], loss: Loss, schedule: Schedule) -> dict:
    """Mean loss over the validation dialogues, by a head in eval mode; blocks begin at the same places each time."""
    head.eval()
    values, counts = [], []
    for number, some in enumerate(batches(data, rows, schedule, None)):
        batch = gather(data, some, frozen.rows)
        values.append(_value(loss, head, frozen, batch, number).item())
        counts.append(int(batch.answers.sum()))
    head.train()
    return {"validation_loss": float(np.average(values, weights=counts))}


def _restore(path: Path, head: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    try:
        saved = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise  # the disk's own words
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise ValueError(f"the checkpoint {path} is truncated or damaged: delete it to start over") from error
    head.load_state_dict(saved["head"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["state"]
