#!/usr/bin/env python3
"""Compares the programs' speed with PyTorch's: the same model and batch sizes, on the same device, in turns.

    make bench-torch                        on a GPU if it finds one, else on the CPU
    make bench-torch PYTHON=/tmp/torch/bin/python3
    python3 tests/bench/bench_torch.py cuda --cases 8,6 --rounds 1          only these rows of CASES, in this order

The model below is that of common/transformer/model.h as a PyTorch user would write it: scaled_dot_product_attention,
fused AdamW, autocast for bf16. Attention is by cuDNN if it supports the shape, which on Hopper is about twice as fast as PyTorch's
default. A check in float comes first: the model gives the loss and gradients of the fixture in
tests/programs/huggingface. A program's time is the median step in its --metrics, PyTorch's the median of as many steps.
Both omit the first steps, which warm up and, with torch.compile, compile. The largest models come last: a GPU with too
little memory for them ends the comparison there. Needs torch 2.7 or later, numpy and safetensors.

In bf16 the computations differ. Autocast keeps the residual stream, LayerNorms and the loss in float, rotates q and k
in float, and rounds the weights in every micro-batch: it moves more bytes than the programs, and is more exact. A model
in pure bf16 has weights, gradients and AdamW's states in bf16 and no float copy: it moves fewer bytes, and trains worse
(02). The programs are in between, with bf16 activations and weights, but gradients, master weights and states in float.
"""
import argparse
import csv
import gc
import os
import statistics
import subprocess
import tempfile
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = os.path.dirname(os.path.abspath(__file__))
WARM_UP = 2
# by priority; PyTorch's default is FlashAttention 2 first, also on Hopper, for which it was not written
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

TINY = dict(layers=4, hidden=256, heads=4, vocab=256, seq=256, micro_batch=8, accumulate=1)
SMALL = dict(layers=12, hidden=768, heads=12, vocab=50304, seq=1024, micro_batch=4, accumulate=8)
LARGE = dict(layers=24, hidden=2048, heads=16, vocab=50304, seq=2048, micro_batch=2, accumulate=16)
ODD = SMALL | dict(vocab=50257)                     # GPT-2's: rows of logits are no multiple of 16 bytes
MORE_ROWS, MORE_ROWS_LARGE = SMALL | dict(micro_batch=16, accumulate=2), LARGE | dict(micro_batch=4, accumulate=8)

# program, its options, the model; PyTorch's numbers (float, TF32 in matmuls, autocast, bf16), whether it is compiled
CASES = {
    "cpu": [
        ("01_single_gpu", "", TINY, "float", False),
        ("01_single_gpu", "", TINY | dict(seq=1024, micro_batch=1), "float", False),
        ("01_single_gpu", "", SMALL | dict(seq=128, accumulate=1), "float", False),
    ],
    "cuda": [
        ("01_single_gpu", "--tf32 off", SMALL, "float", False),
        ("01_single_gpu", "", SMALL, "TF32", False),
        ("02_mixed_precision", "--dtype bf16", ODD, "autocast", False),
        ("02_mixed_precision", "--dtype bf16", SMALL, "autocast", False),
        ("08_fused_kernels", "--fuse all", SMALL, "autocast", True),
        ("08_fused_kernels", "--fuse all", MORE_ROWS, "bf16", True),
        ("08_fused_kernels", "--fuse all", LARGE, "autocast", True),
        ("08_fused_kernels", "--fuse all", MORE_ROWS_LARGE, "bf16", True),
    ],
}


def rotated(x, cos, sin):
    """Rotates each pair of elements (i, i + D/2) of x (..., T, D) by its position's angle."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x, cos, sin):
        B, T, H = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, self.heads, -1).transpose(1, 2).chunk(3, -1)     # (B, A, T, D)
        q, k = rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype)       # cos and sin: always float
        attn_out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attn_out.transpose(1, 2).reshape(B, T, H))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, seq):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.final = nn.LayerNorm(hidden)
        half = hidden // heads // 2
        angles = torch.outer(torch.arange(seq).double(), 10000.0 ** (-torch.arange(half).double() / half)).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, inputs, targets):
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.final(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def model_name(name):
    """Returns the name in Model of a parameter with this name in a checkpoint, which has Hugging Face's names."""
    for long, short in (("gpt_neox.", ""), ("embed_in", "embedding"), ("layers", "blocks"),
                        ("final_layer_norm", "final"), ("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"),
                        ("attention.query_key_value", "qkv"), ("attention.dense", "proj"),
                        ("mlp.dense_h_to_4h", "up"), ("mlp.dense_4h_to_h", "down")):
        name = name.replace(long, short)
    return name


def check(device):
    """Checks that the model gives the fixture's loss and gradients, in float."""
    def fixture(name):
        return load_file(os.path.join(HERE, "..", "programs", "huggingface", name))

    torch.set_float32_matmul_precision("highest")
    model = Model(layers=3, hidden=24, heads=3, vocab=97, seq=33)
    left = model.load_state_dict({model_name(name): x for name, x in fixture("checkpoint/model.safetensors").items()},
                                 strict=False)
    assert left.missing_keys == ["cos", "sin"] and set(left.unexpected_keys) <= {"embed_out.weight"}, left
    model.to(device)
    expected = fixture("expected_gradients.safetensors")
    loss = model(*(expected.pop("batch." + name).long().to(device) for name in ("inputs", "targets")))
    loss.backward()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    worst = max((gradients[model_name(name)] - x).abs().max() / x.abs().max() for name, x in expected.items())
    of_loss = abs(loss.item() / fixture("expected_logits.safetensors")["loss"].item() - 1)
    print(f"on the fixture, PyTorch's loss differs by {of_loss:.0e}, its gradients by {worst:.0e}: the same model")
    assert len(gradients) == len(expected) and worst <= 1e-4 and of_loss <= 1e-5


def program_seconds(program, options, shape):
    """Returns the median seconds of a program's step."""
    sizes = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in shape.items())
    with tempfile.NamedTemporaryFile(suffix=".csv") as f:
        subprocess.run([os.path.join(arguments.programs, program), *sizes.split(), *options.split(), "--quiet",
                        "--metrics", f.name, "--steps", str(WARM_UP + arguments.steps)], check=True)
        with open(f.name, encoding="ascii") as rows:
            return statistics.median(float(row["seconds"]) for row in list(csv.DictReader(rows))[WARM_UP:])


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def pytorch_seconds(device, shape, numbers, compiled):
    """Returns the median seconds of PyTorch's step. Each round creates a new model, as the program does."""
    torch.set_float32_matmul_precision("highest" if numbers == "float" else "high")
    batch, accumulate = shape["micro_batch"], shape["accumulate"]
    with torch.device(device):                      # draws the weights there: a CPU takes long for a billion
        model = Model(**{name: shape[name] for name in ("layers", "hidden", "heads", "vocab", "seq")})
    if numbers == "bf16":
        for p in model.parameters():
            p.data = p.data.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_of = torch.compile(model) if compiled else model
    tokens = torch.randint(shape["vocab"], (accumulate, batch, shape["seq"] + 1), device=device)
    times = []
    for _ in range(WARM_UP + arguments.steps):
        wait(device)
        begin = time.perf_counter()
        for m in range(accumulate):
            with (sdpa_kernel(CUDNN_FIRST, set_priority=True),
                  torch.autocast(device, torch.bfloat16, enabled=numbers == "autocast")):
                loss = step_of(tokens[m, :, :-1], tokens[m, :, 1:]) / accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


def print_row(model, program, tokens, how, pytorch_tokens, ratio):
    print(f"{model:<40} {program:<32} {tokens:>9}  {how:<18} {pytorch_tokens:>9}  {ratio:>5}", flush=True)


def compare(device, program, options, shape, numbers, compiled):
    """Prints a row with the medians of all rounds. What PyTorch still holds is freed for the program that runs next."""
    times = []
    for _ in range(arguments.rounds):
        times.append((program_seconds(program, options, shape),
                      pytorch_seconds(device, shape, numbers, compiled)))
        torch.compiler.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    program_step, pytorch_step = (statistics.median(t) for t in zip(*times))
    tokens = shape["micro_batch"] * shape["accumulate"] * shape["seq"]
    print_row(f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['micro_batch']} x {shape['seq']} tokens",
              f"{program} {options}", f"{tokens / program_step:,.0f}",
              f"{'compiled' if compiled else 'eager'}, {numbers}", f"{tokens / pytorch_step:,.0f}",
              f"{pytorch_step / program_step:.2f}")


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 on, got '{text}'")
    return int(text)


def parse():
    parser = argparse.ArgumentParser(description="The programs' speed beside PyTorch's.")
    parser.add_argument("device", choices=CASES)
    parser.add_argument("--cases", metavar="N,...", help="rows of the table to measure, in this order (all)")
    parser.add_argument("--rounds", type=positive, default=2, help="turns of program and PyTorch (2)")
    parser.add_argument("--steps", type=positive, default=6, help="steps timed in each, after two others (6)")
    parser.add_argument("--programs", metavar="DIR", help="where the programs are (build/cpu or build/cuda)")
    given = parser.parse_args()
    count = len(CASES[given.device])
    words = given.cases.split(",") if given.cases else [str(i + 1) for i in range(count)]
    for word in words:
        if not word.isdigit() or not 1 <= int(word) <= count:
            parser.error(f"--cases: expected numbers from 1 to {count}, got '{word}'")
    given.cases = [CASES[given.device][int(word) - 1] for word in words]
    given.programs = given.programs or os.path.join(HERE, "..", "..", "build", given.device)
    return parser, given


def main():
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has a GPU, but this PyTorch does not find it; PYTHON=... names another")
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}, "
          f"{torch.get_num_threads()} threads")
    check(device)
    print_row("", "program", "tokens/s", "PyTorch", "tokens/s", "ratio")
    for case in arguments.cases:
        compare(device, *case)


parser, arguments = parse()
main()
