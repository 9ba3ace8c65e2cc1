"""All programs whose Python has to run at every call. Importing this file registers them."""

from __future__ import annotations

import follow_checkpoints
import follow_effects
import follow_hooks
import follow_numbers
import follow_reads
import follow_schedules
import follow_state
import follow_structure
import follow_tools
import follow_transforms
import follow_updates
from follow_harness import PROGRAMS

FILES = (
    follow_checkpoints,
    follow_effects,
    follow_hooks,
    follow_numbers,
    follow_reads,
    follow_schedules,
    follow_state,
    follow_structure,
    follow_tools,
    follow_transforms,
    follow_updates,
)
__all__ = ["FILES", "PROGRAMS"]
