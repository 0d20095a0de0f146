"""Numbers as people write them: "1,024", "0,5", "1/4", "50%", "e^2", "ln 8", "2*0.5". question.js reads them alike."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

LONGEST = 60  # characters; a number that is typed has few
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
    """Return the number that a reader typed, or None if it is none.

    Plain numbers may have a decimal comma, commas or spaces between thousands, and a percent sign. Sums, products,
    fractions and powers of numbers, e and pi are worked out, and so are sqrt, ln (log is the same), log2, log10, exp,
    sin and cos. The text is parsed and never run.
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
    text = re.sub(r"(?<![\w.])0+(?=\d)", "", text)  # Python takes 007 for a mistake
    if not _ARITHMETIC.fullmatch(text):  # Python reads more: 0x10, a comment
        return None
    try:
        number = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return number if math.isfinite(number) else None


def _value(node: ast.expr) -> float:
    """Return the value of a parsed expression. Raises `ValueError` for anything that is no arithmetic."""
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
