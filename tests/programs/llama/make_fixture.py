#!/usr/bin/env python3
"""Computes loss and gradients of Hugging Face's LlamaForCausalLM in float64, the fixture for 12_llama's tests.

    make cpu64
    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    /tmp/hf/bin/python tests/programs/llama/make_fixture.py            makes a new fixture
    /tmp/hf/bin/python tests/programs/llama/make_fixture.py --check    compares with the fixture; writes nothing

Each case is a small model with weights like a trained one's, which save_pretrained writes and from_pretrained opens:

    grouped/                        two query heads per k and v, Llama 3's rotation, an untied head; BF16, in two files
    one/                            one k and v for all query heads, the embedding as head; F16
    all/                            as many k and v as query heads, an untied head; F32
    expected_CASE.safetensors       gradients by Hugging Face's names, and the batch, which does not depend on the model
    expected_losses.safetensors     each case's mean loss

A model in float64 is not enough: transformers casts to float32 in RMSNorm, softmax and rotation angles, so only six
digits of its gradients are right. Therefore its own code runs here with float64 wherever it says float32. A second
implementation, which shares no code with it, confirms the result to 1e-12.

If 12_llama is built, it loads each model, and its loss and gradients agree to 1e-10. It saves the model at once, and
Hugging Face opens that with the same loss.

The new fixture replaces the old one only if all agree. The data is ../huggingface/tokens.bin. The tests need neither
Python nor PyTorch. Needs transformers 5; made with 5.24.0.
"""
import argparse
import contextlib
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "huggingface"))         # first, because this file has the same name
from make_fixture import BUILD, VOCAB, compare, read_step, run_01, step_of_transformers          # noqa: E402

PROGRAM = os.path.join(BUILD, "cpu64", "12_llama")
TOKENS = os.path.join(HERE, "..", "huggingface", "tokens.bin")
BATCH = f"--vocab {VOCAB} --seq 17 --seed 3 --micro-batch 3 --accumulate 2"

# A head of six has three frequencies, with wavelengths 6, 499 and 39582. Llama 3 keeps the first, since it is below
# 1024/4, divides the last by the factor, since it is above 1024/1, and interpolates the one between.
LLAMA_3 = {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
DEFAULT = {"rope_theta": 10000.0, "rope_type": "default"}
CASES = {
    "grouped": {"num_hidden_layers": 2, "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3,
                "intermediate_size": 37, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
                "rope_parameters": LLAMA_3, "max_position_embeddings": 8192, "dtype": torch.bfloat16},
    "one": {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 1,
            "intermediate_size": 29, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
            "rope_parameters": DEFAULT, "dtype": torch.float16},
    "all": {"num_hidden_layers": 3, "hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 3,
            "intermediate_size": 20, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
            "rope_parameters": DEFAULT, "dtype": torch.float32},
}


# ---- Hugging Face ----

def save_model(directory, case):
    """Writes a model, with every weight away from its initial value, and exact in the file's type."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCAB, **case)).float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape))
    model.to(case["dtype"]).save_pretrained(directory, max_shard_size="30KB")


def open_model(directory):
    """Opens a model as a user would, in float64, and checks that every weight was loaded."""
    model, loading = transformers.LlamaForCausalLM.from_pretrained(directory, output_loading_info=True,
                                                                   attn_implementation="eager", dtype=torch.float64)
    assert not any(loading.values()), loading               # missing, unexpected, mismatched keys, errors
    assert all(p.dtype == torch.float64 for p in model.parameters())
    return model


@contextlib.contextmanager
def float64_for_float32():
    """Gives torch.float32, torch.float and Tensor.float the meaning of float64, in the code of transformers."""
    with mock.patch.multiple(torch, float32=torch.float64, float=torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def step_in_float64(directory, batch):
    """Returns Hugging Face's logits, gradients by name, and mean loss, all in float64."""
    model = open_model(directory)
    with float64_for_float32():
        model.model.rotary_emb = LlamaRotaryEmbedding(model.config)         # computes the frequencies again
        return step_of_transformers(model, batch)


# ---- The second implementation ----

def frequencies_of(rope, head):
    """Returns how far each pair of a head's elements turns from one position to the next."""
    frequencies = []
    for i in range(0, head, 2):
        f = rope["rope_theta"] ** (-i / head)
        if rope["rope_type"] == "llama3":
            turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)    # in the first training's context
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            kept = min(max((turns - low) / (high - low), 0), 1)
            f *= kept + (1 - kept) / rope["factor"]
        frequencies.append(f)
    return torch.tensor(frequencies, dtype=torch.float64)


def step_by_hand(directory, batch):
    """Returns gradients, with the batch, and mean loss of the model in the files, without transformers."""
    w = {}
    for file in glob.glob(os.path.join(directory, "*.safetensors")):
        w |= {name: t.double().requires_grad_() for name, t in load_file(file).items()}
    with open(os.path.join(directory, "config.json")) as f:
        c = json.load(f)
    inputs, targets = batch["batch.inputs"], batch["batch.targets"]
    seq, heads = inputs.shape[1], c["num_attention_heads"]
    head, per_kv = c["hidden_size"] // heads, heads // c["num_key_value_heads"]
    turn = torch.exp(1j * torch.arange(seq)[:, None] * frequencies_of(c["rope_parameters"], head))
    future = torch.ones(seq, seq).triu(1).bool()

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt() * w[name]

    def rotate(x):                                          # element i turns with element i + head/2
        turned = torch.complex(x[..., :head // 2], x[..., head // 2:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    x = w["model.embed_tokens.weight"][inputs]
    for layer in range(c["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        n = norm(x, f"{block}.input_layernorm.weight")
        q, k, v = ((n @ w[f"{block}.self_attn.{name}_proj.weight"].T).split(head, -1) for name in "qkv")
        outputs = []
        for h in range(heads):
            scores = rotate(q[h]) @ rotate(k[h // per_kv]).mT / math.sqrt(head)
            outputs.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[h // per_kv])
        x = x + torch.cat(outputs, -1) @ w[f"{block}.self_attn.o_proj.weight"].T
        n = norm(x, f"{block}.post_attention_layernorm.weight")
        gate, up = (n @ w[f"{block}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w[f"{block}.mlp.down_proj.weight"].T
    output = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    logits = norm(x, "model.norm.weight") @ output.T
    loss = (logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]).mean()
    loss.backward()
    return {name: t.grad for name, t in w.items()} | batch, loss.item()


# ---- 12_llama ----

def options_of(case):
    untied = "" if case["tie_word_embeddings"] else "--untied "
    return (f"--layers {case['num_hidden_layers']} --hidden {case['hidden_size']} "
            f"--heads {case['num_attention_heads']} --kv-heads {case['num_key_value_heads']} "
            f"--mlp {case['intermediate_size']} {untied}--rope-theta {case['rope_parameters']['rope_theta']:g} {BATCH}")


def run_llama(options):
    subprocess.run([PROGRAM, "--data", TOKENS, "--quiet", *options.split()], check=True)


def check_program(name, options, batch, expected):
    """Checks that 12 starts from Hugging Face's model, and that Hugging Face opens what 12 saves."""
    run_llama(f"{options} --load {name} --steps 1 --dump-gradients step.safetensors --metrics step.csv")
    step = read_step("step")
    assert all(torch.equal(step[0][tensor], batch[tensor]) for tensor in batch)
    compare(f"{name}: 12_llama in double", step, expected, 1e-10)
    run_llama(f"{options} --load {name} --steps 0 --save again")
    difference = abs(step_in_float64("again/step-0", batch)[2] - expected[2])
    print(f"    saved by 12, and opened by Hugging Face: the loss differs by {difference:.1e}")
    assert difference <= 1e-12
    shutil.rmtree("again")
    os.remove("step.csv")


# ---- The fixture ----

def check_files(name, case):
    """Checks that the files have the type and the head that the case is about, and that one model is in two files."""
    files = [load_file(file) for file in glob.glob(f"{name}/*.safetensors")]
    assert len(files) == (2 if name == "grouped" else 1)
    assert all(t.dtype == case["dtype"] for file in files for t in file.values())
    assert any("lm_head.weight" in file for file in files) != case["tie_word_embeddings"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with the current fixture; writes nothing")
    check = arguments.parse_args().check

    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    scale = frequencies_of(LLAMA_3, 6) / frequencies_of(LLAMA_3 | {"rope_type": "default"}, 6)
    assert scale[0] == 1 and 1 / 8 < scale[1] < 1 and scale[2] == 1 / 8         # all branches of Llama 3's formula
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        shutil.copy(TOKENS, ".")
        run_01("cpu64", f"--layers 1 --hidden 4 --heads 1 {BATCH} --steps 1 --dump-gradients small.safetensors")
        small, losses = load_file("small.safetensors"), {}
        batch = {name: small[name] for name in ("batch.inputs", "batch.targets")}
        for name, case in CASES.items():
            if check:
                shutil.copytree(os.path.join(HERE, name), name)
            else:
                save_model(name, case)
            check_files(name, case)
            expected = _, gradients, loss = step_in_float64(name, batch)
            by_hand = step_by_hand(name, batch)
            compare(f"{name}: the second implementation", by_hand, expected, 1e-12)
            compare("    with transformers as it is", by_hand, step_of_transformers(open_model(name), batch), 1e-4)
            for tensor, gradient in gradients.items():      # otherwise the comparison would be of noise
                assert gradient.abs().max() > 1e-4, tensor
            if os.path.exists(PROGRAM):
                check_program(name, options_of(case), batch, expected)
            if check:
                old = (load_file(os.path.join(HERE, f"expected_{name}.safetensors")),
                       load_file(os.path.join(HERE, "expected_losses.safetensors"))[name].item())
                assert all(torch.equal(old[0][tensor], batch[tensor]) for tensor in batch)
                compare("    the fixture", old, expected, 1e-12)
            else:
                save_file(gradients | batch, f"expected_{name}.safetensors")
                losses[name] = torch.tensor([loss], dtype=torch.float64)
        if not os.path.exists(PROGRAM):
            print(f"{os.path.normpath(PROGRAM)} is not built, so only transformers was compared")
        if not check:
            save_file(losses, "expected_losses.safetensors")
            for name in [*CASES, *(f"expected_{name}.safetensors" for name in [*CASES, "losses"])]:
                shutil.rmtree(os.path.join(HERE, name), ignore_errors=True)
                shutil.move(name, os.path.join(HERE, name))
                os.chmod(os.path.join(HERE, name), 0o755 if name in CASES else 0o644)
        os.chdir(HERE)


if __name__ == "__main__":
    main()
