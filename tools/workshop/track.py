#!/usr/bin/env python3
"""track.py PROJECT [NAME]: reads a run's --metrics from standard input and sends each step to trackio, or with
TRACKER=wandb to Weights & Biases, while the run goes on:

    build/cpu/01_single_gpu --metrics run.csv & tail --pid=$! -n +1 -F run.csv |
        uv run --with trackio tools/workshop/track.py shakespeare
"""
import csv
import importlib
import os
import sys

if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
tracker = importlib.import_module(os.environ.get("TRACKER", "trackio"))
tracker.init(project=sys.argv[1], name=sys.argv[2] if len(sys.argv) == 3 else None)
for row in csv.DictReader(sys.stdin):
    step = int(row.pop("step"))
    tracker.log({name: float(value) for name, value in row.items() if value}, step=step)
tracker.finish()
