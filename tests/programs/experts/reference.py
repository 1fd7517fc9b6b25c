#!/usr/bin/env python3
"""Loss and gradients of 10_expert_parallel's model in float64, written from its definition with loops over sequences,
tokens and choices, not from the program's code. Writes the fixture that "make verify STAGE=10" compares with.

    make cpu64
    python3 -m venv /tmp/np && /tmp/np/bin/pip install numpy safetensors
    /tmp/np/bin/python tests/programs/experts/reference.py              makes a new fixture
    /tmp/np/bin/python tests/programs/experts/reference.py --check      compares the program with it; writes nothing

    tokens.bin                      the model's training data, uint16
    model.safetensors, config.json  a model with random weights, large ones, so that no term of a gradient is small
    expected_N.safetensors          case N's gradients of loss + balance loss, with the batch of 10's first step
    expected.csv                    each case's options, loss, balance loss, and part of the choices that was dropped

Its own gradients agree with central differences of its loss: --differences.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "..", "..", "build", "cpu64", "10_expert_parallel")
LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, EXPERTS, WIDTH = 2, 12, 3, 17, 10, 4, 4, 10
# --top-k, --capacity, --balance, --span
CASES = [(2, 0.6, 0.3, SEQ), (1, 1.25, 0.1, SEQ), (3, 0, 1.0, SEQ), (2, 0.6, 0.3, 5)]


def gelu(x):
    """Its value and its derivative."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def layernorm(x, weight, bias):
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    n = (x - x.mean(-1, keepdims=True)) * rstd
    return n * weight + bias, (n, rstd, weight)


def layernorm_backward(d_out, saved):
    """Gradients of x, weight and bias."""
    n, rstd, weight = saved
    d_n, axes = d_out * weight, tuple(range(d_out.ndim - 1))
    d_x = rstd * (d_n - d_n.mean(-1, keepdims=True) - n * (d_n * n).mean(-1, keepdims=True))
    return d_x, (d_out * n).sum(axes), d_out.sum(axes)


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def softmax_backward(d_p, p):
    return p * (d_p - (d_p * p).sum(-1, keepdims=True))


def rope(x, sign=1):
    T, D = x.shape[-2:]
    angle = np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    cos, sin = np.concatenate([np.cos(angle)] * 2, -1), sign * np.concatenate([np.sin(angle)] * 2, -1)
    return x * cos + np.concatenate([-x[..., D // 2:], x[..., :D // 2]], -1) * sin


def linear_backward(d_out, x):
    """Gradients of weight and bias."""
    return np.einsum("bto,bti->oi", d_out, x), d_out.sum((0, 1))


def choices_of(p, k, C):
    """One span's choices in the order of tokens: (token, which of its k, expert, has it a slot)."""
    used, found = [0] * p.shape[1], []
    for t in range(len(p)):
        for i, expert in enumerate(sorted(range(p.shape[1]), key=lambda e: -p[t, e])[:k]):      # stable
            found.append((t, i, expert))
    for n, (t, i, expert) in enumerate(found):
        found[n] = (t, i, expert, used[expert] < C)
        used[expert] += 1
    return found, np.array(used)


def experts_forward(P, name, x, k, capacity, balance, span):
    """Returns the output, the balance loss, and what backward needs. Here B counts spans, of T tokens each."""
    shape, x = x.shape, x.reshape(-1, span, x.shape[-1])
    B, T, H = x.shape
    probs = softmax(x @ P[name + "gate.weight"].T)
    E = probs.shape[-1]
    C = T if capacity == 0 else min(T, math.ceil(capacity * k * T / E - 1e-9))
    out, loss, saved, dropped = np.zeros_like(x), 0.0, [], 0
    for b in range(B):
        found, used = choices_of(probs[b], k, C)
        loss += balance * (used * E / (k * T) * probs[b].mean(0)).sum() / B
        for t, i, e, kept in found:
            mine = [f for f in found if f[0] == t]
            sum_of_chosen = sum(probs[b, t, f[2]] for f in mine) if k > 1 else 1
            dropped += not kept
            if not kept:
                continue
            w = name + f"experts.{e}."
            g, slope = gelu(P[w + "dense_h_to_4h.weight"] @ x[b, t] + P[w + "dense_h_to_4h.bias"])
            y = P[w + "dense_4h_to_h.weight"] @ g + P[w + "dense_4h_to_h.bias"]
            out[b, t] += probs[b, t, e] / sum_of_chosen * y
            saved.append((b, t, e, sum_of_chosen, [f[2] for f in mine], g, slope, y))
        saved.append((b, used))
    return out.reshape(shape), loss, dropped / (B * T * k), (x, probs, k, balance, saved)


def experts_backward(P, G, name, d_out, state):
    x, probs, k, balance, saved = state
    B, T, E = probs.shape
    shape, d_out = d_out.shape, d_out.reshape(x.shape)
    d_x, d_probs = np.zeros_like(x), np.zeros_like(probs)
    for one in saved:
        if len(one) == 2:                                   # the balance loss of span b; loads are constants
            b, used = one
            d_probs[b] += balance * used * E / (k * T) / (B * T)
            continue
        b, t, e, sum_of_chosen, chosen, g, slope, y = one
        w, gate, d_gate = name + f"experts.{e}.", probs[b, t, e] / sum_of_chosen, d_out[b, t] @ y
        d_probs[b, t, e] += d_gate / sum_of_chosen
        if k > 1:
            d_probs[b, t, chosen] -= d_gate * gate / sum_of_chosen
        d_y = gate * d_out[b, t]
        d_up = (P[w + "dense_4h_to_h.weight"].T @ d_y) * slope
        G[w + "dense_4h_to_h.weight"] += np.outer(d_y, g)
        G[w + "dense_4h_to_h.bias"] += d_y
        G[w + "dense_h_to_4h.weight"] += np.outer(d_up, x[b, t])
        G[w + "dense_h_to_4h.bias"] += d_up
        d_x[b, t] += P[w + "dense_h_to_4h.weight"].T @ d_up
    d_logits = softmax_backward(d_probs, probs)
    G[name + "gate.weight"] = linear_backward(d_logits, x)[0]
    return (d_x + d_logits @ P[name + "gate.weight"]).reshape(shape)


def model(P, inputs, targets, k, capacity, balance, span):
    """Returns loss, balance loss, the part of the choices that was dropped, and gradients of loss + balance loss."""
    G = {name: np.zeros_like(p) for name, p in P.items()}
    E, (B, T), D = P["gpt_neox.embed_in.weight"], inputs.shape, HIDDEN // HEADS
    x, saved, balance_loss, dropped = E[inputs], [], 0.0, 0.0
    for l in range(LAYERS):
        p = f"gpt_neox.layers.{l}."
        ln1, s1 = layernorm(x, P[p + "input_layernorm.weight"], P[p + "input_layernorm.bias"])
        qkv = ln1 @ P[p + "attention.query_key_value.weight"].T + P[p + "attention.query_key_value.bias"]
        q, key, v = qkv.reshape(B, T, HEADS, 3, D).transpose(3, 0, 2, 1, 4)
        q, key = rope(q), rope(key)
        scores = q @ key.swapaxes(-1, -2) / math.sqrt(D)
        scores[..., np.triu(np.ones((T, T), bool), 1)] = -np.inf
        probs = softmax(scores)
        heads = (probs @ v).transpose(0, 2, 1, 3).reshape(B, T, HIDDEN)
        mid = x + heads @ P[p + "attention.dense.weight"].T + P[p + "attention.dense.bias"]
        ln2, s2 = layernorm(mid, P[p + "post_attention_layernorm.weight"], P[p + "post_attention_layernorm.bias"])
        out, of_layer, lost, experts = experts_forward(P, p + "mlp.", ln2, k, capacity, balance, span)
        saved.append((ln1, s1, q, key, v, probs, heads, s2, experts))
        x, balance_loss, dropped = mid + out, balance_loss + of_layer, dropped + lost / LAYERS
    final, sf = layernorm(x, P["gpt_neox.final_layer_norm.weight"], P["gpt_neox.final_layer_norm.bias"])
    p_next, (b, t) = softmax(final @ E.T), np.indices((B, T))
    loss = -np.log(p_next[b, t, targets]).mean()
    d_logits = p_next.copy()
    d_logits[b, t, targets] -= 1
    d_logits /= B * T
    G["gpt_neox.embed_in.weight"] += np.einsum("btv,bth->vh", d_logits, final)
    d_x, G["gpt_neox.final_layer_norm.weight"], G["gpt_neox.final_layer_norm.bias"] = \
        layernorm_backward(d_logits @ E, sf)
    for l in reversed(range(LAYERS)):
        p = f"gpt_neox.layers.{l}."
        ln1, s1, q, key, v, probs, heads, s2, experts = saved[l]
        d, G[p + "post_attention_layernorm.weight"], G[p + "post_attention_layernorm.bias"] = \
            layernorm_backward(experts_backward(P, G, p + "mlp.", d_x, experts), s2)
        d_x = d_x + d
        G[p + "attention.dense.weight"], G[p + "attention.dense.bias"] = linear_backward(d_x, heads)
        d_heads = (d_x @ P[p + "attention.dense.weight"]).reshape(B, T, HEADS, D).transpose(0, 2, 1, 3)
        d_scores = softmax_backward(d_heads @ v.swapaxes(-1, -2), probs) / math.sqrt(D)
        d_q, d_key = rope(d_scores @ key, -1), rope(d_scores.swapaxes(-1, -2) @ q, -1)
        d_qkv = np.stack([d_q, d_key, probs.swapaxes(-1, -2) @ d_heads]).transpose(1, 3, 2, 0, 4).reshape(B, T, -1)
        G[p + "attention.query_key_value.weight"], G[p + "attention.query_key_value.bias"] = linear_backward(d_qkv, ln1)
        d, G[p + "input_layernorm.weight"], G[p + "input_layernorm.bias"] = \
            layernorm_backward(d_qkv @ P[p + "attention.query_key_value.weight"], s1)
        d_x = d_x + d
    np.add.at(G["gpt_neox.embed_in.weight"], inputs, d_x)
    return loss, balance_loss, dropped, G


def random_model(source):
    h, f, P = HIDDEN, WIDTH, {"embed_in.weight": (VOCAB, HIDDEN)}
    for l in range(LAYERS):
        p = f"layers.{l}."
        for ln in ("input_layernorm", "post_attention_layernorm"):
            P[p + ln + ".weight"] = P[p + ln + ".bias"] = (h,)
        for name, rows in (("query_key_value", 3 * h), ("dense", h)):
            P[p + f"attention.{name}.weight"], P[p + f"attention.{name}.bias"] = (rows, h), (rows,)
        P[p + "mlp.gate.weight"] = (EXPERTS, h)
        for e in range(EXPERTS):
            w = p + f"mlp.experts.{e}."
            P[w + "dense_h_to_4h.weight"], P[w + "dense_h_to_4h.bias"] = (f, h), (f,)
            P[w + "dense_4h_to_h.weight"], P[w + "dense_4h_to_h.bias"] = (h, f), (h,)
    P["final_layer_norm.weight"] = P["final_layer_norm.bias"] = (h,)
    return {"gpt_neox." + name: source.normal(size=shape) * 0.3 for name, shape in P.items()}


def write_inputs(folder):
    source = np.random.default_rng(1)
    source.integers(0, VOCAB, 500).astype("<u2").tofile(os.path.join(folder, "tokens.bin"))
    save_file(random_model(source), os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["GPTNeoXMoeForCausalLM"], "model_type": "gpt_neox_moe",
                   "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "vocab_size": VOCAB, "hidden_size": HIDDEN,
                   "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": WIDTH,
                   "max_position_embeddings": SEQ, "hidden_act": "gelu_pytorch_tanh", "rotary_pct": 1.0,
                   "use_parallel_residual": False, "tie_word_embeddings": True}, f, indent=1)


def run_case(folder, k, capacity, balance, span):
    """Runs 10 on a copy of the model with k experts per token; returns its gradients, with the batch."""
    with tempfile.TemporaryDirectory() as copy:
        os.symlink(os.path.join(folder, "model.safetensors"), os.path.join(copy, "model.safetensors"))
        config = json.load(open(os.path.join(folder, "config.json")))
        config["num_experts_per_tok"] = k
        json.dump(config, open(os.path.join(copy, "config.json"), "w"))
        dump = os.path.join(copy, "dump.safetensors")
        subprocess.run([PROGRAM, *options(k, capacity, balance, span).split(),
                        "--data", os.path.join(folder, "tokens.bin"), "--load", copy, "--steps", "1", "--quiet", "--dump-gradients", dump], check=True)
        return load_file(dump)


def options(k, capacity, balance, span):
    return (f"--layers {LAYERS} --hidden {HIDDEN} --heads {HEADS} --vocab {VOCAB} --seq {SEQ} --micro-batch {BATCH} "
            f"--accumulate 1 --experts {EXPERTS} --expert-width {WIDTH} --top-k {k} --capacity {capacity} "
            f"--balance {balance}" + (f" --span {span}" if span < SEQ else ""))


def differences():
    source = np.random.default_rng(2)
    P, worst = random_model(source), 0
    inputs, targets = source.integers(0, VOCAB, (2, BATCH, SEQ))
    for case in CASES:
        G = model(P, inputs, targets, *case)[3]
        for name, p in P.items():
            for _ in range(3):
                at, sums = tuple(source.integers(0, n) for n in p.shape), []
                for step in (1e-5, -2e-5):
                    p[at] += step
                    sums.append(sum(model(P, inputs, targets, *case)[:2]))
                p[at] += 1e-5
                worst = max(worst, abs((sums[0] - sums[1]) / 2e-5 - G[name][at]) / max(np.abs(G[name]).max(), 1e-3))
    print(f"gradients differ from central differences by {worst:.1e}")
    return worst > 1e-6


def main():
    check, folder, rows, worst = "--check" in sys.argv, HERE, ["options,loss,balance_loss,dropped"], 0
    if "--differences" in sys.argv:
        return differences()
    if not check:
        write_inputs(folder)
    P = load_file(os.path.join(folder, "model.safetensors"))
    for n, case in enumerate(CASES):
        dump = run_case(folder, *case)
        batch = {name: dump[name] for name in ("batch.inputs", "batch.targets")}
        loss, balance_loss, dropped, G = model(P, batch["batch.inputs"], batch["batch.targets"], *case)
        for name in G:
            d = np.abs(G[name] - dump[name]).max()
            worst = max(worst, d / np.abs(G[name]).max() if d else 0)
        rows.append(f"{options(*case)},{float(loss)!r},{float(balance_loss)!r},{float(dropped)!r}")
        if not check:
            save_file({**batch, **G}, os.path.join(folder, f"expected_{n}.safetensors"))
    print("\n".join(rows))
    print(f"10's gradients differ by {worst:.1e}")
    if not check:
        with open(os.path.join(folder, "expected.csv"), "w") as f:
            f.write("\n".join(rows) + "\n")
    return worst > 1e-12


if __name__ == "__main__":
    sys.exit(main())
