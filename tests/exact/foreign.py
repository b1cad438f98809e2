"""Samplers as other people write them: right ones, and wrong ones with a bug each; (p, q, drafted) of a chain."""

import random

import numpy as np
import torch

# --- right


def textbook(p, q, drafted):
    """Leviathan et al., in torch, token by token."""
    for place, token in enumerate(drafted):
        if torch.rand(()) >= p[place, token] / q[place, token]:
            rest = (p[place] - q[place]).clamp(min=0)
            return [*drafted[:place], int(torch.multinomial(rest / rest.sum(), 1))]
    return [*drafted, int(torch.multinomial(p[-1], 1))]


def vectorised(p, q, drafted):
    """All positions at once: comparisons, a cumulative product, an exponential race, padding."""
    gamma = len(drafted)
    tokens = torch.tensor(drafted)
    places = torch.arange(gamma)
    accepted = torch.rand(gamma, dtype=p.dtype) < p[places, tokens] / q[places, tokens]
    count = int(accepted.long().cumprod(0).sum())
    rest = p[count].clone()
    if count < gamma:
        rest = (rest - q[count]).clamp_(min=0)
    noise = torch.empty_like(rest).exponential_()
    return [*drafted[:count], int((rest / noise).argmax())]


def in_logs(p, q, drafted):
    """In the log domain, with Gumbel noise from uniform numbers."""
    log_p, log_q = p.log(), q.log()
    for place, token in enumerate(drafted):
        if torch.rand(1, dtype=p.dtype).log() < log_p[place, token] - log_q[place, token]:
            continue
        rest = torch.relu(log_p[place].exp() - log_q[place].exp())
        gumbel = -torch.log(-torch.log(torch.rand_like(rest) + 1e-20) + 1e-20)
        return [*drafted[:place], int((rest.log() + gumbel).argmax())]
    gumbel = -torch.log(-torch.log(torch.rand_like(p[-1]).clamp_min(1e-20)))
    return [*drafted, int((log_p[-1] + gumbel).argmax())]


def in_numpy(p, q, drafted):
    """numpy's Generator, a cumulative sum."""
    generator = np.random.default_rng()
    p, q = p.numpy(), q.numpy()
    for place, token in enumerate(drafted):
        if generator.random() < min(1.0, p[place, token] / q[place, token]):
            continue
        rest = np.maximum(p[place] - q[place], 0)
        return [*drafted[:place], int(generator.choice(len(rest), p=rest / rest.sum()))]
    return [*drafted, int(np.searchsorted(p[-1].cumsum(), generator.random()))]


def in_python(p, q, drafted):
    """Lists, the random module."""
    p, q = p.tolist(), q.tolist()
    kept = []
    for place, token in enumerate(drafted):
        if random.random() * q[place][token] < p[place][token]:
            kept.append(token)
            continue
        rest = [max(a - b, 0.0) for a, b in zip(p[place], q[place], strict=True)]
        return [*kept, random.choices(range(len(rest)), weights=rest)[0]]
    return [*kept, random.choices(range(len(p[-1])), weights=p[-1])[0]]


def in_a_batch(p, q, drafted):
    """A batch of two rows, the second of them padding; bernoulli for acceptance."""
    gamma = len(drafted)
    tokens = torch.tensor([drafted, [0] * gamma])
    ps, qs = p.expand(2, *p.shape), q.expand(2, *q.shape)
    ratio = ps[:, :-1].gather(-1, tokens[..., None]) / qs.gather(-1, tokens[..., None])
    chance = ratio.squeeze(-1).clamp(0, 1)
    chance[1] = 0  # nobody reads the second row
    rejected = torch.bernoulli(chance) == 0
    count = int(torch.where(rejected[0], torch.arange(gamma), gamma).min())
    rest = p[count] if count == gamma else torch.relu(p[count] - q[count])
    return [*drafted[:count], int(torch.multinomial(rest, 1))]


def only_where_needed(p, q, drafted):
    """Certain outcomes ask nothing."""
    for place, token in enumerate(drafted):
        a, b = float(p[place, token]), float(q[place, token])
        if a >= b or random.uniform(0, b) < a:
            continue
        rest = torch.relu(p[place] - q[place])
        return [*drafted[:place], int(torch.distributions.Categorical(probs=rest).sample())]
    return [*drafted, int(torch.distributions.Categorical(probs=p[-1]).sample())]


def bonus_first(p, q, drafted):
    """The bonus token is drawn before it is known whether it is needed, as engines do."""
    bonus = int(torch.multinomial(p[-1], 1))
    tokens = textbook(p, q, drafted)
    return [*drafted, bonus] if len(tokens) > len(drafted) else tokens


def one_noise_for_all(p, q, drafted):
    """One exponential vector for all positions, of which one alone is used: right."""
    noise = torch.empty_like(p[0]).exponential_()
    for place, token in enumerate(drafted):
        if torch.rand(()) >= p[place, token] / q[place, token]:
            return [*drafted[:place], int((torch.relu(p[place] - q[place]) / noise).argmax())]
    return [*drafted, int((p[-1] / noise).argmax())]


def target_alone(p, q, drafted):
    """Ignores the draft: one token a step, and lossless."""
    return [int(torch.multinomial(p[0], 1))]


RIGHT = (
    textbook, vectorised, in_logs, in_numpy, in_python, in_a_batch, only_where_needed, bonus_first, one_noise_for_all,
    target_alone,
)  # fmt: skip


# --- wrong


def no_residual(p, q, drafted):
    """After a rejection the next token comes from p, not from what q left of it."""
    for place, token in enumerate(drafted):
        if torch.rand(()) >= p[place, token] / q[place, token]:
            return [*drafted[:place], int(torch.multinomial(p[place], 1))]
    return [*drafted, int(torch.multinomial(p[-1], 1))]


def same_uniform(p, q, drafted):
    """One uniform number for all positions of a chain."""
    number = random.random()
    p, q = p.tolist(), q.tolist()
    for place, token in enumerate(drafted):
        if number * q[place][token] >= p[place][token]:
            rest = [max(a - b, 0.0) for a, b in zip(p[place], q[place], strict=True)]
            return [*drafted[:place], random.choices(range(len(rest)), weights=rest)[0]]
    return [*drafted, random.choices(range(len(p[-1])), weights=p[-1])[0]]


def ratio_turned(p, q, drafted):
    """q / p in place of p / q, in numpy."""
    p, q = p.numpy(), q.numpy()
    for place, token in enumerate(drafted):
        if np.random.rand() < q[place, token] / max(p[place, token], 1e-9):
            continue
        rest = np.maximum(p[place] - q[place], 0)
        rest = rest / rest.sum() if rest.sum() > 0 else p[place]
        return [*drafted[:place], np.random.choice(len(rest), p=rest)]
    return [*drafted, np.random.choice(len(p[-1]), p=p[-1])]


def residual_of_the_first(p, q, drafted):
    """Vectorised, with the residual of the wrong position: only drafts of two tokens show it."""
    gamma = len(drafted)
    tokens = torch.tensor(drafted)
    accepted = torch.rand(gamma) < (p[:-1].gather(1, tokens[:, None]) / q.gather(1, tokens[:, None]))[:, 0]
    count = int(accepted.long().cumprod(0).sum())
    rest = p[count] if count == gamma else torch.relu(p[count] - q[0])
    rest = rest if rest.sum() > 0 else p[count]
    return [*drafted[:count], int((rest / torch.empty_like(rest).exponential_()).argmax())]


def noise_used_again(p, q, drafted):
    """Bonus and residual are raced beforehand with the noise of a draw whose winner then decides acceptance."""
    noise = torch.empty_like(p[0]).exponential_()
    elected = int((p[0] / noise).argmax())
    if elected == drafted[0]:
        return [elected]
    return [int((torch.relu(p[0] - q[0]) / noise).argmax())] if torch.relu(p[0] - q[0]).sum() > 0 else [elected]


def threshold(p, q, drafted):
    """Typical acceptance: whatever p finds likely enough."""
    for place, token in enumerate(drafted):
        if p[place, token] < 0.3:
            return [*drafted[:place], int(torch.multinomial(p[place], 1))]
    return [*drafted, int(torch.multinomial(p[-1], 1))]


def no_token(p, q, drafted):
    """Returns nothing, by mistake."""


WRONG = (no_residual, same_uniform, ratio_turned, residual_of_the_first, noise_used_again, threshold)


# --- trees, in lists


def children_of(node, parents):
    return [child for child, parent in enumerate(parents) if parent == node]


def tree_recursive(p, q, tokens, parents, strikes=False):
    """Recursive rejection: after each refused sibling p becomes its residual. strikes: q loses the sibling, too."""
    node = 0
    path = []
    while True:
        rest, law = p[node].clone(), q[node].clone()
        for child in children_of(node, parents):
            token = tokens[child]
            if random.random() * law[token] < rest[token]:
                break
            rest = torch.relu(rest - law)
            rest = rest / rest.sum()
            if strikes:
                law[token] = 0
                law = law / law.sum() if law.sum() > 0 else law
        else:
            return [*path, int(torch.multinomial(rest, 1))]
        node = child
        path.append(tokens[child])


def tree_struck(p, q, tokens, parents):
    """The same for siblings that were drawn without replacement."""
    return tree_recursive(p, q, tokens, parents, strikes=True)


def tree_of_likeliest(p, q, tokens, parents):
    """The next token is drawn from p; if the tree has it, the walk goes on there. In numpy."""
    generator = np.random.default_rng()
    node = 0
    path = []
    while True:
        token = int(generator.choice(len(p[node]), p=p[node].numpy()))
        path.append(token)
        there = [child for child in children_of(node, parents) if tokens[child] == token]
        if not there:
            return path
        node = there[0]


def tree_first_residual_only(p, q, tokens, parents):
    """Wrong: every sibling is tried against p itself, and only the last residual is taken."""
    node = 0
    path = []
    while True:
        rest = p[node]
        for child in children_of(node, parents):
            if random.random() * q[node, tokens[child]] < p[node, tokens[child]]:
                break
            rest = torch.relu(p[node] - q[node])
        else:
            return [*path, int(torch.multinomial(rest, 1))]
        node = child
        path.append(tokens[child])


def tree_by_softmax(p, q, tokens, parents):
    """Wrong for chosen tokens: min(1, p / q) with the q that they were chosen by."""
    return tree_recursive(p, q, tokens, parents)


# --- drafters


def draws_and_reports(q, count):
    tokens, laws = [], []
    for _ in range(count):
        law = q(tuple(tokens))
        laws.append(law)
        tokens.append(int(torch.multinomial(law, 1)))
    return tokens, laws


def chooses_and_reports_one_hot(q, count):
    tokens, laws = [], []
    for _ in range(count):
        token = int(q(tuple(tokens)).argmax())
        laws.append(torch.nn.functional.one_hot(torch.tensor(token), 3))
        tokens.append(token)
    return tokens, laws


def draws_by_noise(q, count):
    """An exponential race, as engines draw; the law that is reported is cut to the top 2 as the drawn one is."""
    tokens, laws = [], []
    for _ in range(count):
        law = q(tuple(tokens))
        law = law.where(law >= law.topk(2).values[-1], 0.0)
        law = law / law.sum()
        laws.append(law)
        tokens.append(int((law / torch.empty_like(law).exponential_()).argmax()))
    return tokens, laws


def reports_before_the_temperature(q, count):
    """Wrong: drawn at temperature 1/2, reported at 1."""
    tokens, laws = [], []
    for _ in range(count):
        law = q(tuple(tokens))
        laws.append(law)
        tokens.append(int(torch.multinomial(law**2 / (law**2).sum(), 1)))
    return tokens, laws


def chooses_and_reports_softmax(q, count):
    """Wrong: the likeliest token, said to be drawn."""
    tokens, laws = [], []
    for _ in range(count):
        law = q(tuple(tokens))
        laws.append(law)
        tokens.append(int(law.argmax()))
    return tokens, laws


def reports_the_row_before(q, count):
    """Wrong from the second token on."""
    tokens, laws = [], []
    law = q(())
    for _ in range(count):
        laws.append(law)
        law = q(tuple(tokens))
        tokens.append(int(torch.multinomial(law, 1)))
    return tokens, laws
