"""The papers at their own scale: commands for their tables, and what these need of a GPU, computed and not measured.

``PLANS`` has a command for each table of speeds that this project can run on the papers' models, and ``needs`` says how
much memory it takes and how many minutes, by these formulas:

    memory    two bytes (bfloat16) for each parameter of target and draft, and for each number of a token in the cache.
    a forward over n nodes   the longer of two times. One is the time that the machine needs to start the kernels, as it
              was measured on an H100 for the embedded target, layer by layer (``data/results/gpu_prices.jsonl``). The
              other is the time to read all weights once, at the memory's bandwidth.
    a method  its forwards for a token, of target and draft, as they were counted with the embedded model.

Larger models are drafted for better or worse than the embedded one, prompts are read first, and the time between the
forwards is left out: an estimate tells an hour from a day, no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from study import experiments, prices
from study.weights import PAIR

BANDWIDTH = 3.35e12  # bytes a second that an H100 (80 GB, SXM) reads of its memory, by its data sheet
BYTES = 2  # of a number in bfloat16
PREFIX = 500  # tokens of a prompt, for which the cache needs room besides the new ones
DRAFTED = 32_000  # tokens that published EAGLE-3 heads draft


def _llama(vocabulary: int, width: int, between: int, layers: int, heads: int, shared: int, **more: object) -> dict:
    """Settings of a configuration. between: width between the MLP's products. shared: heads of keys and values."""
    return {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": between,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": shared,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _qwen2(*sizes: int, tied: bool = False) -> dict:
    return _llama(*sizes) | {"model_type": "qwen2", "tie_word_embeddings": tied}


def _pythia(width: int, layers: int, heads: int) -> dict:
    return _llama(50304, width, 4 * width, layers, heads, heads) | {"model_type": "gpt_neox"}


# The models of the papers by the names that PAIRS has for them, or their names on the hub.
SHAPES: dict[str, dict] = {
    "smollm2-135m": _llama(49152, 576, 1536, 30, 9, 3, tie_word_embeddings=True),
    "meta-llama/Llama-2-7b-chat-hf": _llama(32000, 4096, 11008, 32, 32, 32),
    "meta-llama/Llama-2-13b-chat-hf": _llama(32000, 5120, 13824, 40, 40, 40),
    "lmsys/vicuna-7b-v1.3": _llama(32000, 4096, 11008, 32, 32, 32),
    "JackFram/llama-68m": _llama(32000, 768, 3072, 2, 12, 12),
    "double7/vicuna-68m": _llama(32000, 768, 3072, 2, 12, 12),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(128256, 4096, 14336, 32, 32, 8),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _llama(128256, 4096, 14336, 32, 32, 8),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(128256, 2048, 8192, 16, 32, 8, head_dim=64, tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(152064, 3584, 18944, 28, 28, 4),
    "Qwen/Qwen2.5-14B-Instruct": _qwen2(152064, 5120, 13824, 48, 40, 8),
    "Qwen/Qwen2.5-32B-Instruct": _qwen2(152064, 5120, 27648, 64, 40, 8),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(151936, 896, 4864, 24, 14, 2, tied=True),
    "EleutherAI/pythia-2.8b": _pythia(2560, 32, 32),
    "EleutherAI/pythia-70m": _pythia(512, 6, 8),
}


@cache
def parameters(model: str, layers: int | None = None) -> int:
    """The number of a model's parameters, by its configuration. layers: as if it had so many; None for its own."""
    shape = SHAPES[model] if layers is None else {**SHAPES[model], "num_hidden_layers": layers}
    with torch.device("meta"):  # shapes without numbers: takes no memory
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape))
    return sum(weight.numel() for weight in made.parameters())


def head_parameters(model: str, kind: str) -> int:
    """The number of parameters of a published head for a model, without the embedding, which the target lends.

    An EAGLE head has one layer of the target, and a matrix from embedding and state to a row. An EAGLE-3 head has a
    matrix from three states to one, a layer whose queries, keys and values read two rows, and its own output rows.

    kind: "eagle" (also of HASS) or "eagle3".
    """
    shape = SHAPES[model]
    width = shape["hidden_size"]
    layer = parameters(model, 2) - parameters(model, 1)
    if kind == "eagle":
        return layer + 2 * width * width
    heads_read = shape["num_attention_heads"] + 2 * shape["num_key_value_heads"]
    wider = heads_read * (width // shape["num_attention_heads"]) * width
    return layer + wider + 3 * width * width + DRAFTED * width


def cache_bytes(model: str) -> int:
    """Bytes that a token takes in a model's cache: a key and a value for each layer."""
    shape = SHAPES[model]
    size = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    return BYTES * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * size


# ---- seconds ------------------------------------------------------------------------------------------------------


@cache
def _measured(name: str, graphs: bool) -> dict[int, float]:
    """Seconds of forwards by their nodes, measured on an H100. name: "target" (the embedded one), or a head's."""
    rows = experiments.recorded(experiments.GPU_PRICES)
    part = rows[(rows["model"] == name) & (rows["graphs"] == graphs)]
    return part.set_index("nodes")["median"].to_dict()


def model_seconds(model: str, graphs: bool = False) -> dict[int, float]:
    """Estimated seconds of a model's forwards by their nodes, on an H100."""
    reading = BYTES * parameters(model) / BANDWIDTH
    share = SHAPES[model]["num_hidden_layers"] / SHAPES["smollm2-135m"]["num_hidden_layers"]
    return {nodes: max(share * seconds, reading) for nodes, seconds in _measured("target", graphs).items()}


def head_seconds(model: str, kind: str, graphs: bool = False) -> dict[int, float]:
    """Estimated seconds of a head's forwards by their nodes, on an H100."""
    output_rows = 0 if kind == "eagle3" else SHAPES[model]["vocab_size"] * SHAPES[model]["hidden_size"]
    reading = BYTES * (head_parameters(model, kind) + output_rows) / BANDWIDTH
    return {nodes: max(seconds, reading) for nodes, seconds in _measured("hass", graphs).items()}


# ---- what is asked ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A command for a table of a paper, and the recording whose counts of forwards its minutes are estimated from.

    table:    of which paper it has rows.
    pair:     as the command takes it. target, draft: its models, names of SHAPES; draft is "" if it has none.
    methods:  names of methods.
    recorded: the experiment that has the same methods, on the embedded model.
    prompts, tokens, temperature, repetitions: of the command. count: how many prompts these are.
    head:     as the command takes it: a published head, "pair" for the pair's own draft model, or "".
    kind:     of a published head: "eagle" or "eagle3"; "" for none.
    more:     further words of the command.
    """

    table: str
    pair: str
    target: str
    methods: Sequence[str]
    recorded: experiments.Experiment
    prompts: str
    count: int
    tokens: int
    draft: str = ""
    head: str = ""
    kind: str = ""
    temperature: float = 0.0
    repetitions: int = 1
    more: Sequence[str] = ("--dtype", "bfloat16")

    def command(self, out: str) -> str:
        """The command in a line, as it is typed. out: its file, without a suffix."""
        quoted = [f"'{name}'" if " " in name else name for name in self.methods]
        words = ["python -m study race", *quoted, "--pair", self.pair]
        if self.head:
            words += ["--head", self.head]
        if self.temperature:
            words += ["--temperature", f"{self.temperature:g}"]
        if self.repetitions > 1:
            words += ["--repetitions", str(self.repetitions)]
        words += ["--prompts", self.prompts, "--tokens", str(self.tokens), *self.more, "--out", out]
        return " ".join(words)

    def gigabytes(self) -> float:
        """Estimated gigabytes (10⁹ bytes) of weights and caches in bfloat16, or in another dtype of two bytes."""
        loaded = [self.target, self.draft] if self.draft else [self.target]
        weights = sum(parameters(name) for name in loaded)
        if self.kind:
            weights += head_parameters(self.target, self.kind)
        caches = sum(cache_bytes(name) for name in loaded) * (PREFIX + self.tokens)
        return (BYTES * weights + caches) / 1e9

    def minutes(self) -> float:
        """Estimated minutes on an H100, without graphs; loading, warming up and reading prompts are left out."""
        target = model_seconds(self.target)
        draft: dict[int, float] = {}
        if self.kind:
            draft = head_seconds(self.target, self.kind)
        elif self.draft:
            draft = model_seconds(self.draft)
        runs = experiments.recorded(self.recorded)
        per_token = 0.0  # seconds for a token of every method
        for name in self.methods:
            of_method = runs[(runs["method"] == name) & (runs["status"] == "ok")]
            verified = sum(prices.seconds(trees, target) for trees in of_method["trees"])
            drafted = sum(prices.seconds(sizes, draft) for sizes in of_method["frontiers"] if sizes)
            per_token += (verified + drafted) / of_method["tokens"].sum()
        return self.count * self.repetitions * self.tokens * per_token / 60


LLAMA2 = {"pair": "llama2-7b", "target": "meta-llama/Llama-2-7b-chat-hf", "draft": "JackFram/llama-68m"}
LLAMA3 = {
    "pair": "llama3.1-8b", "target": "meta-llama/Llama-3.1-8B-Instruct", "draft": "meta-llama/Llama-3.2-1B-Instruct",
}  # fmt: skip
DEEPSEEK = {"pair": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "target": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"}
QWEN = {"target": "Qwen/Qwen2.5-7B-Instruct", "draft": "Qwen/Qwen2.5-0.5B-Instruct", "pair": "qwen2.5-7b"}
QWEN_32B = {"target": "Qwen/Qwen2.5-32B-Instruct", "draft": "Qwen/Qwen2.5-0.5B-Instruct", "pair": "qwen2.5-32b"}
PYTHIA = {"pair": "pythia-2.8b", "target": "EleutherAI/pythia-2.8b", "draft": "EleutherAI/pythia-70m"}

OWN = {"prompts": "own:5-10", "count": 36, "tokens": 256}
MATHEMATICS = {"prompts": "gsm100", "count": 100, "tokens": 256}

PTD = ("generate", "lookahead", "self-draft", "ptd")
PTD_AND_DRAFT = ("generate", "vdm-chain-5", "lookahead", "self-draft", "ptd")
VERIFIERS = (
    "generate", "hass-chain-5 iid, token-level", "hass-chain-5 iid, traversal", "hass-binary-5 swor, rrsw",
    "hass-binary-5 swor, traversal", "hass-sparse swor, rrsw", "hass-sparse swor, traversal",
)  # fmt: skip
DYNATREE = ("generate", "assistant", "vdm-chain-6", "vdm-chain-6, window 1024", "vdm-dynatree")
EDD = ("generate", "eagle-chain-5", "edd-eagle2-50", "edd-pct at .061")
EAGLE_60 = ("generate", "eagle-beam-60", "eagle-optimal-60", "eagle-salf-60")
HASS_60 = ("generate", "hass-beam-60", "hass-optimal-60", "hass-salf-60")

PLANS: dict[str, Plan] = {
    "ptd_qwen": Plan("PTD, Tables 3 and 4", methods=PTD, recorded=experiments.PTD_SPEED, **QWEN, **MATHEMATICS),
    "ptd_qwen_sampled": Plan(
        "PTD, Tables 1 and 2", methods=PTD, recorded=experiments.PTD_SAMPLED, temperature=0.5, **QWEN, **MATHEMATICS
    ),
    "ptd_qwen_32b": Plan(
        "PTD, Tables 3 and 4", methods=PTD, recorded=experiments.PTD_SPEED, **QWEN_32B, **MATHEMATICS
    ),
    "ptd_llama": Plan(
        "PTD, Tables 3 and 4", methods=PTD_AND_DRAFT, recorded=experiments.PTD_SPEED, head=PAIR, **LLAMA2, **MATHEMATICS
    ),
    "traversal_llama3": Plan(
        "Traversal, Table 2", methods=VERIFIERS, recorded=experiments.TRAVERSAL_RACE, head=PAIR, temperature=1,
        repetitions=3, **LLAMA3, **OWN,
    ),
    "traversal_llama2": Plan(
        "Traversal, Table 3", methods=VERIFIERS, recorded=experiments.TRAVERSAL_RACE, head=PAIR, temperature=1,
        repetitions=3, **LLAMA2, **OWN,
    ),
    "dynatree": Plan(
        "DynaTree, Table 1", methods=DYNATREE, recorded=experiments.DYNATREE, head=PAIR, prompts="dynatree", count=1,
        tokens=500, repetitions=5, more=("--whole", "--dtype", "float16"), **PYTHIA,
    ),
    "edd_llama2": Plan(
        "EDD, Tables 1 and 2, on EAGLE", methods=EDD, recorded=experiments.EDD, head="yuhuili/EAGLE-llama2-chat-7B",
        kind="eagle", **LLAMA2, **OWN,
    ),
    "salf_llama2": Plan(
        "SALF, Table 1, EAGLE", methods=EAGLE_60, recorded=experiments.SALF, head="yuhuili/EAGLE-llama2-chat-7B",
        kind="eagle", **LLAMA2, **OWN,
    ),
    "salf_llama2_hass": Plan(
        "SALF, Table 1, HASS", methods=HASS_60, recorded=experiments.SALF, head="HArmonizedSS/HASS-LLaMA2-Chat-7B",
        kind="eagle", **LLAMA2, **OWN,
    ),
    "salf_llama3": Plan(
        "SALF, Table 1, EAGLE", methods=EAGLE_60, recorded=experiments.SALF, head="yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        kind="eagle", **LLAMA3, **OWN,
    ),
    "salf_llama3_eagle3": Plan(
        "SALF, Table 1, with EAGLE-3", methods=EAGLE_60, recorded=experiments.SALF,
        head="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", kind="eagle3", **LLAMA3, **OWN,
    ),
    "salf_deepseek_eagle3": Plan(
        "SALF, Table 2, with EAGLE-3", methods=EAGLE_60, recorded=experiments.SALF,
        head="yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", kind="eagle3", **DEEPSEEK, **OWN,
    ),
}  # fmt: skip


def needs() -> pd.DataFrame:
    """What each plan needs, estimated: one row per plan, with the columns table, GB and minutes."""
    rows = {}
    for name, plan in PLANS.items():
        rows[name] = {"table": plan.table, "GB": round(plan.gigabytes(), 1), "minutes": round(plan.minutes())}
    return pd.DataFrame.from_dict(rows, orient="index")
