#!/usr/bin/env python3
"""Lists stored tables of measurements that are older than the code that they measure.

Each page of docs/benchmarks has one line that names a commit. The benchmarks write the first form themselves;
pages from before they did so have the second form, with the commit that stored their figures:

    - Measured on 2026-11-28 05:01 UTC with commit 0123456789 and changes: processor, threads, versions
    - Stored on 2026-11-24 21:31 UTC with commit 0123456789

MEASURES below says which sources a page measures. A page is old if a commit since then has changed more there
than comments. Only a person can say whether such a change moves a figure, so old pages are no failure. With
--check the script fails where a page has no such line or names no commit of this repository, and where pages
and MEASURES differ. Without the whole history of Git, as in a shallow clone, it says so and exits with 77.

Usage: stored_tables.py [--check | --self-test]
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CHAIN_PLANS = "src/plan/chain src/plan/chain_slots src/plan/common src/model"
GRAPH_PLANS = "src/plan/graph src/plan/common src/plan/baselines/dtr.cc src/model"
LEVEL_PLANS = f"{GRAPH_PLANS} src/plan/place"
CHAIN_MODE = f"{CHAIN_PLANS} src/runtime/chain src/pack src/training/zoo"
CAPTURE = "src/runtime/graph src/runtime/step"
GRAPH_MODE = f"{GRAPH_PLANS} {CAPTURE} src/runtime/rewrite src/runtime/arena src/pack"
COMPILE = f"{GRAPH_PLANS} python/reprise/_compile"
FOLLOW_MODE = f"{GRAPH_MODE} src/runtime/online src/runtime/lockstep"
FAR = f"{GRAPH_MODE} src/plan/place src/runtime/transfer"
NETWORKS = "bench/python/networks.py"
MEASURES = {
    "along_rows": f"{GRAPH_MODE} {NETWORKS}",
    "by_rows": f"{GRAPH_MODE} {NETWORKS}",
    "capture": f"{CAPTURE} src/training/zoo",
    "chain_mode": CHAIN_MODE,
    "chain_plan": f"{CHAIN_PLANS} src/plan/baselines bench/chain_plan/families.cc "
                  "bench/chain_plan/published_solver.cc",
    "chain_plan_zoo": f"{CHAIN_PLANS} src/plan/baselines bench/chain_plan/published_solver.cc",
    "checkmate_lp": GRAPH_PLANS,
    "codecs": f"{GRAPH_MODE} src/runtime/codec src/runtime/nn",
    "compile_advice": f"{COMPILE} {NETWORKS}",
    "compile_inductor": f"{COMPILE} {NETWORKS}",
    "compile_networks": f"{COMPILE} {NETWORKS}",
    "follow_mode": f"{FOLLOW_MODE} {NETWORKS}",
    "frozen_on_disk": FAR,
    "fused_regions": f"{GRAPH_MODE} python/reprise/_capture/regions.py {NETWORKS}",
    "graph_levels": f"{LEVEL_PLANS} bench/graph_plan/networks.cc bench/graph_plan/tape.cc",
    "graph_levels_zoo": f"{LEVEL_PLANS} src/training/zoo",
    "graph_mode": f"{GRAPH_MODE} {CHAIN_MODE}",
    "graph_plan": f"{GRAPH_PLANS} bench/graph_plan/networks.cc bench/graph_plan/tape.cc",
    "graph_plan_zoo": f"{GRAPH_PLANS} src/training/zoo",
    "large_problems": f"{CHAIN_PLANS} {GRAPH_PLANS} src/check src/io",
    "layers": "src/runtime/nn src/runtime/codec python/reprise/nn",
    "long_steps": GRAPH_MODE,
    "micro_batches": f"{GRAPH_MODE} src/runtime/parts src/training/zoo",
    "models": f"{GRAPH_MODE} tests/models/zoo.py",
    "online_mode": f"src/runtime/online {NETWORKS}",
    "optimizer_on_disk": FAR,
    "pack": "src/pack data/instances/chains",
    "planners": f"{GRAPH_MODE} {CHAIN_MODE} {LEVEL_PLANS} src/plan/baselines src/plan/literature src/plan/join",
    "rotor": f"{CHAIN_PLANS} bench/chain_plan/published_solver.cc data/instances/chains",
    "side_by_side": f"{GRAPH_MODE} {COMPILE} {CHAIN_PLANS} src/runtime/chain {NETWORKS}",
    "trainers": f"{FOLLOW_MODE} python/reprise/integrations",
    "varying_lengths": f"{FOLLOW_MODE} {NETWORKS}",
    "written_out": f"{GRAPH_MODE} src/runtime/nn",
}
LINE = re.compile(r"- (Measured|Stored) on (\d{4}-\d\d-\d\d) \d\d:\d\d UTC with commit ([0-9a-f]{7,40})"
                  r"( and changes)?(?:: |$)")
# Lines of comments do not count as changes.
NO_COMMENT = "-G^[[:space:]]*[^/#[:space:]]"


def git(root, *command):
    done = subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def look(root, measures):
    """Returns what is wrong with pages and table, and lines that name the old pages."""
    faults, old = [], []
    pages = {path.stem: path for path in sorted((root / "docs/benchmarks").glob("*.md"))}
    for name in sorted(measures.keys() - pages.keys()):
        faults.append(f"MEASURES has {name}, and there is no docs/benchmarks/{name}.md")
    for name, path in pages.items():
        place = f"docs/benchmarks/{name}.md"
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [match for line in lines if (match := LINE.match(line))]
        if name not in measures:
            faults.append(f"{place} is not in MEASURES of scripts/stored_tables.py: add what it measures")
            continue
        sources = measures[name].split()
        faults += [f"MEASURES says that {name} measures {source}, which is not there"
                   for source in sources if not (root / source).exists()]
        if len(found) != 1:
            faults.append(f"{place} has {len(found)} lines \"- Measured on DATE UTC with commit HASH\", not one")
            continue
        how, date, commit, changes = found[0].groups()
        if git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
            faults.append(f"{place}: there is no commit {commit}")
            continue
        since = git(root, "log", "--format=%h", NO_COMMENT, f"{commit}..HEAD", "--", *sources).split()
        if since:
            changed = [source for source in sources
                       if git(root, "log", "--format=%h", "-1", NO_COMMENT, f"{commit}..HEAD", "--", source)]
            count = "1 commit" if len(since) == 1 else f"{len(since)} commits"
            old.append(f"{place}: {how.lower()} with {commit}{changes or ''} ({date}); since then {count}, "
                       f"the newest {since[0]}, changed {', '.join(dict.fromkeys(changed))}")
    return faults, old


def self_test():
    """Breaks every rule in a repository of its own."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs/benchmarks").mkdir(parents=True)

        def commit(name, text):
            (root / name).write_text(text)
            git(root, "add", "-A")
            git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", name)
            return git(root, "rev-parse", "--short=10", "HEAD")

        git(root, "init", "-q")
        first = commit("a.cc", "int a;\n")
        second = commit("b.cc", "int b;\n")
        commit("b.cc", "int b;\n// A comment.\n")
        last = commit("a.cc", "int c;\n")
        line = "- Measured on 2026-11-28 05:01 UTC with commit {}: a processor\n"
        good = line.format(last)
        pages = {"old": line.format(first + " and changes"), "fresh": good, "comment": line.format(second),
                 "stored": f"- Stored on 2026-11-28 05:01 UTC with commit {first}\n", "none": "# No line\n",
                 "unknown": line.format("unknown"), "gone": line.format("0123456789"), "twice": good * 2,
                 "missing": good, "moved": good}
        for name, text in pages.items():
            (root / f"docs/benchmarks/{name}.md").write_text(text)
        measures = dict.fromkeys(pages, "a.cc") | {"comment": "b.cc", "moved": "c.cc", "extra": "a.cc"}
        del measures["missing"]
        faults, old = look(root, measures)
    wanted = [["MEASURES has extra", "gone.md: there is no commit 0123456789", "missing.md is not in MEASURES",
               "moved measures c.cc", "none.md has 0 lines", "twice.md has 2 lines", "unknown.md has 0 lines"],
              [f"old.md: measured with {first} and changes (2026-11-28); since then 1 commit, the newest "
               f"{last[:7]}", f"stored.md: stored with {first} (2026-11-28)"]]
    wrong = [f"{len(lines)} lines, not {len(texts)}: {lines}" for lines, texts in zip((faults, old), wanted)
             if len(lines) != len(texts)]
    wrong += [f"nothing says {text}" for lines, texts in zip((faults, old), wanted) for text in texts
              if not any(text in line for line in lines)]
    print("\n".join(wrong) or "every rule was broken and seen")
    return 1 if wrong else 0


def main():
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    if arguments not in ([], ["--check"], ["--self-test"]):
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parent.parent
    testing = arguments == ["--self-test"]
    if shutil.which("git") is None or (
            not testing and git(root, "rev-parse", "--is-shallow-repository") != "false"):
        print("the ages of stored tables are not known: Git's whole history is not here")
        return 77 if arguments else 0
    if testing:
        return self_test()
    faults, old = look(root, MEASURES)
    print("\n".join(faults if check else faults + old) or "each stored table names its commit")
    return 1 if check and faults else 0


if __name__ == "__main__":
    sys.exit(main())
