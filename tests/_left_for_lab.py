"""Tests of what the lab and the show have now; not collected. Each block names what it needs, by its old name."""
# ruff: noqa

# ==== decode (bench.choose, bench.peers, bench.same_text; imports: os, bench, fixture smollm2)

FULL = os.environ.get("SPECNB_PROFILE") == "full"  # all 60 prompts; the recorded run is data/results/same_text_cpu


@pytest.mark.model
def test_text_is_generates(smollm2):
    """The near-tie rule on own prompts × 16 tokens (full: 64), for the n-gram tree and the target as its own draft."""
    chosen = bench.choose("own", 10 if FULL else 1)
    ids = [smollm2.encode(text) for text in chosen["text"]]
    methods = bench.peers(smollm2, max_new_tokens=64 if FULL else 16, self_draft=True)
    del methods["prompt lookup"]
    frame = bench.same_text(smollm2.target, methods, ids)
    assert len(frame) == 2 * len(ids)
    assert frame["same"].all()
    assert frame["equal"].mean() > 0.9  # near ties are rare; many of them would be a fault


@pytest.mark.model
def test_the_near_tie_rule_catches_a_wrong_text(smollm2):
    """Negative control: one token changed, and a text cut short, are not near ties."""
    right = bench.generate(smollm2.target, max_new_tokens=12)
    methods = {
        "generate": right,
        "changed": lambda ids: [(t + 1) % 49152 if i == 5 else t for i, t in enumerate(right(ids))],
        "cut": lambda ids: right(ids)[:9],
    }
    frame = bench.same_text(smollm2.target, methods, [smollm2.encode("Name three colours of the rainbow.")])
    assert not frame["same"].any()


# ==== graphs (methods.method, side_by_side.same_greedy_text)


def test_methods_in_graphs():
    made = methods.method("vdm:chain 3 in graphs")
    assert (made.graphs, made.head, made.rule, made.name) == (True, "vdm", "chain 3", "vdm:chain 3 in graphs")
    assert methods.method("undrafted in graphs").alone == "undrafted"
    assert not methods.method("vdm:chain 3").graphs
    with pytest.raises(ValueError, match="transformers' own methods are not recorded"):
        methods.method("generate in graphs")


@pytest.mark.model
def test_the_real_model_writes_the_same_text_in_graphs(monkeypatch):
    monkeypatch.setattr(side_by_side, "SIZES", (1, 8))
    row = side_by_side.same_greedy_text("ngram budget=6 in graphs", "conversation-01", 12, True)
    assert row["same"]


# ==== adaptive (adaptive.replay, replay.record, studies.price; RULE, llama, near_copy)


@pytest.fixture(scope="module")
def recording() -> replay.Recording:
    model, prompt = llama(), [7, 30, 12, 5]
    draft = CausalLMDraft(near_copy(model))
    plain = decode(Target(model), TreeDrafter(draft, growth.chain(1)), verifiers.greedy, prompt, max_new_tokens=90)
    return replay.record(Target(model), draft, replay.Together((replace(RULE, threshold=0),), 8), prompt, plain.tokens)


@pytest.mark.parametrize("call", [0.02, 0.3, 2.0])
def test_replayed_it_comes_near_the_best_fixed_threshold(recording, call):
    """It writes the recorded text, and is not far from the best in hindsight at a low, a middle and a high price.

    Farthest at the low one: this draft's first guess is nearly always right and never said to be, so what a second
    forward earns says nothing of the tenth, and the threshold looks one forward ahead.
    """
    price = studies.price(call, 0.01)
    learnt = adaptive.replay(recording, RULE, price)
    assert sum(turn.accepted + 1 for turn in learnt) == len(recording.text)
    fixed = [sum(map(price, replay.replay(recording, replace(RULE, threshold=th / 10)))) for th in range(10)]
    assert sum(map(price, learnt)) < min(fixed) * 1.2
    if call == 2.0:
        assert sum(map(price, learnt)) < max(fixed) * 0.8  # a threshold that did not matter would show nothing


def test_the_drafter_is_the_replay_on_its_own_clock(recording):
    """With a clock that charges forwards and nodes, the live drafter learns what the replay learns, step by step."""
    model, prompt, price = llama(), [7, 30, 12, 5], studies.price(0.3, 0.01)
    now, drafter = [0.0], AdaptiveDrafter(CausalLMDraft(near_copy(model)), RULE, lambda: now[0])
    observe = drafter.inner.observe

    def charged(draft, *rest):
        forwards = (0,) * len(drafter.inner.masses)
        now[0] += price(replay.Turn(0, len(draft.tree), forwards, 0, 0.0))
        return observe(draft, *rest)

    drafter.inner.observe = charged
    out = decode(Target(model), drafter, verifiers.greedy, prompt, max_new_tokens=90)
    turns = adaptive.replay(recording, RULE, price)
    assert out.tokens == recording.text
    assert [(len(s.draft.tree), len(s.verdict.path)) for s in out.steps] == [(t.nodes, t.accepted) for t in turns]
    assert [past.mass for past in drafter.past] == pytest.approx([turn.mass for turn in turns])
    assert len({turn.forwards for turn in turns}) > 1


def test_masses_are_what_each_forward_expanded():
    """The S_i of a live draft are those of its replay, and the first is the root's 1."""
    rule = replace(RULE, threshold=0)
    everything = exact.toy_drafter(exact.random_model(8, 0), replay.Together((rule,), k=8), Drawn.POINT)
    everything.begin((0,), Warp(), {})
    recorded = everything.propose(RandomCoins(), 9)
    alone = exact.toy_drafter(exact.random_model(8, 0), rule, Drawn.POINT)
    alone.begin((0,), Warp(), {})
    assert len(alone.propose(RandomCoins(), 9).tree) == 20
    stages = replay.stages(recorded.tree, recorded.scores, rule)[:-1]
    assert alone.masses == pytest.approx([float(recorded.scores[list(stage.next)].sum()) for stage in stages])
    assert alone.masses[0] == 1
    assert len(alone.masses) > 2


# ==== retrieval (methods.build, methods.method)


@pytest.mark.model
def test_the_targets_own_texts_as_a_store(smollm2):
    from specnb import methods

    made = methods.build(methods.method("retrieval store=own budget=8"), smollm2)
    assert len(made.store.tokens) > 1_000_000
    made.begin(smollm2.encode("What is the capital of France?"), Warp(), {})
    assert len(made.propose(None, 8).tree) == 9
    with pytest.raises(ValueError, match="written by smollm2-135m: it says nothing about other"):
        methods.build(methods.method("retrieval store=own"), models.Pair("other", None, None, None))


# ==== self_drafting, metrics, growing, methods (drafters DRAFTERS, TINY as in tests/drafters/test_self_drafters.py; paths from toy)


@pytest.mark.parametrize("name", DRAFTERS)
def test_de_is_hr_times_al_plus_one_minus_hr(name):
    out = decode(Target(TINY), DRAFTERS[name](), verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=60)
    found = metrics.retrieval(out.steps)
    assert found["DE"] == pytest.approx(found["HR"] * found["AL"] + 1 - found["HR"], abs=1e-12)
    assert found["DE"] == tau(out.steps)
    assert found["AL"] >= found["DE"] > 1
    rows = sum(len(step.draft.tree) - 1 for step in out.steps)
    assert (found["Dft"] + found["Ver"]) * len(out.steps) == pytest.approx(rows)


def test_retrieval_of_plain_steps_has_no_accept_length():
    out = decode(Target(TINY), PlainDrafter(), verifiers.greedy, [3, 1, 4], max_new_tokens=5)
    found = metrics.retrieval(out.steps)
    assert (found["DE"], found["HR"], found["Dft"], found["Ver"]) == (1, 0, 0, 0)
    assert math.isnan(found["AL"])


def test_branches_are_the_auxiliary_paths_alone():
    tree = TokenTree([9, 1, 2, 5, 6, 7, 6], [-1, 0, 1, 0, 3, 3, 0])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, False, True, True, True, True]))
    assert metrics.branches(draft) == [(5, 6), (5, 7), (6,)]
    assert metrics.branches(draft, 1) == [(6,), (7,), (6,)]
    assert metrics.branches(Draft(tree)) == []


def test_similarities():
    assert metrics.aligned((1, 2, 3, 4), (1, 9, 3, 4)) == 0.75
    assert metrics.aligned((1, 2, 3, 4), (2, 3, 4, 5)) == 0
    assert metrics.overlap((1, 2, 3, 4), (2, 3, 4, 5)) == 0.75  # the same, one token later
    assert metrics.aligned((1, 2), (1, 2, 3, 4)) == 0.5
    for similarity in self_drafting.SIMILARITIES.values():
        assert similarity((1, 2), (1, 2)) == 1
        assert similarity((1, 2), (3, 4)) == 0


def test_likeness_is_that_of_the_most_similar_other_branch():
    found = metrics.likeness([(1, 2), (1, 2), (1, 5), (7, 8)], metrics.aligned)
    assert found.tolist() == [1, 1, 0.5, 0]
    assert metrics.likeness([(1, 2)], metrics.aligned).tolist() == [0]
    assert metrics.likeness([], metrics.aligned).tolist() == []


def test_drafters_by_name():
    drafter = methods.named("ptd children=2 depth=3 chained=False expand=topk", None)
    assert (drafter.children, drafter.depth, drafter.chained, drafter.expand) == (2, 3, False, "topk")
    assert methods.named("lookahead window=3", None).window == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medusa", "unknown drafter 'medusa': known are undrafted, ptd, self_draft, lookahead, ngram"),
        ("ptd width=3", "'width=3' is no setting of ptd, which has chained, children, depth"),
        ("ptd depth", "'depth' is no setting of ptd"),
        ("ptd depth=0", "depth must be at least 1, got 0"),
        ("ptd chained=no", "'chained=no' should be chained=False or so"),
        ("ptd depth=six", "'depth=six' should be depth=6 or so"),
        ("self_draft corpus=oanc", "'corpus=oanc' should be corpus='own' or so"),
    ],
)
def test_names_without_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.named(name, None)


@pytest.mark.model
def test_cells_of_the_real_model():
    row = self_drafting.run("ptd", "conversation-02", 0.5, 12, 0)
    assert row["tokens"] == 12 == len(row["ids"].split())
    assert set(row) == set(self_drafting.METHODS_RESULTS)
    plain = self_drafting.run("plain", "conversation-02", 0.0, 12, 0)
    assert plain["DE"] is None
    assert plain["steps"] == 12
    found = self_drafting.alike("self_draft", "conversation-02", 16)
    assert set(found) == set(self_drafting.BRANCHES_RESULTS)
    assert 0 <= found["share overlap 0.8"] <= found["share overlap 0.5"] <= 1
    assert set(self_drafting.bookkeeping("ptd", "conversation-02", 12)) == {"propose", "observe", "forward"}
    assert self_drafting.same_text("self_draft corpus=own", "conversation-02", 8, True)["same"]


def test_resemblance_is_full_for_the_same_texts_and_nothing_for_strangers():
    texts = ["the cat sat on the mat today", "to be or not to be that is it"]
    assert list(self_drafting.resemblance(texts, texts).values()) == pytest.approx([100] * 4)
    strangers = self_drafting.resemblance(texts, ["completely other words here now friend", "x y z w v u t s"])
    assert max(strangers.values()) < 5


def test_reading_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(racing.assets, "DATA", tmp_path)
    (tmp_path / "results").mkdir()
    rows = [("a", "plain", 1.0), ("a", "ptd chained=False", 2.0), ("b", "plain", 2.0), ("b", "ptd chained=False", 6.0)]
    table = pd.DataFrame(rows, columns=["prompt", "method", "tokens"])
    table = table.assign(key=range(4), status="ok", error=None, seconds=1.0, DE=[1, 2, 1, 2.5])
    table.to_csv(tmp_path / "results" / "runs.csv", index=False)
    found = self_drafting.load("runs")
    assert set(found["method"]) == {"generate", "PTD"}
    assert self_drafting.speed_ups(found).loc["PTD", "speed-up"] == 2.5
    assert self_drafting.difference(found, "DE", "PTD", "generate")[0] == pytest.approx(1.25)
    table.assign(status="failed").to_csv(tmp_path / "results" / "runs.csv", index=False)
    with pytest.raises(ValueError, match="4 cells of runs failed"):
        self_drafting.load("runs")


def test_budget_for_takes_the_smallest_that_reaches():
    points = pd.DataFrame({"budget": [30, 10, 20, 40], "DE": [1.9, 1.5, 2.0, 2.2]})
    assert self_drafting.budget_for(points, 2.0) == 20
    assert self_drafting.budget_for(points, 1.75) == 15
    assert math.isnan(self_drafting.budget_for(points, 2.3))


def test_drafters_without_branches_are_refused():
    with pytest.raises(ValueError, match="has no branches to compare"):
        self_drafting.alike("lookahead", "conversation-02", 8)


def test_repeated_counts_pairs():
    tree = TokenTree([9, 1, 2, 9, 1], [-1, 0, 1, 0, 3])
    assert metrics.repeated(Draft(tree, auxiliary=torch.tensor([False, True, True, True, True]))) == 0.25


def test_growing_refuses_a_chained_tree():
    with pytest.raises(ValueError, match="chained=False"):
        growing.record(Target(TINY), ProgressiveDrafter(chained=True), [1, 2], 2)


def pieces(tokens):
    return [f"t{token}" for token in tokens]


def test_the_growing_explorer_follows_its_slider():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 8)
    assert len(frames) == 8
    assert frames[0].pool == {}
    box = growing.growing_explorer(frames, pieces)
    seen = {box.controls.image.value}
    for index in range(1, 8):
        box.controls.step.value = index
        seen.add(box.controls.image.value)
        found = metrics.retrieval([frames[index].step])
        assert f"behind {len(frames[index].pool)} tokens" in box.controls.readout.value
        assert len(frames[index].drafted) - 1 == found["Dft"]
    assert len(seen) == 8


def test_a_frames_pool_is_the_one_its_candidates_came_from():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 20)
    for frame in frames:
        tree = frame.step.draft.tree
        candidates = tree.keep(range(frame.step.draft.candidate_rows))
        known = paths(frame.pool.get(tree.token_list[0], {}))
        assert {candidates.path_tokens(node) for node in range(1, len(candidates))} <= known


def test_the_first_frames_words_escape_the_text():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1], 2)
    _, words = growing.render(frames, 0, lambda tokens: ["<b>" for _ in tokens])
    assert "&lt;b&gt;" in words
    assert "<b>" not in words
