"""All hostile programs. Importing this file registers them in `hostile.PROGRAMS`."""

from __future__ import annotations

import hostile_containers
import hostile_literals
import hostile_modules
import hostile_settings
import hostile_state

FILES = (hostile_containers, hostile_literals, hostile_modules, hostile_settings, hostile_state)
KINDS = (
    "literal",
    "random",
    "attribute",
    "inside",
    "function",
    "container",
    "process",
    "option",
    "tree",
    "tensor",
    "hook",
    "patch",
    "setting",
    "input",
)
