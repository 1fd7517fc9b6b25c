#!/usr/bin/env python3
"""PyTorch's speed beside ours: the same model, the same batches, on the same device, in turns.

    make bench-torch                        on a GPU if one answers, else on the CPU
    make bench-torch PYTHON=/tmp/torch/bin/python3

The model below is ours (common/model.h) as a PyTorch user would write it: scaled_dot_product_attention, fused AdamW,
autocast for bf16. Attention is cuDNN's where that can do it, which on Hopper is about twice as fast as what PyTorch
takes by itself; the table of attention has both. That the model is the same one is shown first, in float: loss and
gradients of the fixture in tests/programs/huggingface. Ours is the median step of a program's --metrics, PyTorch's the
median of as many; both without their first ones, which warm up and, with torch.compile, compile. Needs torch from 2.7
on, numpy and safetensors.

In bf16 the two don't do the same. Autocast keeps the residual stream, LayerNorms and the loss in float, turns q and k
in float, and rounds the weights anew in every micro-batch: it moves more bytes than ours, and more exactly. A model
that is all bf16 has its weights, their gradients and AdamW's states in bf16 too, and no float copy: it moves fewer, and
trains worse (02). Ours, with bf16 activations and weights, float sums of gradients, master weights and states, is in
between.
"""
import contextlib
import csv
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build")
WARM_UP, TIMED, ROUNDS = 2, 6, 2
# the first that can: PyTorch by itself puts FlashAttention 2 first, also on Hopper, for which it isn't written
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

TINY = dict(layers=4, hidden=256, heads=4, vocab=256, seq=256, micro_batch=8, accumulate=1)
SMALL = dict(layers=12, hidden=768, heads=12, vocab=50304, seq=1024, micro_batch=4, accumulate=8)
LARGE = dict(layers=24, hidden=2048, heads=16, vocab=50304, seq=2048, micro_batch=2, accumulate=16)
ODD = SMALL | dict(vocab=50257)                     # GPT-2's: rows of logits that are no multiples of 16 bytes

# our program, its options, the model; PyTorch's numbers (float, TF32 in matmuls, autocast, bf16), and if it is compiled
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
        ("08_fused_kernels", "--fuse all", SMALL, "bf16", True),
        ("08_fused_kernels", "--fuse all", LARGE, "autocast", True),
        ("08_fused_kernels", "--fuse all", LARGE, "bf16", True),
    ],
}


def rotated(x, cos, sin):
    """(..., T, D): each pair of elements (i, i + D/2) turned by its position's angle."""
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
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).reshape(B, T, H))
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


def our_name(name):
    """This model's name of a parameter; checkpoints have Hugging Face's."""
    for long, short in (("gpt_neox.", ""), ("embed_in", "embedding"), ("layers", "blocks"),
                        ("final_layer_norm", "final"), ("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"),
                        ("attention.query_key_value", "qkv"), ("attention.dense", "proj"),
                        ("mlp.dense_h_to_4h", "up"), ("mlp.dense_4h_to_h", "down")):
        name = name.replace(long, short)
    return name


def check(device):
    """That the model gives the fixture's loss and gradients, in float."""
    def fixture(name):
        return load_file(os.path.join(HERE, "..", "programs", "huggingface", name))

    torch.set_float32_matmul_precision("highest")
    model = Model(layers=3, hidden=24, heads=3, vocab=97, seq=33)
    left = model.load_state_dict({our_name(name): x for name, x in fixture("checkpoint/model.safetensors").items()},
                                 strict=False)
    assert left.missing_keys == ["cos", "sin"] and set(left.unexpected_keys) <= {"embed_out.weight"}, left
    model.to(device)
    expected = fixture("expected_gradients.safetensors")
    loss = model(*(expected.pop("batch." + part).long().to(device) for part in ("inputs", "targets")))
    loss.backward()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    worst = max((gradients[our_name(name)] - x).abs().max() / x.abs().max() for name, x in expected.items())
    of_loss = abs(loss.item() / fixture("expected_logits.safetensors")["loss"].item() - 1)
    print(f"the same model: on the fixture PyTorch's loss is ours to {of_loss:.0e}, its gradients to {worst:.0e}")
    assert len(gradients) == len(expected) and worst <= 1e-4 and of_loss <= 1e-5


def ours(device, program, options, shape):
    """Seconds of a step."""
    sizes = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in shape.items())
    with tempfile.NamedTemporaryFile(suffix=".csv") as f:
        subprocess.run([os.path.join(BUILD, device, program), *sizes.split(), *options.split(), "--quiet", "--metrics",
                        f.name, "--steps", str(WARM_UP + TIMED)], check=True, cwd=os.path.dirname(BUILD))
        with open(f.name, encoding="ascii") as rows:
            return statistics.median(float(row["seconds"]) for row in list(csv.DictReader(rows))[WARM_UP:])


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def theirs(device, shape, numbers, compiled):
    """Seconds of a step; each round builds the model anew, as our program does."""
    torch.set_float32_matmul_precision("highest" if numbers == "float" else "high")
    batch, accumulate = shape["micro_batch"], shape["accumulate"]
    with torch.device(device):                      # its weights are drawn there: a CPU takes long for a billion
        model = Model(**{name: shape[name] for name in ("layers", "hidden", "heads", "vocab", "seq")})
    if numbers == "bf16":
        for p in model.parameters():
            p.data = p.data.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_of = torch.compile(model) if compiled else model
    tokens = torch.randint(shape["vocab"], (accumulate, batch, shape["seq"] + 1), device=device)
    times = []
    for _ in range(WARM_UP + TIMED):
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


def free(device):
    """What PyTorch still holds: our program is next, and may need all of the memory."""
    if device == "cuda":
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def print_row(model, program, tokens, how, their_tokens, ratio):
    print(f"{model:<40} {program:<32} {tokens:>9}  {how:<18} {their_tokens:>9}  {ratio:>5}", flush=True)


def if_possible(work, device, *arguments):
    """None: this machine can't (a GPU without bf16, or with too little memory), and why has been printed."""
    try:
        return work(device, *arguments)
    except subprocess.CalledProcessError:           # our program has said why
        return None
    except torch.cuda.OutOfMemoryError as error:
        print(f"PyTorch: {str(error).split('. ', maxsplit=1)[0]}", file=sys.stderr)
        return None
    finally:
        free(device)


def compare(device, program, options, shape, numbers, compiled):
    """A row: the medians of all rounds; "-" for what can't run here, which isn't tried again."""
    times = []
    for _ in range(ROUNDS):
        times.append((if_possible(ours, device, program, options, shape),
                      if_possible(theirs, device, shape, numbers, compiled)))
        if None in times[-1]:
            break
    our_seconds, their_seconds = (None if None in t else statistics.median(t) for t in zip(*times))
    tokens = shape["micro_batch"] * shape["accumulate"] * shape["seq"]
    print_row(f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['micro_batch']} x {shape['seq']} tokens",
              f"{program} {options}", f"{tokens / our_seconds:,.0f}" if our_seconds else "-",
              f"{'compiled' if compiled else 'eager'}, {numbers}",
              f"{tokens / their_seconds:,.0f}" if their_seconds else "-",
              f"{their_seconds / our_seconds:.2f}" if our_seconds and their_seconds else "-")


def seconds_of(work):
    """Of the best of several, by the GPU's clock. Each has another one before it, as in bench_cuda.c: while the GPU
    works on that, Python queues what is timed."""
    best = float("inf")
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best


def print_attention_row(device, dtype, matmul, head, seq):
    q, k, v = (torch.randn(16384 // seq, 2048 // head, seq, head, device=device, dtype=dtype, requires_grad=True)
               for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    flops = 2 * 16384 * seq * 2048
    forward = flops / seconds_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    backward = 2.5 * flops / seconds_of(lambda: torch.autograd.grad(out, (q, k, v), out, retain_graph=True))
    print(f"    heads of {head:3}, {seq:5} tokens: forward {forward / 1e12:6.1f} TFLOP/s, "
          f"{100 * forward / matmul:3.0f}% of the matmul's; backward {backward / 1e12:6.1f}, "
          f"{100 * backward / matmul:3.0f}%", flush=True)


def print_attention(device):
    """As bench_cuda prints our FlashAttention: 16,384 tokens, hidden 2048; FLOPs of the pairs that the mask leaves."""
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    a, b = (torch.randn(8192, 8192, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * 8192 ** 3 / seconds_of(lambda: a @ b)
    print(f"scaled_dot_product_attention in {dtype}, 16384 tokens, hidden 2048; a matmul of 8192 by 8192: "
          f"{matmul / 1e12:.1f} TFLOP/s")
    for name, order in ("cuDNN's where it can", CUDNN_FIRST), ("what PyTorch takes by itself", None):
        print(f"  {name}:")
        with sdpa_kernel(order, set_priority=True) if order else contextlib.nullcontext():
            for head in 64, 128:
                for seq in 1024, 4096, 16384:
                    if_possible(print_attention_row, device, dtype, matmul, head, seq)


def main():
    device = sys.argv[1]
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("a GPU answers, but this PyTorch doesn't see it; PYTHON=... names another")
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}, "
          f"{torch.get_num_threads()} threads")
    check(device)
    if device == "cuda":                            # seconds; what is below takes minutes
        if_possible(print_attention, device)
    print_row("", "ours", "tokens/s", "PyTorch", "tokens/s", "ratio")
    for case in CASES[device]:
        compare(device, *case)


main()
