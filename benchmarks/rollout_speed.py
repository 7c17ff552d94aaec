"""What a frame costs at the released size, with our shortcuts and without, in one run on the same random weights.

.venv/bin/python benchmarks/rollout_speed.py

Plain is what the published evaluation does for every frame: a fresh prefill of the whole window by transformers'
``generate``, then a decoder that computes the context's features again. Ours keeps keys and values from step to
step and the context's features from frame to frame, and guesses the ids of a single row by what the frame before was
drawn from. How often that is right depends on the model: random weights say much the same whatever they have seen, so
that where all ids may be drawn it is right more often than of a trained model. So a second table counts right guesses
in dreams of the bundled drawer model. Prints both, with the limits of memory and arithmetic that it measures itself,
and writes benchmarks/results/rollout-speed.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig as HuggingFaceConfig
from transformers import LlamaForCausalLM

import rlvr_envs  # noqa: F401  registers the environments
from rlvr_envs.drawer_rules import drawer_task
from rlvr_envs.simulators.drawer import DrawerWorld
from rlvr_envs.simulators.drawer_env import act_in
from rlvr_envs.simulators.drawer_policies import make_policy
from training.provenance import weights_sha256
from training.report import Column, Report, Table, manifest
from training.statistics import bootstrap_mean
from worldmodels.api import History
from worldmodels.checkpoints import load
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.released import RT1_BINS
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel

LAYOUT = MultiStepLayout()
# The published transformer: 12 layers, 768 wide (127,101,696 parameters with this vocabulary).
TRANSFORMER = LlamaConfig(
    vocab_size=LAYOUT.vocab_size,
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    max_position_embeddings=LAYOUT.response.stop,
)
DRAWER = "drawer-rlvr"

COLUMNS = (
    Column(key="generate", title="ids, s"),
    Column(key="decode", title="picture, s"),
    Column(key="total", title="frame, s"),
    Column(key="ratio", title="times plain", digits=1),
    Column(key="right", title="ids guessed right, %", scale=100, digits=0),
    Column(key="memory_limit", title="reading the weights alone, s"),
    Column(key="products_limit", title="the picture's products alone, s"),
    Column(key="bandwidth", title="GB/s", digits=0),
    Column(key="gemm", title="G multiply-adds/s", digits=0),
)


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Best wall time of several runs."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Bytes per second of reading memory, and multiply-adds per second of a large matrix product."""
    big = torch.ones(1 << 26, dtype=torch.float32)
    read = big.numel() * 4 / seconds(lambda: big.sum(), 5)
    side = 2048
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    return read, side**3 / seconds(lambda: a @ b, 5)


def products_of_a_picture(tokenizer: CompressiveTokenizer) -> int:
    """Multiply-adds of decoding one frame whose context's features are known."""
    context = torch.zeros(1, LAYOUT.context_tokens, dtype=torch.int64)
    with torch.no_grad():
        _, features = tokenizer.decode_context(context)
        with FlopCounterMode(display=False) as counter:
            tokenizer.decode(features, context[:, : LAYOUT.dynamic_tokens])
    return counter.get_total_flops() // 2  # a multiply-add counts as two


def plain_frame(
    llama: LlamaForCausalLM, tokenizer: CompressiveTokenizer, window: torch.Tensor, context: torch.Tensor
) -> tuple[float, float]:
    """Seconds of generating 80 ids from scratch, and of decoding them from scratch."""
    started = time.perf_counter()
    with torch.no_grad():
        ids = llama.generate(
            window,
            attention_mask=torch.ones_like(window),
            max_new_tokens=LAYOUT.dynamic_tokens,
            min_new_tokens=LAYOUT.dynamic_tokens,
            do_sample=False,
            pad_token_id=0,
        )[:, window.shape[1] :]
    generated = time.perf_counter() - started
    started = time.perf_counter()
    _, features = tokenizer.decode_context(context)
    tokenizer.decode(features, ids.clamp(max=LAYOUT.dynamic_vocab - 1))
    return generated, time.perf_counter() - started


def our_frames(
    model: MultiStepWorldModel,
    frame: np.ndarray,
    frames: int,
    environments: int,
    temperature: float,
    *,
    guessing: bool = True,
) -> dict[str, float]:
    """Seconds of generating and of decoding one frame of every environment, and the share of right guesses."""
    state = model.start([History(observations=[frame])] * environments, seeds=range(environments))
    action = np.zeros((environments, LAYOUT.action_dim), np.float32)
    found: dict[str, list[float]] = {"generate": [], "decode": [], "right": []}
    for _ in range(frames + 1):  # the first also prefills the context and computes its features
        started = time.perf_counter()
        state, predictions = model.step(state, action, temperature=temperature)
        generated = time.perf_counter()
        predictions.observations()
        found["generate"].append((generated - started) / environments)
        found["decode"].append((time.perf_counter() - generated) / environments)
        if not guessing:
            state = replace(state, groups=(replace(state.groups[0], expected=None),))
        if (expected := state.groups[0].expected) is not None:
            found["right"].append(expected.right)
    return {name: float(np.mean(values[1:])) for name, values in found.items() if values}


def right_guesses(world: MultiStepWorldModel, episodes: int, steps: int) -> dict[str, dict[str, Any]]:
    """Share of ids guessed right in dreams of a drawer model, by behaviour and temperature."""
    env = gym.make("RLVRWorld/RT1-Drawer-v0", world_model=world)
    rows: dict[str, dict[str, Any]] = {}
    for behaviour in ("expert", "smooth"):
        for temperature in (1.0, 0.0):
            shares = []
            for seed in range(episodes):
                frame, info = env.reset(seed=seed)
                policy = make_policy(behaviour, drawer_task(info["task"]), np.random.default_rng(seed))
                truth = DrawerWorld()
                truth.reset(info["state"])
                state = world.start([History(observations=[frame])], seeds=[seed])
                found = []
                for _ in range(steps):
                    action = policy.act(truth.state())
                    act_in(truth, action)
                    state, _ = world.step(state, action[None].astype(np.float32), temperature=temperature)
                    found.append(state.groups[0].expected.right)
                shares.append(float(np.mean(found[1:])))
            name = f"{behaviour}, {'sampled' if temperature else 'greedy'}"
            rows[name] = {"right": bootstrap_mean(np.array(shares)), "episodes": episodes}
    return rows


def measured_rows(frames: int, environments: int, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of a frame in every way of making it, beside the machine's limits."""
    llama = Llama(TRANSFORMER, seed=seed).eval()
    tokenizer = CompressiveTokenizer(CompressiveTokenizerConfig(), seed=seed).eval()
    theirs = LlamaForCausalLM(HuggingFaceConfig(**TRANSFORMER.to_hf())).eval()
    theirs.load_state_dict(llama.state_dict())
    generator = np.random.default_rng(seed)
    frame = generator.integers(0, 256, (256, 320, 3), dtype=np.uint8)
    window = torch.from_numpy(generator.integers(0, LAYOUT.dynamic_vocab, (1, LAYOUT.prompt.stop)))
    weights = sum(parameter.numel() for parameter in llama.parameters())
    picture = products_of_a_picture(tokenizer)
    rates = {dtype: limits(dtype) for dtype in (torch.float32, torch.bfloat16)}

    def row(seconds: dict[str, float], count: int, dtype: torch.dtype) -> dict[str, Any]:
        read, products = rates[dtype]
        # A token reads all weights once, however many environments share it.
        memory = LAYOUT.dynamic_tokens * weights * dtype.itemsize / read
        return {
            **seconds,
            "total": seconds["generate"] + seconds["decode"],
            "memory_limit": memory / count,
            "products_limit": picture / products,
            "gemm": products / 1e9,
            "bandwidth": read / 1e9,
        }

    context = window[:, : LAYOUT.context_tokens]
    generating, decoding = np.mean(
        [plain_frame(theirs, tokenizer, window, context) for _ in range(frames)], axis=0
    ).tolist()
    plain = {"generate": generating, "decode": decoding}
    model = MultiStepWorldModel(tokenizer, llama, LAYOUT, RT1_BINS)
    half = model.in_bfloat16()
    few = MultiStepWorldModel(tokenizer, llama, LAYOUT, RT1_BINS, top_k=100).in_bfloat16()
    # On a processor without bfloat16 both stay in float32, and the rows say so.
    dtype = half.llama.lm_head.weight.dtype
    name = str(dtype).removeprefix("torch.")
    rows = {
        "plain, float32, greedy": row(plain, 1, torch.float32),
        "ours, float32, greedy": row(our_frames(model, frame, frames, 1, 0.0), 1, torch.float32),
        f"ours, {name}, sampled, nothing guessed": row(
            our_frames(half, frame, frames, 1, 1.0, guessing=False), 1, dtype
        ),
        f"ours, {name}, sampled": row(our_frames(half, frame, frames, 1, 1.0), 1, dtype),
        f"ours, {name}, sampled from 100 ids": row(our_frames(few, frame, frames, 1, 1.0), 1, dtype),
        f"ours, {name}, greedy": row(our_frames(half, frame, frames, 1, 0.0), 1, dtype),
        f"ours, {name}, sampled, {environments} environments, each": row(
            our_frames(half, frame, frames, environments, 1.0), environments, dtype
        ),
    }
    base = rows["plain, float32, greedy"]["total"]
    return {name: {**cells, "ratio": base / cells["total"]} for name, cells in rows.items()}


def main(
    frames: int = 4,
    threads: int = 2,
    environments: int = 4,
    episodes: int = 24,
    steps: int = 30,
    seed: int = 0,
    name: str = "rollout-speed",
) -> None:
    """Measure and print.

    Args:
        frames: Frames that a number is the mean of.
        threads: Threads of every row.
        environments: Environments of the batched row.
        episodes: Dreams of the bundled model in which right guesses are counted.
        steps: Frames of each.
        seed: Of the random weights.
        name: Of the results; another kind of machine gets another.
    """
    torch.set_num_threads(threads)
    table = Table(
        name="rollout-speed",
        title=f"One frame of 256 x 320 at the released size, {threads} threads",
        columns=COLUMNS,
        rows=measured_rows(frames, environments, seed),
        notes=(
            "random weights; mean over frames after the first, which prefills the context",
            "reading the weights alone: 80 tokens at the measured rate of reading memory, the least for unguessed ids",
            "products alone: those of one picture at the measured rate of a large matrix product",
        ),
    )
    world = load(DRAWER)
    assert isinstance(world, MultiStepWorldModel)
    guesses = Table(
        name="guesses",
        title="Ids of the bundled drawer model that were guessed right",
        columns=(
            Column(key="right", title="right, %", scale=100, digits=0),
            Column(key="episodes", title="dreams", digits=0),
        ),
        rows=right_guesses(world, episodes, steps),
        notes=("95 % bootstrap intervals over dreams; smooth: aimless motion",),
    )
    protocol = {
        "task": "rollout speed",
        "frames": frames,
        "threads": threads,
        "environments": environments,
        "episodes": episodes,
        "steps": steps,
        "seed": seed,
        "transformer": TRANSFORMER,
    }
    report = Report(
        name=name,
        tables=(table, guesses),
        manifest=manifest(protocol=protocol, weights={DRAWER: weights_sha256(world.llama)}, data={}),
    )
    report.show(Console(width=160))
    report.write()


if __name__ == "__main__":
    tyro.cli(main)
