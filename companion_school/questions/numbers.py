"""Parser for numbers as people type them, such as "1,024", "0,5", "1/4", "50%", "e^2" and "ln 8".

question.js parses them in the same way.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

LONGEST = 60  # in characters; typed numbers are much shorter
_CONSTANTS = {"e": math.e, "pi": math.pi}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt, "ln": math.log, "log": math.log, "log2": math.log2, "log10": math.log10, "exp": math.exp,
    "sin": math.sin, "cos": math.cos,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.Pow: math.pow,
}  # fmt: skip
_SIGNS = {
    "\u2212": "-",
    "\u00b7": "*",
    "\u00d7": "*",
    "\u00f7": "/",
    "^": "**",
    "\u221a": " sqrt ",
    "\u03c0": " pi ",
    "_": "",
}
_ARITHMETIC = re.compile(r"(?!.*\d[xob])[a-z0-9\s.+*/()-]+")
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_BARE = re.compile(rf"\b({'|'.join(sorted(_FUNCTIONS, key=len, reverse=True))})\s+((?:\d+\.?\d*|\.\d+)|e\b|pi\b)")


def read_number(text: str) -> float | None:
    """Return the number that a reader typed, or None if the text is not a number.

    Plain numbers may have a decimal comma, commas or spaces between thousands, and a percent sign. Expressions may use
    +, -, *, /, powers, e, pi, and the functions sqrt, ln (with the alias log), log2, log10, exp, sin and cos. The text
    is parsed but never executed.
    """
    text = text.strip().lower()
    if len(text) > LONGEST:
        return None
    if text.endswith("%"):
        share = read_number(text[:-1])
        return None if share is None else share / 100
    for sign, meant in _SIGNS.items():
        text = text.replace(sign, meant)
    text = re.sub(r"(?<=\d)\s+(?=\d)", "", text)
    text = _COMMAS.sub(lambda found: found[0].replace(",", ""), text).replace(",", ".")
    text = _BARE.sub(r"\1(\2)", text).strip()
    text = re.sub(r"(?<![\w.])0+(?=\d)", "", text)  # leading zeros are a syntax error in Python
    if not _ARITHMETIC.fullmatch(text):  # Python would also accept 0x10 and comments
        return None
    try:
        number = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return number if math.isfinite(number) else None


def _value(node: ast.expr) -> float:
    """Evaluate a parsed expression. Raises `ValueError` for anything other than arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument))
    raise ValueError("expected arithmetic")
