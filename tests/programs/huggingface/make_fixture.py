#!/usr/bin/env python3
"""Shows that our model is Hugging Face's GPTNeoXForCausalLM, and writes what tests/programs/test_huggingface.c holds us
to.

    make cpu cpu64
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    /tmp/hf/bin/python tests/programs/huggingface/make_fixture.py            make the fixture anew
    /tmp/hf/bin/python tests/programs/huggingface/make_fixture.py --check    compare with what is here; writes nothing

First, ours opened there: our program trains a small model and saves it; Hugging Face opens the checkpoint with
from_pretrained and computes logits, loss and gradients of the batch that our program's next step takes
(--dump-gradients holds it).

Then, theirs opened here: save_pretrained writes a model, in one file and in several, of four types of numbers; our
programs load it in several layouts, and loss and gradients of their first step are Hugging Face's in float64. They save
it at once, and Hugging Face opens that with the same loss.

Only if all agree does the fixture take the place of the old one:

    tokens.bin                              what the model was trained on, uint16
    checkpoint/                             as our program saved it
    expected_gradients.safetensors          Hugging Face's gradients, in float64, then rounded; with the batch
    expected_logits.safetensors             its logits (3, 33, 97), and its mean loss, float64; and the next one's loss
    save_pretrained/F16, /shards            a smaller model as Hugging Face wrote it: in one file of F16; in several of
                                            BF16, with the same numbers
    expected_save_pretrained.safetensors    its gradients in float64, then rounded, with the batch

The tests need neither Python nor PyTorch. Another machine's fixture differs in its last digits, as 100 steps of
training in float do, and is as good. Known to work with transformers 4.57.3 and 5.23.0; but --check wants 5, whose
config.json in save_pretrained/ means rotary_pct=0.25 to 4.
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
    """Mostly the sum of the two before: what only attention can learn, so that q and k matter."""
    source = random.Random(1)
    tokens = [5, 7]
    while len(tokens) < 3000:
        follows = source.random() < 0.7
        tokens.append((tokens[-1] + tokens[-2]) % VOCAB if follows else int(source.random() * VOCAB))
    with open("tokens.bin", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))


def ours(build, options):
    run(1, build, "01_single_gpu", f"{SHAPE} {options}")


def run(ranks, build, program, options):
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    subprocess.run([*launcher, os.path.join(BUILD, build, program), "--data", "tokens.bin", "--quiet",
                    *options.split()], check=True)


def our_step(build):
    """Gradients, with their batch, and loss of the step that follows the checkpoint's."""
    ours(build, f"--accumulate 1 --load checkpoint --steps {STEPS + 1} "
                f"--dump-gradients {build}.safetensors --metrics {build}.csv")
    return what_came(build)


def what_came(name):
    with open(f"{name}.csv") as f:
        return load_file(f"{name}.safetensors"), float(list(csv.DictReader(f))[-1]["loss"])


def frequencies_of(config):
    head = config.hidden_size // config.num_attention_heads
    return 10000 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)


def open_checkpoint(directory, dtype=torch.float32):
    """As anybody would, and then: did it take every weight, and every key of config.json as we meant it?"""
    model, loading = transformers.GPTNeoXForCausalLM.from_pretrained(directory, output_loading_info=True,
                                                                     attn_implementation="sdpa", torch_dtype=dtype)
    assert not any(loading.values()), loading          # missing, unexpected, mismatched keys, errors
    assert model.dtype == dtype
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    x = torch.linspace(-4, 4, 1001)
    for layer in model.gpt_neox.layers:
        assert not layer.use_parallel_residual
        assert torch.equal(layer.mlp.act(x), torch.nn.functional.gelu(x, approximate="tanh"))
    # The whole head is rotated, with base 10000: keys that transformers renamed more than once.
    torch.testing.assert_close(model.gpt_neox.rotary_emb.inv_freq.double(), frequencies_of(model.config), rtol=1e-6,
                               atol=0)
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
        angles = (position_ids[..., None] * frequencies_of(model.config)).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    model.gpt_neox.rotary_emb.forward = forward


def parts(name, gradient, heads):
    """A QKV tensor holds q, k and v head by head; together, v would hide what is wrong with q and k."""
    if "query_key_value" not in name:
        return {name: gradient}
    by_head = gradient.unflatten(0, (heads, 3, -1))
    return {f"{name} ({'qkv'[i]})": by_head[:, i] for i in range(3)}


def compare(what, ours, theirs, most, heads=HEADS):
    """Prints the largest difference of any tensor, over the tensor's largest element; more than `most` is an error."""
    (gradients, loss), (_, expected, expected_loss) = ours, theirs
    assert set(gradients) == set(expected) | {"batch.inputs", "batch.targets"}
    differences = []
    for tensor in expected:
        a, b = (parts(tensor, g[tensor].double(), heads) for g in (gradients, expected))
        differences += [((a[part] - b[part]).abs().max().item() / b[part].abs().max().item(), part) for part in b]
    worst = max(differences)
    of_loss = abs(loss - expected_loss) / expected_loss
    print(f"{what:<58} loss {loss:.15f}, differs by {of_loss:.1e}; gradients by up to {worst[0]:.1e}: {worst[1]}")
    assert all(d <= most for d, _ in differences) and of_loss <= most      # a NaN is not


def model_from_there(hidden):
    """As save_pretrained's users have one: not as ours are born, but with every number away from 0 and 1; exact in
    F16 and BF16, so that all files tell of one model."""
    torch.manual_seed(1)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=LAYERS, num_attention_heads=5,
        intermediate_size=4 * hidden, hidden_act="gelu_pytorch_tanh", rotary_pct=1.0, use_parallel_residual=False,
        tie_word_embeddings=True, max_position_embeddings=64))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + 0.1 * torch.randn(p.shape)).half().bfloat16())
    return model


def layouts(hidden):
    """Ranks, program, options: six sequences in each. 05 cuts heads, of which there are 5: 3 ranks can't, 5 can."""
    shape = f"--layers {LAYERS} --hidden {hidden} --heads 5 --vocab {VOCAB} --seq 16 --seed 3"
    return [(ranks, program, f"{shape} {options}") for ranks, program, options in [
        (1, "01_single_gpu", "--micro-batch 3 --accumulate 2"),
        (1, "02_mixed_precision", "--micro-batch 3 --accumulate 2 --dtype fp32"),
        (2, "03_data_parallel", "--micro-batch 3 --accumulate 1"),
        (3, "04_zero", "--micro-batch 1 --accumulate 2 --zero 3"),
        (5, "05_tensor_parallel", "--micro-batch 3 --accumulate 2"),
        (2, "06_pipeline_parallel", "--micro-batch 1 --accumulate 6"),
        (2, "07_context_parallel", "--micro-batch 2 --accumulate 3"),
        (1, "08_fused_kernels", "--micro-batch 3 --accumulate 2 --dtype fp32 --fuse none"),
        (8, "09_combined", "--micro-batch 1 --accumulate 3 --dtype fp32 --cp 2 --pp 2")]]


def their_step(directory, batch):
    model = open_checkpoint(directory, torch.float64)
    angles_in_double(model)
    return theirs(model, batch)


def check_loading(hidden, directories):
    """Our programs begin with models of theirs, and save them at once."""
    for ranks, program, options in layouts(hidden):
        for directory in directories:
            run(ranks, "cpu64", program, f"{options} --load {directory} --steps 1 --dump-gradients step.safetensors "
                                         "--metrics step.csv")
            step = what_came("step")
            expected = their_step(directory, step[0])
            compare(f"{directory} in {program} on {ranks}", step, expected, 1e-10, 5)
            os.remove("step.csv")
        run(ranks, "cpu64", program, f"{options} --load {directory} --steps 0 --save again")
        difference = abs(their_step("again", step[0])[2] - expected[2])
        print(f"    saved by it, and opened there again: the loss differs by {difference:.1e}")
        assert difference <= 1e-12
        shutil.rmtree("again")
    return expected, step[0]


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

        model = open_checkpoint("checkpoint")
        compare("ours in float, theirs in float32", single, theirs(model, batch), 1e-5)
        model = model.double()
        expected = logits, gradients, loss = theirs(model, batch)
        compare("ours in float, theirs in float64", single, expected, 1e-5)
        compare("ours in double, theirs in float64", double, expected, 1e-6)
        angles_in_double(model)
        compare("the same, and their angles in float64", double, theirs(model, batch), 1e-12)
        for name, gradient in gradients.items():            # else the comparison would be of noise
            assert all(part.abs().max() > 1e-4 for part in parts(name, gradient, HEADS).values()), name

        for hidden in (40, 20):
            model = model_from_there(hidden)
            model.double().save_pretrained(f"{hidden}/F64")
            model.float().save_pretrained(f"{hidden}/F32")
            model.half().save_pretrained(f"{hidden}/F16")
            model.bfloat16().save_pretrained(f"{hidden}/shards", max_shard_size="40KB" if hidden == 40 else "10KB")
        check_loading(40, ["40/F64", "40/F32", "40/F16", "40/shards"])
        if check:
            shutil.copytree(os.path.join(HERE, "save_pretrained"), "save_pretrained")
        else:
            os.mkdir("save_pretrained")
            for kind in ("F16", "shards"):
                shutil.move(f"20/{kind}", f"save_pretrained/{kind}")
        there, their_batch = check_loading(20, ["save_pretrained/F16", "save_pretrained/shards"])

        if check:
            old = [load_file(os.path.join(HERE, f"expected_{name}.safetensors"))
                   for name in ("gradients", "logits", "save_pretrained")]
            compare("the fixture, theirs in float64", (old[0], old[1]["loss"].item()), expected, 1e-6)
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


main()
