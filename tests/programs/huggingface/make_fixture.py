#!/usr/bin/env python3
"""Shows that the programs' model is Hugging Face's GPTNeoXForCausalLM, and writes the fixture that
tests/programs/test_huggingface.c compares with.

    make cpu cpu64
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    /tmp/hf/bin/python tests/programs/huggingface/make_fixture.py            makes a new fixture
    /tmp/hf/bin/python tests/programs/huggingface/make_fixture.py --check    compares with the fixture; writes nothing

First, Hugging Face opens a checkpoint of 01. 01 trains a small model and saves it. from_pretrained opens it, and
computes logits, loss and gradients of the batch of 01's next step, which --dump-gradients writes.

Second, 01 opens a model of Hugging Face. save_pretrained writes it in four types. Loss and
gradients of 01's first step match Hugging Face in float64. 01 saves it at once, and Hugging Face opens it with the same
loss. (test_huggingface.c compares the other programs.)

The new fixture replaces the old one only if all agree:

    tokens.bin                              the model's training data, uint16
    checkpoint/                             01's checkpoint
    expected_gradients.safetensors          Hugging Face's gradients, in float64, then rounded; with the batch
    expected_logits.safetensors             its logits (3, 33, 97), mean loss in float64, and the second model's loss
    save_pretrained/F16                     a smaller model that Hugging Face wrote, in F16
    save_pretrained/sharded                 the same in several files, as it writes large models
    expected_save_pretrained.safetensors    its gradients in float64, then rounded, with the batch

The tests need neither Python nor PyTorch. A fixture from another machine differs in its last digits, because it follows
100 steps of training in float, and is as good. Works with transformers 4.57.3 and 5.23.0; but --check needs 5, because
4 reads rotary_pct=0.25 from the config.json in save_pretrained/.
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
BUILD = os.path.join(HERE, "..", "..", "..", "build")

# Three heads and layers, a prime vocabulary, odd lengths: nothing fits by chance.
LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, STEPS = 3, 24, 3, 97, 33, 3, 100
SHAPE = f"--layers {LAYERS} --hidden {HIDDEN} --heads {HEADS} --vocab {VOCAB} --seq {SEQ} --micro-batch {BATCH}"
FILES = ["tokens.bin", "checkpoint", "expected_gradients.safetensors", "expected_logits.safetensors",
         "save_pretrained", "expected_save_pretrained.safetensors"]


def make_tokens():
    """Makes tokens that are mostly the sum of the previous two: only attention can learn this, so q and k matter."""
    source = random.Random(1)
    tokens = [5, 7]
    while len(tokens) < 3000:
        follows = source.random() < 0.7
        tokens.append((tokens[-1] + tokens[-2]) % VOCAB if follows else int(source.random() * VOCAB))
    with open("tokens.bin", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))


def run_01(build, options):
    subprocess.run([os.path.join(BUILD, build, "01_single_gpu"), "--data", "tokens.bin", "--quiet", *options.split()],
                   check=True)


def step_of_01(build):
    """Returns gradients with their batch, and loss, of the step after the checkpoint's."""
    run_01(build, f"{SHAPE} --accumulate 1 --load checkpoint --steps {STEPS + 1} "
                  f"--dump-gradients {build}.safetensors --metrics {build}.csv")
    return read_step(build)


def read_step(name):
    with open(f"{name}.csv") as f:
        return load_file(f"{name}.safetensors"), float(list(csv.DictReader(f))[-1]["loss"])


def frequencies_of(config):
    head = config.hidden_size // config.num_attention_heads
    return 10000 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)


def open_checkpoint(directory, dtype=torch.float32):
    """Opens a checkpoint as a user would. Checks that every weight was loaded, and every key of config.json applied."""
    model, loading = transformers.GPTNeoXForCausalLM.from_pretrained(directory, output_loading_info=True,
                                                                     attn_implementation="sdpa", torch_dtype=dtype)
    assert not any(loading.values()), loading          # missing, unexpected, mismatched keys, errors
    assert model.dtype == dtype
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    x = torch.linspace(-4, 4, 1001)
    for layer in model.gpt_neox.layers:
        assert not layer.use_parallel_residual
        assert torch.equal(layer.mlp.act(x), torch.nn.functional.gelu(x, approximate="tanh"))
    # The full head is rotated, with base 10000: transformers renamed these keys more than once.
    torch.testing.assert_close(model.gpt_neox.rotary_emb.inv_freq.double(), frequencies_of(model.config), rtol=1e-6,
                               atol=0)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * LAYERS + 1 and all(m.eps == 1e-5 for m in norms)
    return model


def step_of_transformers(model, batch):
    """Returns Hugging Face's logits, gradients by name, and mean loss."""
    model.zero_grad()
    logits = model(input_ids=batch["batch.inputs"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["batch.targets"].flatten())
    loss.backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}, loss.item()


def angles_in_float64(model):
    """Makes the model compute rotation angles in float64. Hugging Face uses float32 even in a float64 model."""
    def forward(x, position_ids):
        angles = (position_ids[..., None] * frequencies_of(model.config)).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    model.gpt_neox.rotary_emb.forward = forward


def split_qkv(name, gradient, heads):
    """Splits a QKV tensor into q, k and v, since v's large gradients would hide errors in q and k."""
    if "query_key_value" not in name:
        return {name: gradient}
    by_head = gradient.unflatten(0, (heads, 3, -1))
    return {f"{name} ({'qkv'[i]})": by_head[:, i] for i in range(3)}


def compare(what, step, expected_step, most, heads=HEADS):
    """Prints the largest difference of any tensor, over the tensor's largest element; more than `most` is an error."""
    (gradients, loss), (_, expected, expected_loss) = step, expected_step
    assert set(gradients) == set(expected) | {"batch.inputs", "batch.targets"}
    differences = []
    for tensor in expected:
        a, b = (split_qkv(tensor, g[tensor].double(), heads) for g in (gradients, expected))
        differences += [((a[name] - b[name]).abs().max().item() / b[name].abs().max().item(), name) for name in b]
    worst = max(differences)
    of_loss = abs(loss - expected_loss) / expected_loss
    print(f"{what:<58} loss {loss:.15f}, differs by {of_loss:.1e}; gradients by up to {worst[0]:.1e}: {worst[1]}")
    assert all(d <= most for d, _ in differences) and of_loss <= most      # a NaN is not


def model_from_there(hidden):
    """Returns a model of Hugging Face's, like a trained one: every weight differs from the programs' initial 0 and 1.
    The weights are exact in F16 and BF16, so that all files hold the same model."""
    torch.manual_seed(1)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=LAYERS, num_attention_heads=5,
        intermediate_size=4 * hidden, hidden_act="gelu_pytorch_tanh", rotary_pct=1.0, use_parallel_residual=False,
        tie_word_embeddings=True, max_position_embeddings=64))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + 0.1 * torch.randn(p.shape)).half().bfloat16())
    return model


def their_step(directory, batch):
    model = open_checkpoint(directory, torch.float64)
    angles_in_float64(model)
    return step_of_transformers(model, batch)


def check_loading(hidden, directories):
    """Checks that 01 starts from Hugging Face's models, on six sequences, and that it opens what 01 saves."""
    options = (f"--layers {LAYERS} --hidden {hidden} --heads 5 --vocab {VOCAB} --seq 16 --seed 3 --micro-batch 3 "
               "--accumulate 2")
    for directory in directories:
        run_01("cpu64", f"{options} --load {directory} --steps 1 --dump-gradients step.safetensors --metrics step.csv")
        step = read_step("step")
        expected = their_step(directory, step[0])
        compare(directory, step, expected, 1e-10, 5)
        os.remove("step.csv")
    run_01("cpu64", f"{options} --load {directory} --steps 0 --save again")
    difference = abs(their_step("again/step-0", step[0])[2] - expected[2])
    print(f"    saved by 01, and opened by Hugging Face: the loss differs by {difference:.1e}")
    assert difference <= 1e-12
    shutil.rmtree("again")
    return expected, step[0]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with the current fixture; writes nothing")
    check = arguments.parse_args().check

    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)                                 # so that trainer.json has no path of this machine
        if check:
            shutil.copy(os.path.join(HERE, "tokens.bin"), ".")
            shutil.copytree(os.path.join(HERE, "checkpoint"), "checkpoint")
        else:
            make_tokens()
            # a learning rate far too high for a good model moves biases and LayerNorms far from their initial values
            run_01("cpu", f"{SHAPE} --accumulate 4 --steps {STEPS} --lr 1e-2 --warmup 1 --save saved")
            shutil.move(f"saved/step-{STEPS}", "checkpoint")
        single, double = step_of_01("cpu"), step_of_01("cpu64")
        batch = double[0]

        model = open_checkpoint("checkpoint")
        compare("01 in float, transformers in float32", single, step_of_transformers(model, batch), 1e-5)
        model = model.double()
        expected = logits, gradients, loss = step_of_transformers(model, batch)
        compare("01 in float, transformers in float64", single, expected, 1e-5)
        compare("01 in double, transformers in float64", double, expected, 1e-6)
        angles_in_float64(model)
        compare("the same, with angles in float64", double, step_of_transformers(model, batch), 1e-12)
        for name, gradient in gradients.items():            # otherwise the comparison would be of noise
            assert all(x.abs().max() > 1e-4 for x in split_qkv(name, gradient, HEADS).values()), name

        for hidden in (40, 20):
            model = model_from_there(hidden)
            model.double().save_pretrained(f"{hidden}/F64")
            model.float().save_pretrained(f"{hidden}/F32")
            model.half().save_pretrained(f"{hidden}/F16")
            model.bfloat16().save_pretrained(f"{hidden}/BF16")
        check_loading(40, ["40/F64", "40/F32", "40/F16", "40/BF16"])
        if check:
            shutil.copytree(os.path.join(HERE, "save_pretrained"), "save_pretrained")
        else:
            os.mkdir("save_pretrained")
            shutil.move("20/F16", "save_pretrained/F16")
            model.half().save_pretrained("save_pretrained/sharded", max_shard_size="20KB")
        there, their_batch = check_loading(20, ["save_pretrained/sharded", "save_pretrained/F16"])

        if check:
            old = [load_file(os.path.join(HERE, f"expected_{name}.safetensors"))
                   for name in ("gradients", "logits", "save_pretrained")]
            compare("the fixture, transformers in float64", (old[0], old[1]["loss"].item()), expected, 1e-6)
            assert (old[1]["logits"] - logits).abs().max() <= 1e-6 * logits.abs().max()
            compare("the fixture of save_pretrained", (old[2], old[1]["their_loss"].item()), there, 1e-6, 5)
            return
        batches = ("batch.inputs", "batch.targets")
        save_file({name: gradient.float() for name, gradient in there[1].items()}
                  | {name: their_batch[name] for name in batches}, "expected_save_pretrained.safetensors")
        save_file({name: gradient.float() for name, gradient in gradients.items()}
                  | {name: batch[name] for name in batches}, "expected_gradients.safetensors")
        save_file({"logits": logits.float(), "loss": torch.tensor([loss], dtype=torch.float64),
                   "their_loss": torch.tensor([there[2]], dtype=torch.float64)}, "expected_logits.safetensors")
        shutil.rmtree(os.path.join(HERE, "checkpoint"), ignore_errors=True)
        shutil.rmtree(os.path.join(HERE, "save_pretrained"), ignore_errors=True)
        for name in FILES:
            shutil.move(name, os.path.join(HERE, name))
            os.chmod(os.path.join(HERE, name), 0o755 if os.path.isdir(os.path.join(HERE, name)) else 0o644)
        os.chdir(HERE)


if __name__ == "__main__":
    main()
