#!/usr/bin/env python3
"""Opens a checkpoint of 10_expert_parallel with Hugging Face's transformers: GPTNeoXForCausalLM, with each layer's mlp
replaced. Prints its loss on the batch of a --dump-gradients file, and how far its gradients are from that file's.

    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers safetensors
    build/cpu64/10_expert_parallel --preset tiny --steps 20 --save mixture
    build/cpu64/10_expert_parallel --preset tiny --steps 21 --load mixture --balance 0 --dump-gradients g.safetensors
    /tmp/hf/bin/python tests/programs/experts/huggingface.py mixture/step-20 g.safetensors 1.25  the last is --capacity

Hugging Face computes rotary positions in float32, so even in float64 gradients differ by about 2e-9.
"""
import json
import math
import sys

import torch
from safetensors.torch import load_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP


class Experts(torch.nn.Module):
    def __init__(self, config, experts, top_k, capacity, span):
        super().__init__()
        self.top_k, self.capacity, self.span = top_k, capacity, span
        self.gate = torch.nn.Linear(config.hidden_size, experts, bias=False)
        self.experts = torch.nn.ModuleList(GPTNeoXMLP(config) for _ in range(experts))

    def forward(self, x):                                       # (B, T, h)
        e, T = len(self.experts), self.span or x.shape[1]
        slots = min(T, math.ceil(self.capacity * self.top_k * T / e - 1e-9)) if self.capacity else T
        probs = self.gate(x).softmax(-1).reshape(-1, T, e)      # (spans, T, e)
        gates, choice = probs.topk(self.top_k)
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        chosen = torch.nn.functional.one_hot(choice, e)         # (spans, T, k, e); a token takes an expert at most once
        kept = chosen.sum(2).cumsum(1) <= slots                 # (spans, T, e)
        gates = ((gates[..., None] * chosen).sum(2) * kept).reshape(*x.shape[:2], e)
        load = chosen.sum((1, 2)).to(x) / (self.top_k * T)      # each expert's part of a span's choices: a constant
        self.balance_loss = (load * e * probs.mean(1)).sum(-1).mean()
        self.dropped = 1 - (chosen.sum(2) * kept).sum().item() / chosen.sum().item()
        return sum(gates[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


def open_mixture(directory, capacity, span=0, top_k=None):
    with open(directory + "/config.json") as f:
        config = json.load(f)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**{**config, "model_type": "gpt_neox"}))
    for layer in model.gpt_neox.layers:
        layer.mlp = Experts(model.config, config["num_local_experts"], top_k or config["num_experts_per_tok"], capacity,
                            span)
    tensors = load_file(directory + "/model.safetensors")
    missing, unexpected = model.to(tensors["gpt_neox.embed_in.weight"].dtype).load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"embed_out.weight", "lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


if __name__ == "__main__":
    model, dump = open_mixture(sys.argv[1], float(sys.argv[3])), load_file(sys.argv[2])
    logits = model(dump["batch.inputs"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), dump["batch.targets"].flatten())
    loss.backward()
    worst = max(((p.grad - dump[name]).abs().max() / dump[name].abs().max().clamp(min=1e-30)).item()
                for name, p in model.named_parameters() if name in dump and p.grad is not None)
    print(f"loss {loss.item():.12f}; gradients differ by {worst:.1e} at most")
