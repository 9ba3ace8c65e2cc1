"""Reprise in the training loops of other libraries: Transformers, Accelerate and Lightning.

Each module of this folder needs its library and is imported by name. All of them put
a step of `steps.by_kind()` into the place where the library runs forward and backward.
"""
