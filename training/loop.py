"""The training loop of draft heads (small networks that draft tokens for a large target model).

AdamW with gradient clipping; a learning rate that warms up and then falls along a cosine; a validation after every
epoch; checkpoints from which a killed run resumes bit for bit.
"""

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

    The highest learning rate is above that of the papers (EAGLE 3e-5, EDD 1e-4, TALF 3e-4), because there is less text;
    ``recipes`` says which heads share it. Batches are small for the same reason. After half an epoch of EAGLE at lr
    1e-3, the validation loss is .10 lower with batches of 512 tokens than with 2,048, and the half epoch takes an
    eighth longer on two cores.
    """

    epochs: int  # passes over the training dialogues, at most
    lr: float = 5e-4  # the highest learning rate, which the warm-up ends at
    batch_tokens: int = 512  # tokens in a batch at most, padding included
    warmup: int = 200  # steps
    patience: int = 2  # training stops after this many epochs without a lower validation loss
    checkpoint_every: int = 1000  # steps
    seed: int = 0
    decay: float = 0.01  # AdamW's weight decay
    clip: float = 1.0  # the largest norm of a step's gradient


def batches(features: Features, dialogues: list[int], schedule: Schedule, epoch: int | None) -> Iterator[list[int]]:
    """Batches of dialogues of about equal length, each of up to batch_tokens padded tokens.

    A batch begins with its longest dialogue, to whose length the others are padded. Example: dialogues 0 to 3 have 5,
    3, 4 and 9 tokens, and a batch may have 10. The first batch is dialogue 3 alone. The next is 0 and 2, padded to
    2 · 5 tokens. The last is 1.

    The batches come in a random order that depends on seed and epoch; with epoch None, in the order above. Every epoch
    has the same number of batches: chance only decides between dialogues of equal length, so that the sequence of
    lengths, which the batches are cut from, is the same.
    """
    lengths = features.start.diff().tolist()
    tie_break = {i: i for i in dialogues}  # orders dialogues of equal length
    if epoch is not None:
        rng = np.random.default_rng([schedule.seed, epoch + 1])
        tie_break = {i: rng.random() for i in dialogues}

    by_length = sorted(dialogues, key=lambda i: (lengths[i], tie_break[i]))
    all_batches = []
    batch = []
    for i in reversed(by_length):
        if batch:
            padded = lengths[batch[0]] * (len(batch) + 1)
            if padded > schedule.batch_tokens:
                all_batches.append(batch)
                batch = []
        batch.append(i)
    all_batches.append(batch)

    if epoch is None:
        yield from all_batches
        return
    for number in rng.permutation(len(all_batches)):
        yield all_batches[number]


def gather(features: Features, dialogues: list[int], like: Tensor) -> Batch:
    """One batch of dialogues, padded on the right, on the device of ``like`` and with hidden states in its dtype.

    All other arrays keep the dtype that they have in ``features``.
    """
    device = like.device
    spans = [features.span(i) for i in dialogues]

    def pad(values: Pieces | Tensor) -> Tensor:
        return pad_sequence([values[span] for span in spans], batch_first=True).to(device)

    predicts_answer = []  # (n − 1,) bool per dialogue: whether the token after token t belongs to the answer
    for i, span in zip(dialogues, spans, strict=True):
        next_tokens = torch.arange(span.start + 1, span.stop)
        predicts_answer.append(next_tokens >= features.answer[i])
    answers = pad_sequence(predicts_answer, batch_first=True)
    answers = F.pad(answers, (0, 1))  # (B, n): False for the last token, which no token follows
    trees = features.trees
    return Batch(
        tokens=pad(features.tokens),
        answers=answers.to(device),
        hidden={layer: pad(states).to(like.dtype) for layer, states in features.hidden.items()},
        soft=pad(features.soft),
        best=pad(features.best),
        best_p=pad(features.best_p),
        branches=None if trees is None else trees.of(dialogues, device),
    )


def split(dialogues: Sequence[int], every: int = 20) -> tuple[list[int], list[int]]:
    """The dialogues for training and those for validation: the ones whose index is a multiple of ``every``."""
    training = [i for i in dialogues if i % every != 0]
    validation = [i for i in dialogues if i % every == 0]
    return training, validation


def train(
    head: nn.Module, frozen: Frozen, data: Features, loss: Loss, schedule: Schedule, checkpoint: Path
) -> tuple[nn.Module, list[dict]]:
    """Train a head; returns it with its best weights, and the learning curve, one row per epoch.

    The best weights are those after the epoch with the lowest validation loss. If data has trees, only the dialogues
    that carry trees are used, else all.

    The checkpoint file contains everything that a killed run needs to go on as if nothing had happened. It does not
    need the state of a random generator. What a loss draws in a step (noise on features, say, or the lengths of
    blocks) depends on seed and step alone, and the order of the batches on seed and epoch. A run on other terms has
    another file, see ``runs.train``. Raises ValueError if the file is damaged or if the loss becomes infinite or NaN.
    """
    plan, validation_dialogues = _plan(data, schedule)
    steps = len(plan)
    steps_per_epoch = steps // schedule.epochs  # every epoch has the same number of batches, see ``batches``
    optimizer = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=schedule.decay, fused=True)
    # step: steps done; curve: one row per epoch; best: the weights with the lowest validation loss. Between the ends of
    # epochs there is also loss: the sum of the training losses since the epoch began.
    state = {"step": 0, "curve": [], "best": None}
    if checkpoint.exists():
        state = _restore(checkpoint, head, optimizer)
    first_step = state["step"]
    saved_steps = first_step  # steps that the checkpoint contains

    bar = tqdm(range(first_step, steps), total=steps, initial=first_step, unit="step", disable=files.QUIET)
    with hints.interruptible(lambda: f"step {saved_steps:,} of {steps:,} kept in {checkpoint}"), bar:
        for step in bar:
            # Asked here and not where an epoch ends, so that a run resumed after its last epoch stops, too.
            if _epochs_since_best(state["curve"]) >= schedule.patience:
                break
            epoch, dialogues = plan[step]
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr * _rate(step, steps, schedule.warmup)
            batch = gather(data, dialogues, frozen.rows)
            seed_of_step = schedule.seed * 1_000_003 + step  # other numbers for other seeds: runs are shorter than that
            value = _compute_loss(loss, head, frozen, batch, seed_of_step)
            _descend(value, head, optimizer, schedule.clip, step)

            done = step + 1
            epoch_ends = done % steps_per_epoch == 0
            state["step"] = done
            state["loss"] = state.get("loss", 0.0) + value.item()
            if epoch_ends:
                measured = validate(head, frozen, data, validation_dialogues, loss, schedule)
                mean_loss = state.pop("loss") / steps_per_epoch
                state["curve"].append({"epoch": epoch, "step": done, "loss": mean_loss, **measured})
                bar.set_postfix(measured)
                if _epochs_since_best(state["curve"]) == 0:
                    weights = head.state_dict()
                    state["best"] = {name: weight.detach().clone() for name, weight in weights.items()}
            if epoch_ends or done % schedule.checkpoint_every == 0:
                parts = {"state": state, "head": head.state_dict(), "optimizer": optimizer.state_dict()}
                files.write(checkpoint, partial(torch.save, parts))
                saved_steps = done
    head.load_state_dict(state["best"])
    return head, state["curve"]


def _plan(data: Features, schedule: Schedule) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """The complete run in advance: (epoch, dialogues of the batch) for each step; and the dialogues for validation.

    Raises ValueError if there are no epochs, or no dialogues for one of the two.
    """
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
        for batch in batches(data, training, schedule, epoch):
            plan.append((epoch, batch))
    return plan, validation


def _descend(value: Tensor, head: nn.Module, optimizer: torch.optim.Optimizer, clip: float, step: int) -> None:
    """One step of the optimizer along a loss's gradient; ValueError if the loss is infinite or NaN."""
    if not torch.isfinite(value):
        raise ValueError(f"the loss is {value.item()} at step {step}: lower the learning rate and start over")
    optimizer.zero_grad()
    value.backward()
    nn.utils.clip_grad_norm_(head.parameters(), clip)
    optimizer.step()


def _epochs_since_best(curve: list[dict]) -> int:
    """How many epochs ago the validation loss was lowest; −1 before the first epoch has ended.

    Example: validation losses of 3, 2, 2.5 and 2.2 were lowest 2 epochs ago.
    """
    if not curve:
        return -1
    losses = [row["validation_loss"] for row in curve]
    best = losses.index(min(losses))
    return len(losses) - 1 - best


def _compute_loss(loss: Loss, head: nn.Module, frozen: Frozen, batch: Batch, seed: int) -> Tensor:
    """The loss of a batch, in bfloat16 arithmetic if the target's weights are bfloat16; what it draws, from a seed."""
    in_bfloat16 = frozen.rows.dtype == torch.bfloat16
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(frozen.rows.device.type, torch.bfloat16, enabled=in_bfloat16):
        return loss(head, frozen, batch, generator)


def _rate(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step as a share of the highest: linear warm-up, then a cosine down to a hundredth.

    Example: with 300 steps and a warm-up of 100, the share is .5 in step 49, 1 in step 100, .505 in step 200 and .01 in
    step 299.
    """
    if step < warmup:
        return (step + 1) / warmup
    angle = math.pi * (step - warmup) / max(1, steps - warmup)  # 0 to π
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(angle))


@torch.no_grad()
def validate(
    head: nn.Module, frozen: Frozen, data: Features, dialogues: list[int], loss: Loss, schedule: Schedule
) -> dict[str, float]:
    """The validation loss: the mean over the batches, weighted by their numbers of answer tokens.

    For a loss that is a mean over answer tokens, as most are, this is the mean over all of them.

    The head is in eval mode meanwhile, in train mode afterwards. What a loss draws (the lengths of EDD's blocks, say)
    is the same each time, so that epochs can be compared.
    """
    head.eval()
    losses = []
    answer_tokens = []  # of each batch
    for number, batch_dialogues in enumerate(batches(data, dialogues, schedule, None)):
        batch = gather(data, batch_dialogues, frozen.rows)
        value = _compute_loss(loss, head, frozen, batch, seed=number)
        losses.append(value.item())
        answer_tokens.append(int(batch.answers.sum()))
    head.train()
    mean = np.average(losses, weights=answer_tokens)
    return {"validation_loss": float(mean)}


def _restore(path: Path, head: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Load a checkpoint's weights into head and optimizer; returns the state. ValueError if the file is damaged."""
    try:
        saved = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise  # a file that cannot be opened is not damaged: the system's own message says why
    except Exception as error:  # torch raises half a dozen kinds of errors for a damaged file
        raise ValueError(f"the checkpoint {path} is truncated or damaged: delete it to start over") from error
    head.load_state_dict(saved["head"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["state"]
