"""Numbers a second, as people write them."""

from __future__ import annotations

from ..errors import InputError


def rate(given: float | str | None, default: float, what: str) -> float:
    """Returns a number a second: a number, or a text such as "400T", "2TB" or "400 Tflop/s"."""
    if given is None:
        return default
    if isinstance(given, str):
        text = given.strip().lower().removesuffix("/s").rstrip()
        for unit in ("flops", "flop", "b"):
            text = text.removesuffix(unit).rstrip()
        scale = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}.get(text[-1:], 1.0)
        try:
            number = float(text if scale == 1.0 else text[:-1]) * scale
        except ValueError:
            number = 0.0
    else:
        number = float(given)
    if not 0 < number < 1e30:
        raise InputError(
            f'{what} is a number a second above 0, such as 2e12 or "2TB", not {given!r}'
        )
    return number
