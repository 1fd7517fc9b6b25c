#!/usr/bin/env python3
"""Compares the speed of 01 on the CPU with that of llm.c: GPT-2 124M, 4 sequences of 64 tokens, in turns.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    make bench-llm-c LLM_C=llm.c

llm.c has these sizes built in, and starts from a checkpoint and a file of tokens. A step takes the same time
with any of them, so both are written here: weights drawn as for GPT-2, and random tokens. It prints the time of each
step; 01 writes its own to --metrics. The numbers of one round are medians of as many steps, without the first two.

The models are not quite the same: llm.c learns its position embeddings, where 01 rotates q and k. Both have 124 million
parameters, an output projection tied to the embedding, and AdamW in float.
"""
import argparse
import array
import csv
import os
import random
import statistics
import subprocess
import tempfile

LAYERS, HIDDEN, HEADS, VOCAB, PADDED_VOCAB, POSITIONS = 12, 768, 12, 50257, 50304, 1024
BATCH, SEQ = 4, 64
WARM_UP = 2
STEPS = 8
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "cpu", "01_single_gpu")


def write_checkpoint(path):
    """Writes a checkpoint in llm.c's format: 256 integers, then the tensors of ParameterTensors in their order."""
    drawn = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 16)))

    def tensor(f, size, value=None):
        block = drawn if value is None else array.array("f", [value]) * len(drawn)
        while size > 0:
            block[:size].tofile(f)
            size -= len(block)

    with open(path, "wb") as f:
        header = [20240326, 3, POSITIONS, VOCAB, LAYERS, HEADS, HIDDEN, PADDED_VOCAB]
        array.array("i", header + [0] * (256 - len(header))).tofile(f)
        tensor(f, PADDED_VOCAB * HIDDEN)
        tensor(f, POSITIONS * HIDDEN)
        for size, value in ((HIDDEN, 1), (HIDDEN, 0), (3 * HIDDEN * HIDDEN, None), (3 * HIDDEN, 0),
                            (HIDDEN * HIDDEN, None), (HIDDEN, 0), (HIDDEN, 1), (HIDDEN, 0),
                            (4 * HIDDEN * HIDDEN, None), (4 * HIDDEN, 0), (4 * HIDDEN * HIDDEN, None), (HIDDEN, 0)):
            tensor(f, LAYERS * size, value)
        tensor(f, HIDDEN, 1)
        tensor(f, HIDDEN, 0)


def write_tokens(path):
    """Writes random tokens in llm.c's format, which 01 reads as well."""
    count = 50 * BATCH * SEQ
    with open(path, "wb") as f:
        array.array("i", [20240520, 1, count] + [0] * 253).tofile(f)
        array.array("H", (random.randrange(VOCAB) for _ in range(count))).tofile(f)


def llm_c_seconds(program, folder, threads):
    """Returns the median seconds of a step of llm.c, which is stopped after STEPS."""
    times = []
    with subprocess.Popen(["stdbuf", "-oL", program], cwd=folder, stdout=subprocess.PIPE, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(threads)}) as run:
        for line in run.stdout:
            if line.startswith("step"):
                times.append(float(line.split("took")[1].split()[0]) / 1e3)
                if len(times) == STEPS:
                    run.kill()
    if len(times) < STEPS:
        raise SystemExit(f"{program} printed {len(times)} steps of {STEPS}, and ended with status {run.returncode}")
    return statistics.median(times[WARM_UP:])


def own_seconds(folder, threads):
    """Returns the median seconds of a step of 01."""
    metrics = os.path.join(folder, "metrics.csv")
    subprocess.run([PROGRAM, "--layers", str(LAYERS), "--hidden", str(HIDDEN), "--heads", str(HEADS), "--vocab",
                    str(VOCAB), "--seq", str(SEQ), "--micro-batch", str(BATCH), "--accumulate", "1", "--data",
                    os.path.join(folder, "tokens.bin"), "--threads", str(threads), "--quiet", "--steps", str(STEPS),
                    "--metrics", metrics], check=True)
    with open(metrics, encoding="ascii") as rows:
        return statistics.median(float(row["seconds"]) for row in list(csv.DictReader(rows))[WARM_UP:])


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 on, got '{text}'")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="The speed of 01 beside llm.c's, on the CPU.")
    parser.add_argument("llm_c", metavar="DIR", help="a checkout of llm.c, after make train_gpt2")
    parser.add_argument("--threads", type=positive, nargs="+", default=sorted({1, os.cpu_count()}),
                        help="threads of each (1, and one per core)")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of llm.c and 01 (3)")
    given = parser.parse_args()
    program = os.path.abspath(os.path.join(given.llm_c, "train_gpt2"))
    if not os.access(program, os.X_OK):
        parser.error(f"there is no program {program}: make -C {given.llm_c} train_gpt2")
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "dev", "data", "tinyshakespeare")
        os.makedirs(data)
        write_checkpoint(os.path.join(folder, "gpt2_124M.bin"))
        write_tokens(os.path.join(folder, "tokens.bin"))
        for part in ("train", "val"):
            os.symlink(os.path.join(folder, "tokens.bin"), os.path.join(data, f"tiny_shakespeare_{part}.bin"))
        print("threads  round  llm.c, tokens/s  01, tokens/s  ratio")
        for threads in given.threads:
            for number in range(given.rounds):
                theirs, ours = llm_c_seconds(program, folder, threads), own_seconds(folder, threads)
                print(f"{threads:>7}  {number + 1:>5}  {BATCH * SEQ / theirs:>15.0f}  {BATCH * SEQ / ours:>12.0f}  "
                      f"{theirs / ours:>5.2f}", flush=True)


main()
