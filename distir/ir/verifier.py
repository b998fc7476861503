"""Checks the rules of the IR: single assignment, use after definition, inferred types."""

from __future__ import annotations

from distir.errors import VerificationError
from distir.ir.core import Node, Value
from distir.ir.function import Function


def verify(function: Function) -> None:
    """Raises `VerificationError`, showing the neighbourhood, if `function` breaks a rule."""
    verify_order(function)
    for position, node in enumerate(function.nodes):
        inferred = node.op.infer(*node.operand_types)
        if inferred != node.result_types:
            found = ", ".join(map(str, node.result_types))
            expected = ", ".join(map(str, inferred))
            raise _error(function, position, f"results are {found}; the op gives {expected}")


def verify_order(function: Function) -> None:
    """The rules but that of types, for a function whose types have just been inferred."""
    defined: set[Value] = set()
    for value in function.sources():
        if value in defined:
            raise VerificationError(f"{function.name}: {value} is declared twice")
        defined.add(value)
    for position, node in enumerate(function.nodes):
        for operand in node.operands:
            if operand not in defined:
                raise _error(function, position, f"{operand} is used before it is computed")
        for result in node.results:
            if result in defined:
                raise _error(function, position, f"{result} is assigned twice")
            defined.add(result)
    for output in function.outputs:
        if output not in defined:
            raise VerificationError(f"{function.name}: output {output} is never computed")


def _error(function: Function, position: int, message: str) -> VerificationError:
    def show(node: Node) -> str:
        results = ", ".join(map(repr, node.results))
        operands = ", ".join(map(repr, node.operands))
        return f"{results} = {node.op}({operands})"

    lines: list[str] = []
    for i in range(max(0, position - 2), min(len(function.nodes), position + 3)):
        mark = ">>" if i == position else "  "
        lines.append(f"{mark} {show(function.nodes[i])}")
    return VerificationError(f"{function.name}: {message}\n" + "\n".join(lines))
