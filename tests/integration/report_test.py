"""`reprise report`: pages that a parser accepts and that need nothing else, traces, snapshots."""

import html.parser
import io
import json
import pickle
import pickletools
import unittest

from harness import BAD_INPUT, BROKEN, CHAINS, ProgramTest

CHAIN = CHAINS / "gpt_like.json"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{\u2028</style>"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Fails on tags that are not closed; remembers what matters here."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.links, self.text, self.scripts = [], [], [], [], []
        self.labelled = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} has {name}"
            if name in ("src", "href", "action", "data", "xlink:href"):
                self.links.append(value)
        if tag == "svg" and dict(attributes).get("role") == "img":
            self.labelled.append(False)
        if tag == "title" and "svg" in self.open and self.labelled:
            self.labelled[-1] = True

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)


def graph_of_blocks(blocks, name="blocks"):
    """Makes a graph with a forward and a backward op a block."""
    values = [{"id": "x", "bytes": 512, "kind": "input"}]
    ops = []
    for i in range(blocks):
        values.append({"id": f"y{i}", "bytes": 256 * (1 + i % 3)})
        ops.append({"id": f"f{i}", "variants": [
            {"ns": 1000, "reads": [values[i]["id"]], "writes": [f"y{i}"], "workspace_bytes": 128}]})
    values.append({"id": "g", "bytes": 256, "kind": "gradient"})
    ops.append({"id": "loss", "phase": "loss", "variants": [
        {"ns": 10, "reads": [f"y{blocks - 1}"], "writes": ["g"]}]})
    last = "g"
    for i in reversed(range(blocks)):
        values.append({"id": f"g{i}", "bytes": 256, "kind": "gradient"})
        ops.append({"id": f"b{i}", "phase": "backward", "variants": [
            {"ns": 2000, "reads": [last, f"y{i}"], "writes": [f"g{i}"]}]})
        last = f"g{i}"
    return {"format": "reprise.graph", "version": 1, "name": name, "fixed_bytes": 1000,
            "values": values, "ops": ops, "results": [last]}


class ReportTest(ProgramTest):
    def page(self, problem, plan, *arguments):
        path = self.folder / "report.html"
        result = self.run_program("report", problem, plan, "-o", path, *arguments)
        self.assertEqual(result.stdout, "")
        return Page(path.read_text(encoding="utf-8"))

    def trace(self, problem, plan, *arguments):
        path = self.folder / "trace.json"
        self.run_program("report", problem, plan, "--trace", path, *arguments)
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]

    def run_log(self, problem, plan):
        """Returns what a run that goes exactly as planned would log."""
        document = json.loads(plan.read_text())
        entries = []
        for event in self.trace(problem, plan):
            if event["ph"] != "X":
                continue
            _, op, variant = document["actions"][event["args"]["action"]]
            nanos = round(event["dur"] * 1000)
            entries.append({"action": event["args"]["action"], "op": op, "variant": variant,
                            "planned_bytes": event["args"]["bytes"],
                            "measured_bytes": event["args"]["bytes"],
                            "planned_ns": nanos, "measured_ns": nanos})
        step = {"peak_bytes": document["peak_bytes"], "time_ns": document["time_ns"]}
        return {"format": "reprise.runlog", "version": 1, "problem": document["problem"],
                "device": "cpu", "steps": 3, "planned": step, "measured": step, "actions": entries}

    def self_contained(self, page):
        self.assertEqual(page.links, [])
        self.assertEqual(page.tags.count("script"), 2)  # data, and our own
        self.assertNotIn("link", page.tags)
        self.assertTrue(page.labelled and all(page.labelled), "a picture without a title")
        self.assertEqual(page.tags.count("table"), page.tags.count("caption"))

    def test_page_of_a_chain(self):
        plan = self.make_plan(CHAIN, "60%")
        page = self.page(CHAIN, plan)
        self.self_contained(page)
        text = " ".join(page.text)
        document = json.loads(plan.read_text())
        self.assertIn(f"({document['peak_bytes']} B)", text)
        self.assertIn("this plan", text)  # in the curve, which was worked out
        self.assertIn("recomputed", text)

    def test_page_of_a_graph(self):
        problem = self.write("graph.json", graph_of_blocks(30))
        page = self.page(problem, self.make_plan(problem, "70%"))
        self.self_contained(page)
        self.assertIn("The best time of a step that was found for every budget", " ".join(page.text))

    def test_curve_from_a_file(self):
        problem = self.write("graph.json", graph_of_blocks(12))
        curve = self.folder / "curve.json"
        self.run_program("frontier", problem, "-o", curve, "--time-limit", "2s")
        page = self.page(problem, self.make_plan(problem, "80%"), "--frontier", curve)
        self.assertIn("this plan", " ".join(page.text))

    def test_without_a_file_the_page_goes_to_standard_output(self):
        plan = self.make_plan(CHAIN, "80%")
        page = Page(self.run_program("report", CHAIN, plan, "--time-limit", "0s").stdout)
        self.assertIn("No curve was given", " ".join(page.text))

    def test_plan_writes_the_same_page(self):
        path = self.folder / "page.html"
        self.run_program("plan", CHAIN, "--budget", "60%", "-o", self.folder / "plan.json",
                         "--report", path)
        self.self_contained(Page(path.read_text(encoding="utf-8")))

    def test_the_page_is_the_same_each_time(self):
        plan = self.make_plan(CHAIN, "60%")
        pages = {self.run_program("report", CHAIN, plan).stdout for _ in range(2)}
        self.assertEqual(len(pages), 1)

    def test_large_steps_are_shown_as_columns(self):
        problem = self.write("graph.json", graph_of_blocks(2500))
        path = self.folder / "report.html"
        plan = self.folder / "plan.json"
        self.run_program("plan", problem, "--budget", "100%", "--planner", "keep_all", "-o", plan)
        self.run_program("report", problem, plan, "-o", path)
        self.assertLess(path.stat().st_size, 3_000_000)
        text = " ".join(Page(path.read_text(encoding="utf-8")).text)
        self.assertIn("A step has 5001 runs", text)
        self.assertIn("columns of time", text)

    def test_hostile_names(self):
        chain = json.loads(CHAIN.read_text())
        chain["name"] = HOSTILE
        for stage in chain["stages"]:
            stage["name"] = HOSTILE
            for number, option in enumerate(stage["options"]):
                option["name"] = f"{HOSTILE}{number}"
        problem = self.write("chain.json", chain)
        plan = self.make_plan(problem, "70%")
        log = self.run_log(problem, plan)
        log["device"] = HOSTILE
        document = json.loads(plan.read_text())
        document["planner"] = document["schedule_class"] = HOSTILE
        plan.write_text(json.dumps(document))
        page = self.page(problem, plan, "--runlog", self.write("log.json", log))
        self.self_contained(page)
        self.assertNotIn("img", page.tags)
        self.assertIn("<script>alert(1)", " ".join(page.text))  # as text
        self.assertNotIn("alert(1)", page.scripts[1])
        json.loads(page.scripts[0])
        names = {event["name"] for event in self.trace(problem, plan) if event["ph"] == "X"}
        self.assertTrue(any(HOSTILE in name for name in names))

    def test_the_policy_names_the_script_of_the_page(self):
        import base64
        import hashlib
        plan = self.make_plan(CHAIN, "80%")
        text = self.run_program("report", CHAIN, plan).stdout
        digest = hashlib.sha256(Page(text).scripts[1].encode()).digest()
        self.assertIn(f"script-src 'sha256-{base64.b64encode(digest).decode()}'", text)
        self.assertIn("default-src 'none'", text)

    def test_an_invalid_plan_is_shown_and_said(self):
        plan = self.make_plan(CHAIN, "60%")
        document = json.loads(plan.read_text())
        document["budget_bytes"] = document["peak_bytes"] - 1
        plan.write_text(json.dumps(document))
        self.run_program("check", CHAIN, plan, expect=BROKEN)
        path = self.folder / "report.html"
        result = self.run_program("report", CHAIN, plan, "-o", path)
        self.assertIn("not valid", result.stderr)
        self.assertIn("This plan is not valid", path.read_text(encoding="utf-8"))
        result = self.run_program("report", CHAIN, plan, "-o", path, "--quiet")
        self.assertEqual(result.stderr, "")

    def test_bad_input(self):
        plan = self.make_plan(CHAIN, "80%")
        log = self.run_log(CHAIN, plan)
        other = json.loads(json.dumps(log))
        other["actions"][0]["variant"] = "other"
        broken = self.write("broken.json", "{")
        cases = [
            (["--runlog", broken], "broken.json:1: "),
            (["--frontier", broken], "broken.json:1: "),
            (["--runlog", self.write("other.json", other)], "other.json: at /actions/0/variant: "),
            (["--frontier", self.write("curve.json", {
                "format": "reprise.frontier", "version": 1, "planner": "p", "points": [],
                "problem": {"format": "reprise.chain", "name": "another"}})], "curve.json: "),
            (["--time-limit", "soon"], "soon"),
            (["--runlog", self.folder / "missing"], "missing"),
        ]
        for arguments, says in cases:
            before = self.files()
            result = self.run_program("report", CHAIN, plan, "-o", self.folder / "out.html",
                                      *arguments, expect=BAD_INPUT)
            self.assertIn(says, result.stderr)
            self.assertEqual(self.files(), before)
        self.run_program("report", CHAIN, expect=BAD_INPUT)
        self.run_program("report", CHAINS / "uniform8.json", plan, expect=BAD_INPUT)

    def test_measured(self):
        plan = self.make_plan(CHAIN, "60%")
        log = self.write("log.json", self.run_log(CHAIN, plan))
        text = " ".join(self.page(CHAIN, plan, "--runlog", log).text)
        self.assertIn("as planned, to the byte", text)
        self.assertIn("Planned and measured", text)
        events = self.trace(CHAIN, plan, "--runlog", log)
        times = {pid: sum(e["dur"] for e in events if e["ph"] == "X" and e["pid"] == pid)
                 for pid in (1, 2)}
        self.assertAlmostEqual(times[1], times[2])

    def test_trace(self):
        plan = self.make_plan(CHAIN, "60%")
        document = json.loads(plan.read_text())
        events = self.trace(CHAIN, plan)
        runs = [event for event in events if event["ph"] == "X"]
        self.assertEqual(len(runs), sum(a[0] == "run" for a in document["actions"]))
        end = 0
        for event in runs:  # slices of a track must not overlap
            self.assertGreaterEqual(event["ts"], end - 1e-6)
            end = event["ts"] + event["dur"]
        self.assertAlmostEqual(end * 1000, document["time_ns"])
        levels = [e["args"]["bytes"] for e in events if e["name"] == "device bytes"]
        self.assertEqual(max(levels), document["peak_bytes"])
        for event in events:
            if event["name"] == "bytes by kind":
                self.assertIn(sum(event["args"].values()), levels)

    def snapshot(self, problem, plan):
        path = self.folder / "snapshot.pickle"
        self.run_program("report", problem, plan, "--snapshot", path)
        return path.read_bytes()

    def test_snapshot(self):
        problems = [CHAIN, self.write("graph.json", graph_of_blocks(40))]
        for problem in problems:
            plan = self.make_plan(problem, "70%")
            peak = json.loads(plan.read_text())["peak_bytes"]
            snapshot = pickle.loads(self.snapshot(problem, plan))
            [segment] = snapshot["segments"]
            [events] = snapshot["device_traces"]
            end = segment["address"] + segment["total_size"]
            live, most, clock = {}, 0, 0
            for event in events:
                self.assertGreaterEqual(event["time_us"], clock)
                clock = event["time_us"]
                address, size = event["addr"], event["size"]
                if event["action"] == "alloc":
                    self.assertTrue(segment["address"] <= address and address + size <= end)
                    for other, bytes_ in live.items():
                        self.assertTrue(address + size <= other or other + bytes_ <= address)
                    live[address] = size
                    self.assertTrue(event["frames"][0]["name"])
                elif event["action"] == "free_completed":
                    self.assertEqual(live.pop(address), size)
                most = max(most, sum(live.values()))
            self.assertEqual(most, peak)
            at, left = segment["address"], {}
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)
                at += block["size"]
                if block["state"] == "active_allocated":
                    left[block["address"]] = block["requested_size"]
            self.assertEqual(at, end)
            self.assertEqual(left, live)

    def test_snapshot_has_only_what_the_viewer_reads(self):
        """torch/utils/viz/MemoryViz.js knows these opcodes, and protocols 2 to 4."""
        plan = self.make_plan(CHAIN, "70%")
        content = self.snapshot(CHAIN, plan)
        opcodes = {opcode.name for opcode, _, _ in pickletools.genops(content)}
        self.assertLessEqual(opcodes, {
            "PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "APPENDS", "SETITEMS", "BININT", "BININT1",
            "BININT2", "LONG1", "BINUNICODE", "LONG_BINPUT", "LONG_BINGET", "STOP"})
        pickletools.dis(content, io.StringIO())  # checks the stack

    def test_snapshot_in_torch(self):
        try:
            import warnings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.cuda import _memory_viz
        except ImportError:
            self.skipTest("this Python has no torch")
        plan = self.make_plan(CHAIN, "70%")
        snapshot = pickle.loads(self.snapshot(CHAIN, plan))
        self.assertIn("segments: 1", _memory_viz.segsum(snapshot))
        self.assertIn("Device 0", _memory_viz.trace(snapshot))
        self.assertIn("Active Memory Timeline", _memory_viz.trace_plot(snapshot))
        lines = []
        _memory_viz.segments(snapshot, lines.append)
        self.assertIn("active_allocated", lines[0])

    def test_full_device(self):
        plan = self.make_plan(CHAIN, "80%")
        for option in ("-o", "--trace", "--snapshot"):
            result = self.run_program("report", CHAIN, plan, option, "/dev/full", expect=BAD_INPUT)
            self.assertIn("/dev/full", result.stderr)

    def test_example_chains(self):
        for path in sorted(CHAINS.glob("*.json")):
            self.self_contained(self.page(path, self.make_plan(path, "90%"), "--time-limit", "0.3s"))


if __name__ == "__main__":
    unittest.main()
