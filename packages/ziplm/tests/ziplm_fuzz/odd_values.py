"""Values that files should not hold, including some that Python's own JSON writer cannot write."""

import random
from pathlib import Path
from typing import Any

NESTED, DEEP_OBJECT, LONG_NUMBER = "@nested@", "@object@", "@number@"
PLACEHOLDERS = {
    NESTED: "[" * 100_000 + "]" * 100_000,
    DEEP_OBJECT: '{"a":' * 100_000 + "1" + "}" * 100_000,
    LONG_NUMBER: "9" * 5000,
}
ODD = [
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**53 + 1, 2**63, -(2**63), 10**9, 10**12, 10**400, 255, 1e300),
    *("", "x", "\0", "\ud800", "a\nb", "x" * 100_000, "é", "1", "nan", "None", "true"),
    *([], {}, [[]], [None], [1], ["x"], {"x": 1}, [1.5, "x"], [10**9] * 3, [-1], [0]),
    *(
        "../../escaped",
        "..",
        "/",
        ".",
        "~",
        "a/../../../b",
        "CON",
        "a\\b",
        "org/repo",
        "org/repo@main:f",
        "x|y",
    ),
    *(
        "modeling.py--Model",
        "float16",
        "torch.float32",
        "eager",
        "gelu",
        "flash_attention_2",
        "http://localhost/x",
    ),
]


def odd_value(outside: Path, dice: random.Random) -> Any:
    """Return an odd value; some are paths into the folder `outside`."""
    drawn = dice.random()
    if drawn < 0.08:
        return dice.choice(list(PLACEHOLDERS))
    if drawn < 0.12:
        return str(outside / dice.choice(["escaped", "secret"]))
    return dice.choice(ODD)


def with_placeholders(text: str) -> bytes:
    """Return JSON as bytes, with the values that stand for those that Python cannot write."""
    for name, value in PLACEHOLDERS.items():
        text = text.replace(f'"{name}"', value)
    return text.encode("utf-8", "surrogatepass")
