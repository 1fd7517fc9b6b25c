#!/usr/bin/env python3
"""Runs the PyTorch that stands beside C in the chapters' READMEs, in float64, and compares it with autograd on one
device. It needs PyTorch with gloo, and no GPU:

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    /tmp/torch/bin/python tests/programs/pytorch/beside.py

Each check executes the first ```python block of its chapter, with the names that the block uses but does not define,
on as many processes as it has ranks.
"""
import math
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

ROOT = Path(__file__).resolve().parents[3]


def run_block(chapter, **names):
    """Executes the block; returns all names after it."""
    readme = next(ROOT.glob(f"{chapter:02}_*/README.md")).read_text()
    names.update(torch=torch, dist=dist, math=math, F=F)
    exec(re.search(r"^```python\n(.*?)^```$", readme, re.M | re.S)[1], names)
    return SimpleNamespace(**names)


def equal(what, a, b):
    error = ((a - b).abs().max() / b.abs().max()).item()
    if not error < 1e-12:
        sys.exit(f"{what}: differs by {error:.1e}")


def numbers(*shape, seed=0):
    """The same random numbers on every rank, in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradient_of(function):
    """The backward of an operator: (gradient of the output, inputs...) -> gradient of the first input. Gradients of
    parameters are added up in g, as the C operators do."""
    def backward(d_out, x, w=None, g=None):
        x = x.detach().requires_grad_()
        inputs = [x] if w is None else [x, w.weight, w.bias]
        d = torch.autograd.grad(function(*inputs), inputs, d_out)
        if w is not None:
            g.weight += d[1]
            g.bias += d[2]
        return d[0]
    return backward


def causal_attention(heads):
    def attention(qkv):
        q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
    return attention


def block_backward(rank):
    s, h, heads = 7, 12, 3
    sizes = {"ln1": (h,), "qkv": (3 * h, h), "proj": (h, h), "ln2": (h,), "up": (4 * h, h), "down": (h, 4 * h)}
    w = {name: SimpleNamespace(weight=numbers(*size, seed=i).requires_grad_(),
                               bias=numbers(size[0], seed=9 + i).requires_grad_())
         for i, (name, size) in enumerate(sizes.items())}
    g = {name: SimpleNamespace(weight=torch.zeros_like(p.weight), bias=torch.zeros_like(p.bias))
         for name, p in w.items()}

    def norm(x, weight, bias):
        return F.layer_norm(x, (h,), weight, bias)
    attention, a = causal_attention(heads), SimpleNamespace()
    a.x = numbers(s, h, seed=50).requires_grad_()
    a.ln1 = norm(a.x, w["ln1"].weight, w["ln1"].bias)
    a.qkv = F.linear(a.ln1, w["qkv"].weight, w["qkv"].bias)
    a.attn_out = attention(a.qkv)
    a.mid = a.x + F.linear(a.attn_out, w["proj"].weight, w["proj"].bias)
    a.ln2 = norm(a.mid, w["ln2"].weight, w["ln2"].bias)
    a.up = F.linear(a.ln2, w["up"].weight, w["up"].bias)
    a.gelu = F.gelu(a.up)
    out, d_out = a.mid + F.linear(a.gelu, w["down"].weight, w["down"].bias), numbers(s, h, seed=51)
    block = run_block(1, gelu_backward=gradient_of(F.gelu), layernorm_backward=gradient_of(norm),
                      attention_backward=gradient_of(attention))

    expected = torch.autograd.grad(out, [a.x] + [p for x in w.values() for p in (x.weight, x.bias)], d_out)
    saved = SimpleNamespace(**{name: tensor.detach() for name, tensor in vars(a).items()})
    d_x = block.block_backward(SimpleNamespace(**w), SimpleNamespace(**g), saved, d_out)
    own = [d_x] + [p.detach() for x in g.values() for p in (x.weight, x.bias)]
    for i, (b, c) in enumerate(zip(own, expected)):
        equal(f"01: gradient {i}", b, c)


def data_parallel(rank):
    n = dist.get_world_size()
    inputs, targets = numbers(6 * n, 5), torch.arange(6 * n) % 4

    def net():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
    whole, model = net(), net()
    F.cross_entropy(whole(inputs), targets).backward()
    own = slice(6 * rank, 6 * rank + 6)
    run_block(3, model=model, inputs=inputs[own], targets=targets[own], global_tokens=6 * n)
    for a, b in zip(model.parameters(), whole.parameters()):
        equal("03: a gradient", a.grad, b.grad)


def tensor_parallel(rank):
    t, h = dist.get_world_size(), 6
    x, d_out = numbers(5, h).requires_grad_(), numbers(5, h, seed=1)
    up, down, bias = (numbers(*s, seed=2 + i).requires_grad_() for i, s in enumerate([(4 * h, h), (h, 4 * h), (h,)]))
    out = F.linear(F.gelu(x @ up.T), down, bias)
    d = torch.autograd.grad(out, [x, up, down, bias], d_out)
    columns = slice(4 * h * rank // t, 4 * h * (rank + 1) // t)
    mine = [p.detach().requires_grad_() for p in (x, up[columns], down[:, columns], bias)]
    mlp = run_block(5, up=mine[1], down=mine[2], down_bias=mine[3]).mlp
    equal("05: the output", mlp(mine[0]), out)
    for a, b in zip(torch.autograd.grad(mlp(mine[0]), mine, d_out), (d[0], d[1][columns], d[2][:, columns], d[3])):
        equal("05: a gradient", a, b)


def pipeline(rank):
    p, m, rows, hidden = dist.get_world_size(), 6, 3, 4
    first, last = rank == 0, rank == p - 1
    weights = [numbers(hidden, hidden, seed=i).requires_grad_() for i in range(p)]
    inputs = numbers(m, rows, hidden, seed=9)
    warmup = min(p - rank - 1, m)                           # 1F1B
    schedule = [("F", i) for i in range(warmup)]
    for i in range(m):
        schedule += [("F", warmup + i)] if warmup + i < m else []
        schedule += [("B", i)]
    x = inputs
    for w in weights:
        x = torch.tanh(x @ w)
    (x ** 2).sum().backward()
    expected, weights[rank].grad = weights[rank].grad, None
    run_block(6, x={}, out={}, schedule=schedule, first=first, last=last, rank=rank, rows=rows, hidden=hidden,
              embed=lambda i: inputs[i], stage=lambda x: torch.tanh(x @ weights[rank]),
              loss=lambda x, i: (x ** 2).sum())
    equal("06: a stage's gradient", weights[rank].grad, expected)


def ring(rank):
    n, heads, s, width = dist.get_world_size(), 2, 4, 3
    q, k, v = numbers(3, heads, n * s, width)
    own = slice(rank * s, rank * s + s)
    mask = torch.ones(s, s, dtype=torch.bool).triu(1)
    names = run_block(7, n=n, rank=rank, causal_mask=mask, no_mask=torch.zeros_like(mask))
    out = names.ring_forward(q[:, own], torch.stack([k[:, own], v[:, own]]))
    equal("07: the output", out, F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, own])


def online_softmax(rank):
    q, k, v = numbers(3, 10, 6)
    out, lse = run_block(8).attention(q, k, v, 4)
    equal("08: the output", out, F.scaled_dot_product_attention(q, k, v))
    equal("08: lse", lse.squeeze(-1), (q @ k.T / math.sqrt(6)).logsumexp(-1))


def router(rank):
    s, h, e, C = 20, 6, 5, 6
    y, weight = numbers(s, h), numbers(e, h, seed=1)
    for k in (1, 2, 3):
        gates, experts, slot = run_block(10, k=k, e=e, C=C).route(y, weight)
        loads = [0] * e
        for token in range(s):                              # as choose and route_forward do
            p = (weight @ y[token]).softmax(0)
            best = sorted(range(e), key=lambda i: (-p[i], i))[:k]
            total = sum(p[i] for i in best) if k > 1 else 1
            for j, i in enumerate(best):
                place = loads[i] if loads[i] < C else -1
                loads[i] += 1
                if (experts[token, j], slot[token, j]) != (i, place) or abs(gates[token, j] - p[i] / total) > 1e-12:
                    sys.exit(f"10: k {k}, token {token}, choice {j}: expert {experts[token, j]}, slot {slot[token, j]}; "
                             f"expected {i}, {place}")
        assert any(load > C for load in loads), "no choice was dropped"


def place(rank, *sizes):
    """The coordinates of a rank, the last one varying fastest."""
    out = []
    for size in reversed(sizes):
        out.insert(0, rank % size)
        rank //= size
    return out


def same(what, group, expected):
    if dist.get_process_group_ranks(group) != expected:
        sys.exit(f"{what}: ranks {dist.get_process_group_ranks(group)}; expected {expected}")


def grid(rank):
    for dp, pp, cp, tp in (2, 2, 2, 1), (2, 1, 2, 2), (1, 2, 2, 2):     # each pair of axes is 2 x 2 in one of them
        names = run_block(9, init_device_mesh=init_device_mesh, device="cpu", dp=dp, pp=pp, cp=cp, tp=tp)
        own = place(rank, dp, pp, cp, tp)
        for what, group, varies in (("tp", names.tp_group, {3}), ("cp", names.cp_group, {2}),
                                    ("pp", names.pp_group, {1}), ("replicas", names.replicas, {0, 2})):
            same(f"09: {what}", group, [r for r in range(8) if all(x == y or i in varies for i, (x, y)
                                                                   in enumerate(zip(place(r, dp, pp, cp, tp), own)))])


def folded(rank):
    dp, pp, cp, tp, ep = 2, 2, 1, 2, 2
    names = run_block(11, DeviceMesh=DeviceMesh, device="cpu", world=8, dp=dp, pp=pp, cp=cp, tp=tp, ep=ep)

    def in_stage(r):                            # grid of 11: tp fastest, then cp, then dp
        d, _, c, t = place(r, dp, pp, cp, tp)
        return (d * cp + c) * tp + t
    stage = [r for r in range(8) if place(r, dp, pp, cp, tp)[1] == place(rank, dp, pp, cp, tp)[1]]
    same("11: ep", names.experts.get_group("ep"), [r for r in stage if in_stage(r) // ep == in_stage(rank) // ep])
    same("11: edp", names.experts.get_group("edp"), [r for r in stage if in_stage(r) % ep == in_stage(rank) % ep])
    same("11: tp", names.attention.get_group("tp"), [r for r in stage if r // tp == rank // tp])


def llama(rank):
    b, s, h, a, K, f, eps = 2, 5, 12, 6, 2, 10, 1e-5
    D = h // a
    sizes = {"ln1": (h,), "qkv": ((a + 2 * K) * D, h), "proj": (h, h), "ln2": (h,), "gate": (f, h), "up": (f, h),
             "down": (h, f)}
    w = SimpleNamespace(**{name: numbers(*size, seed=i) for i, (name, size) in enumerate(sizes.items())})
    x = numbers(b, s, h, seed=20)

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    out = run_block(12, h=h, a=a, K=K, D=D, eps=eps, rope=lambda x: x.flip(-1)).block(x, w)
    q, k, v = (norm(x, w.ln1) @ w.qkv.T).split([a * D, K * D, K * D], -1)
    heads = []
    for i in range(a):                          # head i of q reads KV head i / (a / K)
        j = i // (a // K)
        scores = q[..., i * D:i * D + D].flip(-1) @ k[..., j * D:j * D + D].flip(-1).mT / math.sqrt(D)
        mask = torch.ones(s, s, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(mask, -math.inf).softmax(-1) @ v[..., j * D:j * D + D])
    mid = x + torch.cat(heads, -1) @ w.proj.T
    gate, up = norm(mid, w.ln2) @ w.gate.T, norm(mid, w.ln2) @ w.up.T
    equal("12: the output", out, mid + (gate * gate.sigmoid() * up) @ w.down.T)


CHECKS = [(block_backward, 1), (data_parallel, 3), (tensor_parallel, 3), (pipeline, 4), (ring, 4), (online_softmax, 1),
          (grid, 8), (router, 1), (folded, 8), (llama, 1)]


def process(rank, check, ranks, store):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    check(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    for check, ranks in CHECKS:
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(process, (check, ranks, f"{directory}/store"), ranks)
        print(f"{check.__name__} on {ranks} rank{'s' * (ranks > 1)}: as on one device")
