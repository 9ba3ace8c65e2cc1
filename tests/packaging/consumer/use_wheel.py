"""Plans, verifies, reads and refuses with the installed package, where there is no PyTorch."""

import importlib.util

import reprise

if importlib.util.find_spec("torch") is not None:
    raise SystemExit("this environment has PyTorch: it is not empty")
chain = {
    "format": "reprise.chain", "version": 1, "name": "c", "input": {"bytes": 10},
    "stages": [{"name": "s", "output_bytes": 20, "forward": {"ns": 1},
                "options": [{"name": "keep", "saved_bytes": 7, "forward": {"ns": 1},
                             "backward": {"ns": 2}}]}],
}
result = reprise.plan(chain, budget="100%")
if result.plan is None or reprise.verify(chain, result.plan):
    raise SystemExit("the plan is not valid")
try:
    reprise.plan({"format": "reprise.chain"}, budget="100%")
except reprise.InputError as error:
    message = str(error)
else:
    raise SystemExit("half a chain was read")
print("peak", result.plan.peak_bytes, "bytes; half a chain:", message)
