#!/usr/bin/env python3
"""A model that Pawl trained, in plain torch.

    curl -H "Authorization: Bearer $TOKEN" $URL/v1/jobs/1/model -o model.safetensors
    deploy/examples/model.py model.safetensors records.jsonl

prints one JSON line per record: {"policy": [one probability per candidate],
"value": x}; "-" reads records from standard input. Take load() and Model into
your own program: parameters are ordinary tensors by name, so Model trains too.

The file is a safetensors file: 8 bytes of header length, a JSON header, the
tensors. Its metadata holds the architecture: {"model": ..., "record": ...}, as
in the job's spec. What the tensors mean stands in worker/model.h.
"""
import argparse
import json
import struct
import sys

import torch
import torch.nn.functional as F


def load(path):
    """Tensors by name, and the architecture, of a model file."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = bytearray(f.read())
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, t in header.items():
        if t["dtype"] != "F32":
            raise ValueError("%s is %s, not F32" % (name, t["dtype"]))
        begin, end = t["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float32,
                                count=(end - begin) // 4, offset=begin)
        tensors[name] = flat.reshape(t["shape"])
    return tensors, json.loads(metadata["architecture"])


class Model:
    """policy_value_transformer, one record at a time: nothing to pad or mask."""

    def __init__(self, tensors, architecture):
        self.p = tensors
        self.layers = architecture["model"]["layers"]
        self.heads = architecture["model"]["heads"]
        self.record = architecture["record"]
        self.policy = self.value = self.candidates = None
        for name, field in self.record.items():
            if field["kind"] == "target" and "over" in field:
                self.policy, self.candidates = name, field["over"]
            elif field["kind"] == "target":
                self.value = name
        # Fields stand sorted by name (bytewise), the candidates apart.
        self.inputs = sorted(
            (name for name, field in self.record.items()
             if field["kind"] != "target" and name != self.candidates),
            key=lambda name: name.encode())

    def linear(self, x, name):
        return F.linear(x, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def norm(self, x, name):
        weight = self.p[name + ".weight"]
        return F.layer_norm(x, weight.shape, weight, self.p[name + ".bias"], 1e-5)

    def embed(self, name, values):
        """One row per entry of the field."""
        field, at = self.record[name], "embed." + name
        x = self.p[at + ".field"].expand(len(values), -1)
        if not values:
            return x
        if field["kind"] in ("tokens", "numbers"):
            x = x + self.p[at + ".positions"][:len(values)]
        if field["kind"] == "tokens":
            x = x + self.p[at + ".tokens"][torch.tensor(values)]
        elif field["kind"] == "numbers":
            x = x + F.linear(torch.tensor(values, dtype=torch.float32)[:, None],
                             self.p[at + ".numbers"])
        else:
            numbers = []
            for c, column in enumerate(field["columns"]):
                entries = [row[c] for row in values]
                if column.get("vocab"):
                    x = x + self.p["%s.columns.%d" % (at, c)][torch.tensor(entries)]
                else:
                    scale = column.get("scale", 1)
                    numbers.append([entry / scale for entry in entries])
            if numbers:
                x = x + F.linear(torch.tensor(numbers, dtype=torch.float32).t(),
                                 self.p[at + ".numbers"])
        return x

    def attend(self, q, k, v):
        def split(x):
            return x.reshape(x.shape[0], self.heads, -1).transpose(0, 1)
        q, k, v = split(q), split(k), split(v)
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5, 2)
        return (weights @ v).transpose(0, 1).flatten(1)

    def __call__(self, record):
        """(policy over the record's candidates, value); None where the model
        has no such target."""
        p = self.p
        x = torch.cat([p["class"][None]] +
                      [self.embed(name, record[name]) for name in self.inputs])
        for layer in range(self.layers):
            at = "encoder.%d." % layer
            h = self.norm(x, at + "attention.norm")
            q, k, v = F.linear(h, p[at + "attention.qkv.weight"]).chunk(3, 1)
            h = self.attend(q + p[at + "attention.q.bias"], k, v)
            x = x + self.linear(h, at + "attention.out")
            h = F.gelu(self.linear(self.norm(x, at + "ff.norm"), at + "ff.in"))
            x = x + self.linear(h, at + "ff.out")
        x = self.norm(x, "encoder.norm")

        policy = value = None
        if self.value:
            h = F.gelu(self.linear(x[0], "value.in"))
            value = torch.tanh(self.linear(h, "value.out"))[0]
        if self.policy:
            c = self.embed(self.candidates, record[self.candidates])
            q = self.linear(self.norm(c, "policy.norm"), "policy.q")
            k, v = F.linear(x, p["policy.kv.weight"]).chunk(2, 1)
            c = c + self.linear(self.attend(q, k, v), "policy.out")
            h = self.norm(c, "policy.score.norm")
            h = F.gelu(self.linear(h, "policy.score.in"))
            policy = torch.softmax(self.linear(h, "policy.score.out")[:, 0], 0)
        return policy, value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the model file (safetensors)")
    parser.add_argument("records", nargs="?", default="-", help="JSON lines (default: standard input)")
    args = parser.parse_args()
    model = Model(*load(args.model))
    lines = sys.stdin if args.records == "-" else open(args.records, encoding="utf-8")
    with torch.no_grad():
        for line in lines:
            if not line.strip():
                continue
            policy, value = model(json.loads(line))
            answer = {}
            if policy is not None:
                answer["policy"] = policy.tolist()
            if value is not None:
                answer["value"] = value.item()
            print(json.dumps(answer))


if __name__ == "__main__":
    main()
