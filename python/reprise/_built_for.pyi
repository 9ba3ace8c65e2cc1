"""The version of PyTorch that the runtime was built for. CMake writes this module."""

TORCH_VERSION: str
"""The version, for example "2.13.0". It is empty if the package was built without its runtime."""
