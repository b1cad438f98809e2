"""Features of a corpus: the target's, computed once, added to, and refused where the disk is full."""

import errno
import os

import pytest
import torch
from rounding import BFLOAT16

from specnb.models import files
from training import features, loop, runs

pytestmark = pytest.mark.usefixtures("own_cache")


def test_features_are_the_targets(pair, ready, dialogues):
    """Hidden states, soft rows and best tokens of each dialogue are those of a plain forward pass."""
    frozen, data = ready
    for i in (0, 7, 39):
        span = slice(int(data.start[i]), int(data.start[i + 1]))
        ids = torch.tensor([[1, 2, *dialogues[i].question, 3, 4, *dialogues[i].answer]])
        assert data.tokens[span].tolist() == ids[0].tolist()
        with torch.no_grad():
            out = pair.target(ids, output_hidden_states=True)
        law = out.logits[0][:, frozen.ids].softmax(-1)
        kept = data.hidden[-4][span].float()  # in bfloat16
        torch.testing.assert_close(kept, out.hidden_states[-4][0], rtol=BFLOAT16, atol=BFLOAT16)
        torch.testing.assert_close(data.soft[span], law @ frozen.rows)
        assert (data.best[span, 0] == law.argmax(-1)).all()
        batch = loop.gather(data, [i], frozen.rows)
        rows = batch.answers[0].nonzero().flatten()
        assert batch.tokens[0, rows + 1].tolist() == list(dialogues[i].answer)


def test_features_are_computed_once(pair, dialogues, ready, monkeypatch):
    frozen, data = ready
    monkeypatch.setattr(features, "_run", None)  # a second computation would fail
    again = runs.corpus_features(pair, dialogues, frozen.ids, [-4])
    assert torch.equal(again.soft.pieces[0], data.soft.pieces[0])
    again.soft.pieces[0].zero_()  # copy on write: what readers do to it stays with them
    once_more = runs.corpus_features(pair, dialogues, frozen.ids, [-1])
    assert torch.equal(once_more.soft.pieces[0], data.soft.pieces[0])
    for other in ((dialogues[:-1], [-1]), (dialogues, [-2])):
        with pytest.raises(TypeError):
            runs.corpus_features(pair, other[0], frozen.ids, other[1])


def test_a_grown_corpus_only_adds_features(pair, dialogues, monkeypatch):
    """Chunks that were there are read, not computed; the whole is what one chunk would have been."""
    ids, ran, run = features.vocabulary(dialogues, 16), [], features._run
    whole = runs.corpus_features(pair, dialogues, ids, [-1])
    monkeypatch.setattr(features, "CHUNK", 7)
    runs.corpus_features(pair, dialogues[:16], ids, [-1])
    monkeypatch.setattr(features, "_run", lambda *a: (ran.append(len(a[2])), run(*a))[1])
    grown = runs.corpus_features(pair, dialogues, ids, [-1])
    assert sum(ran) == 40 - 14  # the third chunk was not full
    assert torch.equal(grown.tokens, whole.tokens)
    assert torch.equal(grown.answer, whole.answer)
    assert (len(grown.soft.pieces), len(whole.soft.pieces)) == (6, 1)
    torch.testing.assert_close(torch.cat(grown.soft.pieces), whole.soft.pieces[0])
    at = torch.tensor([0, 5, len(grown.tokens) - 1])
    torch.testing.assert_close(grown.soft[at], whole.soft[at])
    ours, theirs = (torch.cat(x.hidden[-1].pieces).float() for x in (grown, whole))
    torch.testing.assert_close(ours, theirs, rtol=2 * BFLOAT16, atol=2 * BFLOAT16)


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(pair, dialogues, monkeypatch):
    """What was written before stays, and the next run computes only what is missing."""
    ids, calls, sync = features.vocabulary(dialogues, 16), iter(range(9)), os.fsync

    def full(number):
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            runs.corpus_features(pair, dialogues, ids, [-1])
    kept = sorted(path.name for path in (files.cache_dir() / "features").glob("*/*"))
    assert kept == ["hidden-1.pt", "soft.pt"]
    runs.corpus_features(pair, dialogues, ids, [-1])


def test_questions_are_trained_on_too(pair, dialogues):
    """The target wrote them: rows from the template's opening on, answers alone where drafts are measured."""
    ids = features.vocabulary(dialogues, 16)
    whole, answers = (runs.corpus_features(pair, dialogues, ids, [], questions=q) for q in (True, False))
    assert torch.equal(whole.tokens, answers.tokens)
    assert (whole.answer - whole.start[:-1] == 2).all()
    asked = torch.tensor([len(d.question) for d in dialogues])
    assert torch.equal(answers.answer - whole.answer, asked + 2)


def test_too_small_a_corpus_for_the_table_is_said(dialogues):
    with pytest.raises(ValueError, match=r"only .* different tokens, 500 were asked for"):
        features.vocabulary(dialogues, 500)
