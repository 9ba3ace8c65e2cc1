"""Malformed files end with exit code 2 and a message with file and place, never in a crash."""

import copy
import json
import unittest

from harness import BAD_INPUT, BROKEN, DONE, ProgramTest

COST = {"ns": 1}
CHAIN = {
    "format": "reprise.chain", "version": 1, "name": "c", "input": {"bytes": 10},
    "stages": [{"name": "s", "output_bytes": 20, "forward": COST,
                "options": [{"name": "keep", "saved_bytes": 7, "forward": COST, "backward": COST}]}],
}
GRAPH = {
    "format": "reprise.graph", "version": 1, "name": "g",
    "values": [{"id": "x", "bytes": 8, "kind": "input"}, {"id": "y", "bytes": 8}],
    "ops": [{"id": "f", "variants": [{"ns": 1, "reads": ["x"], "writes": ["y"]}]}],
    "results": ["y"],
}
OWNED = GRAPH | {
    "version": 2, "ops": [GRAPH["ops"][0] | {"owner": "m"}],
    "choices": [{"id": "c", "realizations": [{"name": "n", "ops": ["f"]}]}],
}
PROFILE = {
    "format": "reprise.profile", "version": 1, "problem": CHAIN, "device": "cpu", "versions": {},
    "threads": 1, "inputs": [], "signature": "", "spread": [],
}
PLAN = {
    "format": "reprise.plan", "version": 1, "problem": {"format": "reprise.chain", "name": "c"},
    "planner": "p", "termination": "optimal", "schedule_class": "all", "budget_bytes": 1000,
    "peak_bytes": 100, "time_ns": 2, "lower_bound_ns": 2,
    "baseline": {"peak_bytes": 100, "time_ns": 2},
    "actions": [["run", "F0", "keep"]],
}
REMOVED = object()


def changed(document, pointer, value):
    """Returns a copy with the member at `pointer` set, or removed."""
    document = copy.deepcopy(document)
    *parents, last = pointer.strip("/").split("/")
    at = document
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if isinstance(at, list):
        last = int(last)
    if value is REMOVED:
        del at[last]
    else:
        at[last] = value
    return document


# Each row is a document, the member to change, its new value, and the pointer in the message, if
# this is not the member itself.
STAGE = "/stages/0"
OPTION = "/stages/0/options/0"
PROBLEMS = [
    (CHAIN, "/format", "reprise.change"),
    (CHAIN, "/format", 1),
    (CHAIN, "/format", REMOVED, ""),
    (CHAIN, "/version", 99),
    (CHAIN, "/version", 1.0),
    (CHAIN, "/version", REMOVED, ""),
    (CHAIN, "/name", ["c"]),
    (CHAIN, "/name", REMOVED, ""),
    (CHAIN, "/fixed_bytes", -1),
    (CHAIN, "/fixed_bytes", 2**63),
    (CHAIN, "/fixed_bytes", "1 GiB"),
    (CHAIN, "/budget", 1),
    (CHAIN, "/input", None),
    (CHAIN, "/input", REMOVED, ""),
    (CHAIN, "/input/bytes", 0.5),
    (CHAIN, "/input/size", 1),
    (CHAIN, "/input/gradient_bytes", False),
    (CHAIN, "/stages", []),
    (CHAIN, "/stages", {}),
    (CHAIN, "/stages/0", []),
    (CHAIN, STAGE + "/name", REMOVED, STAGE),
    (CHAIN, STAGE + "/output_bytes", -20),
    (CHAIN, STAGE + "/output_bytes", 2**63 - 1),
    (CHAIN, STAGE + "/output_gradient_bytes", None),
    (CHAIN, STAGE + "/random", "no"),
    (CHAIN, STAGE + "/forward", 5),
    (CHAIN, STAGE + "/forward", {}),
    (CHAIN, STAGE + "/forward/time", 5),
    (CHAIN, STAGE + "/options", []),
    (CHAIN, STAGE + "/options/0", "keep"),
    (CHAIN, OPTION + "/name", ""),
    (CHAIN, OPTION + "/name", "fast"),
    (CHAIN, OPTION + "/saved_bytes", REMOVED, OPTION),
    (CHAIN, OPTION + "/backward", REMOVED, OPTION),
    (CHAIN, OPTION + "/consumes", 1),
    (CHAIN, OPTION + "/exactness", "close"),
    (CHAIN, OPTION + "/reads", ["x"]),
    (CHAIN, "/loss", []),
    (CHAIN, "/loss", {"ns": 1, "consumes": True}, "/loss/consumes"),
    (GRAPH, "/values", {}),
    (GRAPH, "/values/1/id", "x", "/ops/0/variants/0/writes/0"),
    (GRAPH, "/values/0/id", "", "/ops/0/variants/0/reads/0"),
    (GRAPH, "/values/0/kind", "weights"),
    (GRAPH, "/values/0/bytes", 1e3),
    (GRAPH, "/ops/0/id", ""),
    (GRAPH, "/ops/0/phase", "sideways"),
    (GRAPH, "/ops/0/variants", []),
    (GRAPH, "/ops/0/variants/0/ns", REMOVED, "/ops/0/variants/0"),
    (GRAPH, "/ops/0/variants/0/reads", ["y"]),
    (GRAPH, "/ops/0/variants/0/reads", ["x", "x"], "/ops/0/variants/0/reads/1"),
    (GRAPH, "/ops/0/variants/0/writes", ["x"], "/ops/0/variants/0/writes"),
    (GRAPH, "/ops/0/variants/0/writes", ["q"], "/ops/0/variants/0/writes/0"),
    (GRAPH, "/ops/0/variants/0/reuses", [["y"]], "/ops/0/variants/0/reuses/0"),
    (GRAPH, "/ops/0/variants/0/consumes", ["x"]),
    (GRAPH, "/ops/0/variants/0/role", "second"),
    (GRAPH, "/choices", [{"id": "c", "realizations": [["q"]]}], "/choices/0/realizations/0/0"),
    (GRAPH, "/version", 4),
    (GRAPH, "/ops/0/owner", "m"),
    (OWNED, "/version", 1, "/ops/0/owner"),
    (OWNED, "/ops/0/owner", 1),
    (OWNED, "/choices/0/realizations/0", ["f"]),
    (OWNED, "/choices/0/realizations/0/ops", REMOVED, "/choices/0/realizations/0"),
    (GRAPH, "/results", ["q"], "/results/0"),
    (GRAPH, "/results", REMOVED, ""),
    (PROFILE, "/problem", REMOVED, ""),
    (PROFILE, "/problem/stages", []),
    (PROFILE, "/problem/format", "reprise.profile"),
    (PROFILE, "/versions", {"torch": 2}, "/versions/torch"),
    (PROFILE, "/threads", -1),
    (PROFILE, "/spread", [{"op": "F0"}], "/spread/0"),
]
PLANS = [
    (PLAN, "/problem/format", "reprise.frontier"),
    (PLAN, "/problem/sha256", "0" * 63),
    (PLAN, "/termination", "done"),
    (PLAN, "/peak_bytes", -1),
    (PLAN, "/time_ns", REMOVED, ""),
    (PLAN, "/search", {"wall_ms": 1}),
    (PLAN, "/actions", None),
    (PLAN, "/actions/0", ["run", "F0"]),
    (PLAN, "/actions/0", ["offload", "x1"], "/actions/0/0"),
    (PLAN, "/actions/0", ["free", 1], "/actions/0/1"),
    (PLAN, "/comment", "mine"),
]
NOT_JSON = ["", " ", "{", "[1, 2", "nonsense", "{'a': 1}", "{} {}", '{"a": 1, "a": 2}',
            "\ufeff", '{"a": "\\ud800"}', "[" * 100, '{"a": 1e999}', "\x00", "NaN", '{"a": 1,}']


class MalformedFilesTest(ProgramTest):
    def refused(self, path, *arguments, pointer=None):
        result = self.run_program(*arguments, expect=BAD_INPUT)
        self.assertEqual(result.stdout, "")
        self.assertIn(f"{path}:", result.stderr)
        self.assertRegex(result.stderr, rf"{path.name}:\d+: ")
        if pointer:
            self.assertIn(f" at {pointer}: ", result.stderr)

    def test_the_good_files_are_good(self):
        for document in (CHAIN, GRAPH, PROFILE):
            path = self.write("good.json", document)
            self.run_program("plan", path, "--budget", "100%")
        self.run_program("check", self.write("good.json", CHAIN), self.write("plan.json", PLAN),
                         expect=BROKEN)

    def test_problems(self):
        for document, member, value, *place in PROBLEMS:
            with self.subTest(member=member, value="removed" if value is REMOVED else value):
                path = self.write("bad.json", json.dumps(changed(document, member, value), indent=1))
                pointer = place[0] if place else member
                self.refused(path, "plan", path, "--budget", "100%", pointer=pointer)

    def test_plans(self):
        good = self.write("good.json", CHAIN)
        for document, member, value, *place in PLANS:
            with self.subTest(member=member, value="removed" if value is REMOVED else value):
                path = self.write("bad.json", json.dumps(changed(document, member, value), indent=1))
                pointer = place[0] if place else member
                self.refused(path, "check", good, path, pointer=pointer)
                self.refused(path, "explain", good, path, pointer=pointer)

    def test_not_json(self):
        good = self.write("good.json", CHAIN)
        for text in NOT_JSON:
            with self.subTest(text=text[:20]):
                path = self.write("bad.json", text)
                self.refused(path, "plan", path, "--budget", "1")
                self.refused(path, "check", good, path)

    def test_not_utf8(self):
        path = self.folder / "bad.json"
        path.write_bytes(json.dumps(CHAIN).encode().replace(b'"c"', b'"\xff"'))
        self.refused(path, "plan", path, "--budget", "1")

    def test_a_plan_where_a_problem_belongs_and_the_other_way_round(self):
        chain, plan = self.write("chain.json", CHAIN), self.write("plan.json", PLAN)
        self.refused(plan, "plan", plan, "--budget", "1", pointer="/format")
        self.refused(chain, "check", chain, chain, pointer="/format")

    def test_missing_files_and_folders(self):
        for path in (self.folder / "missing.json", self.folder):
            result = self.run_program("plan", path, "--budget", "1", expect=BAD_INPUT)
            self.assertIn(str(path), result.stderr)

    def test_every_truncation(self):
        """One file is cut again and again; each cut must be refused by the program itself."""
        good = self.write("good.json", CHAIN)
        for document, arguments in ((CHAIN, ["plan"]), (PLAN, ["check", good])):
            text = json.dumps(document)
            path = self.folder / "cut.json"
            for size in range(len(text)):
                path.write_text(text[:size], encoding="utf-8")
                extra = ["--budget", "100%"] if arguments == ["plan"] else []
                result = self.run_program(*arguments, path, *extra, expect=BAD_INPUT)
                self.assertIn("cut.json:1: ", result.stderr)
            path.write_text(text, encoding="utf-8")
            self.run_program(*arguments, path, *extra,
                             expect=DONE if arguments == ["plan"] else BROKEN)


if __name__ == "__main__":
    unittest.main()
