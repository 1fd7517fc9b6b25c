#!/usr/bin/env python3
"""Loss and gradients of 10_expert_parallel's model in float64: Hugging Face's GPTNeoXForCausalLM with the mixtures of
huggingface.py, differentiated by PyTorch. Writes the fixture that test_huggingface.c compares with.

    make cpu64
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors numpy
    /tmp/hf/bin/python tests/programs/experts/reference.py              makes a new fixture
    /tmp/hf/bin/python tests/programs/experts/reference.py --check      compares the program with it; writes nothing

    tokens.bin                      the model's training data, uint16
    model.safetensors, config.json  a model with random weights, large ones, so that no term of a gradient is small
    expected_N.safetensors          case N's gradients of loss + balance loss, with the batch of 10's first step
    expected.csv                    each case's options, loss, balance loss, and part of the choices that was dropped
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from huggingface import Experts, open_mixture

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "huggingface"))
from make_fixture import angles_in_float64          # noqa: E402

PROGRAM = os.path.join(HERE, "..", "..", "..", "build", "cpu64", "10_expert_parallel")
LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, EXPERTS, WIDTH = 2, 12, 3, 17, 10, 4, 4, 10
# --top-k, --capacity, --balance, --span
CASES = [(2, 0.6, 0.3, SEQ), (1, 1.25, 0.1, SEQ), (3, 0, 1.0, SEQ), (2, 0.6, 0.3, 5)]


def write_inputs():
    torch.manual_seed(1)
    np.random.default_rng(1).integers(0, VOCAB, 500).astype("<u2").tofile(os.path.join(HERE, "tokens.bin"))
    config = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "intermediate_size": WIDTH, "max_position_embeddings": SEQ, "hidden_act": "gelu_pytorch_tanh",
              "rotary_pct": 1.0, "use_parallel_residual": False, "tie_word_embeddings": True}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**config))
    for layer in model.gpt_neox.layers:
        layer.mlp = Experts(model.config, EXPERTS, 2, 0, 0)
    weights = {name: torch.randn(p.shape, dtype=torch.float64) * 0.3 for name, p in model.named_parameters()}
    save_file(weights, os.path.join(HERE, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(HERE, "config.json"), "w") as f:
        json.dump({"architectures": ["GPTNeoXMoeForCausalLM"], "model_type": "gpt_neox_moe",
                   "num_local_experts": EXPERTS, "num_experts_per_tok": 2, **config}, f, indent=1)


def options(k, capacity, balance, span):
    return (f"--layers {LAYERS} --hidden {HIDDEN} --heads {HEADS} --vocab {VOCAB} --seq {SEQ} --micro-batch {BATCH} "
            f"--accumulate 1 --experts {EXPERTS} --expert-width {WIDTH} --top-k {k} --capacity {capacity} "
            f"--balance {balance}" + (f" --span {span}" if span < SEQ else ""))


def run_case(k, *case):
    """Runs 10 on a copy of the model with k experts per token; returns its gradients, with the batch."""
    with tempfile.TemporaryDirectory() as copy:
        os.symlink(os.path.join(HERE, "model.safetensors"), os.path.join(copy, "model.safetensors"))
        with open(os.path.join(HERE, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(copy, "config.json"), "w") as f:
            json.dump({**config, "num_experts_per_tok": k}, f)
        dump = os.path.join(copy, "dump.safetensors")
        subprocess.run([PROGRAM, *options(k, *case).split(), "--data", os.path.join(HERE, "tokens.bin"), "--load",
                        copy, "--steps", "1", "--quiet", "--dump-gradients", dump], check=True)
        return load_file(dump)


def step(batch, k, capacity, balance, span):
    """Returns loss, balance loss, the part of the choices that was dropped, and gradients of loss + balance loss."""
    model = open_mixture(HERE, capacity, span, k)
    angles_in_float64(model)
    logits = model(batch["batch.inputs"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["batch.targets"].flatten())
    mixtures = [layer.mlp for layer in model.gpt_neox.layers]
    balance_loss = balance * sum(m.balance_loss for m in mixtures)
    (loss + balance_loss).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return loss.item(), balance_loss.item(), sum(m.dropped for m in mixtures) / LAYERS, gradients


def main():
    check, rows, worst = "--check" in sys.argv, ["options,loss,balance_loss,dropped"], 0
    if not check:
        write_inputs()
    for n, case in enumerate(CASES):
        dump = run_case(*case)
        batch = {name: dump[name] for name in ("batch.inputs", "batch.targets")}
        loss, balance_loss, dropped, gradients = step(batch, *case)
        for name, g in gradients.items():
            worst = max(worst, ((g - dump[name]).abs().max() / g.abs().max().clamp(min=1e-30)).item())
        rows.append(f"{options(*case)},{loss!r},{balance_loss!r},{dropped!r}")
        if not check:
            save_file({**batch, **gradients}, os.path.join(HERE, f"expected_{n}.safetensors"))
    print("\n".join(rows))
    print(f"10's gradients differ by {worst:.1e}")
    if not check:
        with open(os.path.join(HERE, "expected.csv"), "w") as f:
            f.write("\n".join(rows) + "\n")
    return worst > 1e-12


if __name__ == "__main__":
    sys.exit(main())
