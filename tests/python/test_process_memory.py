"""The memory of the process, beside the bytes that are counted: the heap leaves no holes."""

from __future__ import annotations

import pathlib
import sys

import pytest
from conftest import output_of_program

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import reprise, torch
from test_capture_within import network, step_of

reprise.install_cpu_allocator()
torch.set_num_threads(1)
torch.manual_seed(7)

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

model, x, y = network(128, 24), torch.randn(8192, 128), torch.randint(128, (8192,))
step = step_of(model)
step(x[:8], y[:8])  # libraries load, and their caches fill
model.zero_grad()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the largest resident size is counted anew
resident, live = status("VmRSS"), reprise.live_bytes()
captured = reprise.capture(step, x, y)
plain = captured.plan().baseline.peak_bytes - live
print(plain, status("VmHWM") - resident)
captured.plan(budget="50%", time_limit=2)
for _ in range(4):
    model.zero_grad()
    captured(x, y)
report = captured.report()
print(report.measured_peak_bytes - live, status("VmRSS") - resident, report.fallbacks)
"""

MARGIN = 64 << 20  # for records, plans and what the libraries keep


@pytest.mark.usefixtures("runtime")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a process has")
def test_a_process_is_not_much_larger_than_the_bytes_that_are_counted(
    tmp_path: pathlib.Path,
) -> None:
    output = output_of_program(PROGRAM, tmp_path)
    capture, training = (list(map(int, line.split())) for line in output.splitlines())
    plain, largest = capture
    assert largest < 1.15 * plain + MARGIN
    peak, resident, fallbacks = training
    assert fallbacks == 0
    assert peak < 0.6 * plain
    assert resident < peak + MARGIN
