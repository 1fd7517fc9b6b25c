#!/usr/bin/env python3
"""Shows that our model is Hugging Face's GPTNeoXForCausalLM, and writes what tests/test_huggingface.c holds us to.

    make cpu cpu64
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    /tmp/hf/bin/python tests/huggingface/make_fixture.py            make the fixture anew
    /tmp/hf/bin/python tests/huggingface/make_fixture.py --check    compare with the one that is here; writes nothing

Our program trains a small model and saves it; Hugging Face opens the checkpoint with from_pretrained and computes
logits, loss and gradients of the batch that our program's next step takes (--dump-gradients holds it). Only if the
two agree does the fixture take the place of the old one:

    tokens.bin                          what the model was trained on, uint16
    checkpoint/                         as our program saved it
    expected_gradients.safetensors      Hugging Face's gradients, in float64, then rounded; with the batch
    expected_logits.safetensors         its logits (3, 33, 97), and its mean loss, float64

The tests need neither Python nor PyTorch. Another machine's fixture differs in its last digits, as 100 steps of
training in float do, and is as good. Known to work with transformers 4.57.3, 5.0.0 and 5.23.0.
"""
import argparse
import csv
import os
import random
import shutil
import struct
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build")

# Three heads and layers, a prime vocabulary, odd lengths: nothing fits by chance.
LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, STEPS = 3, 24, 3, 97, 33, 3, 100
HEAD = HIDDEN // HEADS
SHAPE = f"--layers {LAYERS} --hidden {HIDDEN} --heads {HEADS} --vocab {VOCAB} --seq {SEQ} --micro-batch {BATCH}"
FILES = ["tokens.bin", "checkpoint", "expected_gradients.safetensors", "expected_logits.safetensors"]


def make_tokens():
    """Mostly the sum of the two before: what only attention can learn, so that q and k matter."""
    source = random.Random(1)
    tokens = [5, 7]
    while len(tokens) < 3000:
        follows = source.random() < 0.7
        tokens.append((tokens[-1] + tokens[-2]) % VOCAB if follows else int(source.random() * VOCAB))
    with open("tokens.bin", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))


def ours(build, options):
    program = os.path.join(BUILD, build, "01_single_gpu")
    subprocess.run([program, *SHAPE.split(), "--data", "tokens.bin", "--quiet", *options.split()], check=True)


def our_step(build):
    """Gradients, with their batch, and loss of the step that follows the checkpoint's."""
    ours(build, f"--accumulate 1 --load checkpoint --steps {STEPS + 1} "
                f"--dump-gradients {build}.safetensors --metrics {build}.csv")
    with open(f"{build}.csv") as f:
        return load_file(f"{build}.safetensors"), float(list(csv.DictReader(f))[-1]["loss"])


def open_checkpoint():
    """As anybody would, and then: did it take every weight, and every key of config.json as we meant it?"""
    model, loading = transformers.GPTNeoXForCausalLM.from_pretrained("checkpoint", output_loading_info=True,
                                                                     attn_implementation="sdpa")
    assert not any(loading.values()), loading          # missing, unexpected, mismatched keys, errors
    assert model.dtype == torch.float32
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    x = torch.linspace(-4, 4, 1001)
    for layer in model.gpt_neox.layers:
        assert not layer.use_parallel_residual
        assert torch.equal(layer.mlp.act(x), torch.nn.functional.gelu(x, approximate="tanh"))
    # The whole head is rotated, with base 10000: keys that transformers renamed more than once.
    frequencies = 10000 ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    torch.testing.assert_close(model.gpt_neox.rotary_emb.inv_freq.double(), frequencies, rtol=1e-6, atol=0)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * LAYERS + 1 and all(m.eps == 1e-5 for m in norms)
    return model


def theirs(model, batch):
    """Hugging Face's logits, gradients by name, and mean loss."""
    model.zero_grad()
    logits = model(input_ids=batch["batch.inputs"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["batch.targets"].flatten())
    loss.backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}, loss.item()


def angles_in_double(model):
    """Hugging Face's rotation computes its angles in float32 even in a float64 model: the largest difference left."""
    def forward(x, position_ids):
        frequencies = 10000 ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
        angles = (position_ids[..., None] * frequencies).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    model.gpt_neox.rotary_emb.forward = forward


def parts(name, gradient):
    """A QKV tensor holds q, k and v head by head; together, v would hide what is wrong with q and k."""
    if "query_key_value" not in name:
        return {name: gradient}
    by_head = gradient.view(HEADS, 3, HEAD, -1)
    return {f"{name} ({'qkv'[i]})": by_head[:, i] for i in range(3)}


def compare(what, ours, theirs, most):
    """Prints the largest difference of any tensor, over the tensor's largest element; more than `most` is an error."""
    (gradients, loss), (_, expected, expected_loss) = ours, theirs
    assert set(gradients) == set(expected) | {"batch.inputs", "batch.targets"}
    differences = []
    for tensor in expected:
        a, b = parts(tensor, gradients[tensor].double()), parts(tensor, expected[tensor].double())
        differences += [((a[part] - b[part]).abs().max().item() / b[part].abs().max().item(), part) for part in b]
    worst = max(differences)
    of_loss = abs(loss - expected_loss) / expected_loss
    print(f"{what:<42} loss {loss:.15f}, differs by {of_loss:.1e}; gradients by up to {worst[0]:.1e}: {worst[1]}")
    assert all(d <= most for d, _ in differences) and of_loss <= most      # a NaN is not


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with the fixture that is here; writes nothing")
    check = arguments.parse_args().check

    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)                                 # so trainer.json names no directory of this machine
        if check:
            shutil.copy(os.path.join(HERE, "tokens.bin"), ".")
            shutil.copytree(os.path.join(HERE, "checkpoint"), "checkpoint")
        else:
            make_tokens()
            # a learning rate far too high for a good model: biases and LayerNorms are soon far from where they began
            ours("cpu", f"--accumulate 4 --steps {STEPS} --lr 1e-2 --warmup 1 --save checkpoint")
        single, double = our_step("cpu"), our_step("cpu64")
        batch = double[0]

        model = open_checkpoint()
        compare("ours in float, theirs in float32", single, theirs(model, batch), 1e-5)
        model = model.double()
        expected = logits, gradients, loss = theirs(model, batch)
        compare("ours in float, theirs in float64", single, expected, 1e-5)
        compare("ours in double, theirs in float64", double, expected, 1e-6)
        angles_in_double(model)
        compare("the same, and their angles in float64", double, theirs(model, batch), 1e-12)
        for name, gradient in gradients.items():            # else the comparison would be of noise
            assert all(part.abs().max() > 1e-4 for part in parts(name, gradient).values()), name

        if check:
            old = [load_file(os.path.join(HERE, f"expected_{name}.safetensors")) for name in ("gradients", "logits")]
            compare("the fixture, theirs in float64", (old[0], old[1]["loss"].item()), expected, 1e-6)
            assert (old[1]["logits"] - logits).abs().max() <= 1e-6 * logits.abs().max()
            return
        save_file({name: gradient.float() for name, gradient in gradients.items()}
                  | {name: batch[name] for name in ("batch.inputs", "batch.targets")}, "expected_gradients.safetensors")
        save_file({"logits": logits.float(), "loss": torch.tensor([loss], dtype=torch.float64)},
                  "expected_logits.safetensors")
        shutil.rmtree(os.path.join(HERE, "checkpoint"), ignore_errors=True)
        for name in FILES:
            shutil.move(name, os.path.join(HERE, name))
            os.chmod(os.path.join(HERE, name), 0o755 if os.path.isdir(os.path.join(HERE, name)) else 0o644)
        os.chdir(HERE)


main()
