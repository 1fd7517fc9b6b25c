#!/usr/bin/env python3
"""Compares 12_llama with transformers on a model of SmolLM2-135M's size, with random weights, in float32.

    make cpu
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    /tmp/hf/bin/python tests/programs/llama/smollm2.py

save_pretrained writes the model in two files. 12 loads them on one rank and on three, with --preset smollm2-135m, and
trains two steps. The loss of the first step, its gradient norm, and the loss of the second step, after an update by
AdamW, must equal those of transformers and torch.optim.AdamW to 1e-5. Needs 6 GB of memory and of disk, and about three
minutes on two cores.
"""
import csv
import glob
import math
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "..", "..", "build", "cpu", "12_llama")
VOCAB, MOST = 49152, 1e-5
BATCH = "--seq 96 --micro-batch 1 --accumulate 2 --lr 1e-3 --warmup 1 --clip 1 --weight-decay 0.1"


def make_model():
    """Writes a model with the sizes of SmolLM2-135M's config.json, in two files."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_theta": 100000.0, "rope_type": "default"})
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():                    # so that the norms' weights differ from 1
            p.add_(0.01 * torch.randn(p.shape))
    model.save_pretrained("smollm2", max_shard_size="400MB")
    files = glob.glob("smollm2/*.safetensors")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {len(files)} files")
    assert len(files) == 2


def run(ranks, name, options):
    """Runs 12. Returns the rows of its metrics."""
    subprocess.run(["mpiexec", "-n", str(ranks), PROGRAM, "--preset", "smollm2-135m", "--data", "tokens.bin", "--quiet",
                    "--metrics", f"{name}.csv", *BATCH.split(), *options.split()], check=True)
    with open(f"{name}.csv") as f:
        return list(csv.DictReader(f))


def batch_of(name):
    """Takes the tokens of a step from its dumped gradients, which are large and then removed."""
    step = load_file(f"{name}.safetensors")
    os.remove(f"{name}.safetensors")
    return step["batch.inputs"].long(), step["batch.targets"].long()


def loss_and_gradients(model, batch):
    """Leaves the gradients in the model. Returns the mean loss over the tokens of all sequences."""
    model.zero_grad()
    total = 0
    for inputs, targets in zip(*batch):
        logits = model(input_ids=inputs[None]).logits
        loss = torch.nn.functional.cross_entropy(logits[0], targets) / len(batch[0])
        loss.backward()
        total += loss.item()
    return total


def main():
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        torch.manual_seed(2)
        tokens = torch.randint(VOCAB, (20000,), dtype=torch.int32)
        with open("tokens.bin", "wb") as f:
            f.write(tokens.to(torch.uint16).numpy().tobytes())
        make_model()
        first = run(1, "first", "--load smollm2 --steps 1 --dump-gradients first.safetensors --save saved")
        second = run(1, "second", "--load saved --steps 2 --dump-gradients second.safetensors")
        of_three = run(3, "three", "--load smollm2 --steps 2")
        batches = batch_of("first"), batch_of("second")

        model = transformers.LlamaForCausalLM.from_pretrained("smollm2", dtype=torch.float32)
        decayed = [p for p in model.parameters() if p.dim() > 1]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                       {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0}],
                                      lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        expected = {"loss": loss_and_gradients(model, batches[0])}
        # in float32, torch's sum over the embedding is off by 5e-5
        expected["grad_norm"] = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1, torch.tensor(expected["grad_norm"]))
        optimizer.step()
        expected["loss after the step"] = loss_and_gradients(model, batches[1])
        failed = False
        for ranks, steps in ((1, first + second), (3, of_three)):
            for what, value in expected.items():
                step = steps[1 if "after" in what else 0]
                found = float(step[what.split()[0]])
                difference = abs(found / value - 1)
                failed |= not difference <= MOST
                print(f"{ranks} rank(s): {what:<20} {found:.8f}, transformers {value:.8f}, differs by {difference:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
