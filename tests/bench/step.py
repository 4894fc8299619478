#!/usr/bin/python3
"""Records/s of one optimizer step: Pawl's trainer and the same model in Python.

    tests/bench/step.py BUILD [--threads 1] [--seconds 10] [--rounds 3]
                              [--set d_model=256 layers=6 ...]

Both train policy_value_transformer on the same chess records in the same
micro-batches, padded as the job says, with the same libtorch and BLAS, taking
turns. The Python side is written with torch.nn as people write it.
"""
import argparse, json, os, platform, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
CHESS = os.path.join(HERE, "..", "fixtures", "chess")
OPENMP = "/usr/lib/%s-linux-gnu/openblas-openmp" % platform.machine()


def python_side(job, shard, threads, seconds):
    import torch
    from torch import nn
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(job["training"]["seed"])
    m, rec = job["model"], job["record"]
    D, H, p = m["d_model"], m["heads"], m["dropout"]
    over = rec["policy"]["over"]
    inputs = [k for k in sorted(rec) if rec[k]["kind"] != "target" and k != over]

    class Field(nn.Module):
        def __init__(self, f):
            super().__init__()
            self.tokens = f["kind"] == "tokens"
            self.field = nn.Parameter(torch.randn(D) / D ** 0.5)
            if self.tokens:
                self.table = nn.Embedding(f["vocab"], D)
                self.positions = nn.Embedding(m.get("max_length", 512), D)
            else:
                self.tables = nn.ModuleList(
                    nn.Embedding(c["vocab"], D) for c in f["columns"])

        def forward(self, x):
            if self.tokens:
                at = torch.arange(x.size(1))
                return self.table(x) + self.positions(at) + self.field
            return sum(t(x[:, :, i]) for i, t in enumerate(self.tables)) + self.field

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls = nn.Parameter(torch.randn(1, 1, D) / D ** 0.5)
            self.fields = nn.ModuleDict({k: Field(rec[k]) for k in inputs + [over]})
            layer = nn.TransformerEncoderLayer(
                D, H, m["ff"], p, F.gelu, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, m["layers"], nn.LayerNorm(D))
            self.norm = nn.LayerNorm(D)
            self.cross = nn.MultiheadAttention(D, H, p, batch_first=True)
            self.drop = nn.Dropout(p)
            self.score = nn.Sequential(
                nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Linear(D, 1, bias=False))
            self.value = nn.Sequential(
                nn.Linear(D, D), nn.GELU(), nn.Linear(D, 1), nn.Tanh())

        def forward(self, b):
            B = b["value"].size(0)
            parts = [self.cls.expand(B, 1, D)]
            masks = [torch.zeros(B, 1, dtype=torch.bool)]
            for k in inputs:
                parts.append(self.fields[k](b[k]))
                masks.append(b[k + ".mask"])
            mask = torch.cat(masks, 1)
            x = self.encoder(torch.cat(parts, 1), src_key_padding_mask=mask)
            c = self.fields[over](b[over])
            y, _ = self.cross(self.norm(c), x, x, key_padding_mask=mask, need_weights=False)
            s = self.score(c + self.drop(y)).squeeze(2)
            return s.masked_fill(b[over + ".mask"], -float("inf")), self.value(x[:, 0]).squeeze(1)

    minimum = job["runtime"]["padding"]["minimum"]

    def collate(rows):
        b = {"value": torch.tensor([r["value"] for r in rows])}
        for k in inputs + [over, "policy"]:
            f = rec[k] if k != "policy" else rec[over]
            n = max([minimum.get(f["dim"], 0)] + [len(r[k]) for r in rows])
            blank = [0] * len(f["columns"]) if f["kind"] == "rows" else 0
            if k == "policy":
                blank = 0.0
            b[k] = torch.tensor([r[k] + [blank] * (n - len(r[k])) for r in rows])
            b[k + ".mask"] = torch.tensor([[i >= len(r[k]) for i in range(n)] for r in rows])
        return b

    rows = [json.loads(line) for line in open(shard)]
    micro, effective = job["runtime"]["micro_batch"], job["training"]["effective_batch"]
    per_step = effective // micro
    batches = [collate(rows[i:i + micro]) for i in range(0, len(rows) - micro + 1, micro)]
    model = Model()
    o = job["training"]["optimizer"]
    adamw = torch.optim.AdamW(model.parameters(), o["lr"], o["betas"], 1e-8, o["weight_decay"])
    step, start = 0, 0.0
    while step <= 3 or time.monotonic() - start < seconds:
        if step == 3:
            start = time.monotonic()
        total = 0.0
        for k in range(per_step):
            b = batches[(step * per_step + k) % len(batches)]
            scores, value = model(b)
            logs = F.log_softmax(scores, 1).masked_fill(b["policy"] == 0, 0)
            loss = -(b["policy"] * logs).sum() + (value - b["value"]).square().sum()
            (loss / effective).backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), job["training"]["clip_norm"])
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        step += 1
    wall = time.monotonic() - start
    print(json.dumps({
        "records_per_s": round((step - 3) * effective / wall, 1), "steps": step - 3,
        "parameters": sum(x.numel() for x in model.parameters()),
        "loss": round(total / effective, 4), "torch": torch.__version__}))


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("build", help="build folder, with bin/bench_step in it")
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--seconds", type=float, default=10)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--shard", default=os.path.join(CHESS, "shard-0000.jsonl"))
    a.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                   help="change a value of the job's model")
    a.add_argument("--python-side", action="store_true", help=argparse.SUPPRESS)
    a.add_argument("--job", default=os.path.join(CHESS, "job.json"))
    a = a.parse_args()
    job = json.load(open(a.job))
    for s in a.set:
        key, value = s.split("=")
        job["model"][key] = json.loads(value)
    if a.python_side:
        python_side(job, a.shard, a.threads, a.seconds)
        return

    env = dict(os.environ, OMP_NUM_THREADS=str(a.threads))
    env.setdefault("OMP_WAIT_POLICY", "passive")  # as pawl-worker does
    if os.path.isdir(OPENMP):
        env["LD_LIBRARY_PATH"] = OPENMP
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(job, f)
        f.flush()
        sides = {
            "pawl": [os.path.join(a.build, "bin", "bench_step"), f.name, a.shard,
                     str(a.threads), str(a.seconds)],
            "python": [sys.executable, __file__, a.build, "--python-side", "--job", f.name,
                       "--shard", a.shard, "--threads", str(a.threads),
                       "--seconds", str(a.seconds)],
        }
        best = {}
        for _ in range(a.rounds):
            for name, command in sides.items():
                out = json.loads(subprocess.run(
                    command, env=env, check=True, stdout=subprocess.PIPE).stdout)
                if out["records_per_s"] > best.get(name, {}).get("records_per_s", 0):
                    best[name] = out
    cpu = "?"
    if os.path.exists("/proc/cpuinfo"):
        cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo")
                    if x.startswith("model name")), "?")
    print("%s, %s, %d thread%s, model %s, best of %d" % (
        platform.system(), cpu, a.threads, "s" * (a.threads > 1), json.dumps(job["model"]),
        a.rounds))
    for name, out in best.items():
        print("%-7s %9.1f records/s  %s" % (name, out["records_per_s"], json.dumps(out)))
    print("pawl / python = %.2f" % (
        best["pawl"]["records_per_s"] / best["python"]["records_per_s"]))


main()
