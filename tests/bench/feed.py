#!/usr/bin/python3
"""MB/s from JSON lines to shuffled, padded batches: Pawl's feed, simdjson alone,
and Python's json with a torch DataLoader; and how long training waits for the feed.

    tests/bench/feed.py BUILD [--mb 200] [--rounds 5] [--steps 94]

All on the same chess records. MB are 10^6 bytes of text. "One thread" figures are
per second of processor time, which a busy machine disturbs less than the clock;
the feed's count all of its threads, reading and verifying included.
"""
import argparse, json, os, platform, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
CHESS = os.path.join(HERE, "..", "fixtures", "chess")
OPENMP = "/usr/lib/%s-linux-gnu/openblas-openmp" % platform.machine()


def python_side(job, shards, rounds):
    """As people write it: a map-style dataset of lines, shuffled by the loader."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    rec, minimum = job["record"], job["runtime"]["padding"].get("minimum", {})
    over = rec["policy"]["over"]
    lists = [k for k in sorted(rec) if rec[k]["kind"] != "target"] + ["policy"]

    class Lines(Dataset):
        def __init__(self):
            self.lines = [l for p in shards for l in open(p, "rb")]

        def __len__(self):
            return len(self.lines)

        def __getitem__(self, i):
            return json.loads(self.lines[i])

    def collate(rows):
        b = {"value": torch.tensor([r["value"] for r in rows])}
        for k in lists:
            f = rec[k] if k != "policy" else rec[over]
            n = max([minimum.get(f["dim"], 0), 1] + [len(r[k]) for r in rows])
            blank = [0] * len(f["columns"]) if f["kind"] == "rows" else 0
            if k == "policy":
                blank = 0.0
            b[k] = torch.tensor([r[k] + [blank] * (n - len(r[k])) for r in rows])
        return b

    data = Lines()
    size = sum(len(l) for l in data.lines) * 1e-6
    best = {"cpu": 1e9, "wall": 1e9}
    for _ in range(rounds):
        loader = DataLoader(data, job["runtime"]["micro_batch"], shuffle=True,
                            collate_fn=collate)
        wall, cpu = time.monotonic(), time.process_time()
        for batch in loader:
            pass
        best["cpu"] = min(best["cpu"], time.process_time() - cpu)
        best["wall"] = min(best["wall"], time.monotonic() - wall)
    print(json.dumps({"mb_per_s": round(size / best["wall"], 1),
                      "mb_per_cpu_s": round(size / best["cpu"], 1),
                      "torch": torch.__version__}))


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("build", help="build folder, with bin/bench_feed in it")
    a.add_argument("--mb", type=float, default=200)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--steps", type=int, default=94, help="to train; 0: do not")
    a.add_argument("--job", default=os.path.join(CHESS, "job.json"))
    a.add_argument("--shards", nargs="*", default=None)
    a.add_argument("--python-side", action="store_true", help=argparse.SUPPRESS)
    a = a.parse_args()
    shards = a.shards or sorted(
        os.path.join(CHESS, f) for f in os.listdir(CHESS) if f.endswith(".jsonl"))
    if a.python_side:
        python_side(json.load(open(a.job)), shards, a.rounds)
        return

    env = dict(os.environ, OMP_NUM_THREADS="1")
    env.setdefault("OMP_WAIT_POLICY", "passive")  # as pawl-worker does
    if os.path.isdir(OPENMP):
        env["LD_LIBRARY_PATH"] = OPENMP

    def run(*command):
        return json.loads(subprocess.run(
            command, env=env, check=True, stdout=subprocess.PIPE).stdout)

    bench = os.path.join(a.build, "bin", "bench_feed")
    out = run(bench, a.job, str(a.mb), str(a.rounds), *shards)
    out["python_json_dataloader"] = run(
        sys.executable, __file__, a.build, "--python-side", "--job", a.job,
        "--rounds", "3", "--shards", *shards)
    cpu = "?"
    if os.path.exists("/proc/cpuinfo"):
        cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo")
                    if x.startswith("model name")), "?")
    print("%s, %s, load %.1f; %.0f MB, %d records, best of %d" % (
        platform.system(), cpu, os.getloadavg()[0], out["mb"], out["records"], a.rounds))
    print("%-24s %12s %12s" % ("", "MB/s, wall", "one thread"))
    for name, v in out.items():
        if isinstance(v, dict):
            print("%-24s %12.1f %12.1f" % (name, v["mb_per_s"], v["mb_per_cpu_s"]))
    ours = out["decode_shuffle_collate"]["mb_per_cpu_s"]
    for name in "simdjson_ondemand", "simdjson_dom", "python_json_dataloader":
        print("decode + shuffle + collate / %s = %.2f" % (
            name, ours / out[name]["mb_per_cpu_s"]))
    if a.steps:
        t = run(bench, a.job, "--train", str(a.steps), *shards)
        print("training %d steps of the job took %.2f s, of which it waited %.4f s "
              "for the feed (%.4f s for the first batch): %.2f %%; with collating %.2f %%" % (
                  t["steps"], t["wall_s"], t["waited_s"], t["first_s"],
                  100 * t["waited_share"], 100 * t["waited_and_collated_share"]))


main()
