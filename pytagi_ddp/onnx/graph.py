"""A graph of ONNX that is being made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

OPSET, IR = 17, 8  # which runtimes from 2022 on read
SINGLE, DOUBLE, BOOL = 1, 11, 9  # numbers of ONNX for types
TYPES = {"float32": SINGLE, "float64": DOUBLE, "int64": 7, "bool": BOOL}
Value = tuple[str, int, Any]  # name, type, shape (None: any)
Made = tuple[list[Value], list[Value], dict[str, str]]  # inputs and outputs of a graph, and what to note in the model


class Graph:
    """Nodes and constants, which have names.

    Args:
        helper: the module `onnx.helper`.
        prefix: of names; those in the body of a loop must differ from those around it.
    """

    def __init__(self, helper: Any, prefix: str = ""):
        self.helper, self.prefix = helper, prefix
        self.nodes: list[Any] = []
        self.constants: dict[tuple[int, tuple[int, ...], bytes], Any] = {}

    def op(self, kind: str, *inputs: str | np.ndarray | np.generic | float, name: str = "", **settings: Any) -> str:
        """The name of the (first) result of a new node.

        Arrays and numbers (float32) among its inputs become constants. Equal ones become one, so that runtimes see
        which nodes of several networks are the same: the encodings of their inputs.
        """
        return self.ops(kind, 1, *inputs, name=name, **settings)[0]

    def ops(self, kind: str, results: int, *inputs: Any, name: str = "", **settings: Any) -> list[str]:
        """The names of the results of a new node, of which the first is also its own: tools need such names."""
        name = name or f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        outs = [name, *(f"{name}_{k}" for k in range(1, results))]
        names = [part if isinstance(part, str) else self.constant(part) for part in inputs]
        self.nodes.append(self.helper.make_node(kind, names, outs, name=name, **settings))
        return outs

    def constant(self, value: np.ndarray | np.generic | float) -> str:
        array = np.asarray(value if isinstance(value, np.ndarray | np.generic) else np.float32(value))
        kind, contents = TYPES[array.dtype.name], np.ascontiguousarray(array).tobytes()
        key = kind, array.shape, contents
        if key not in self.constants:
            name = f"{self.prefix}constant_{len(self.constants)}"
            self.constants[key] = self.helper.make_tensor(name, kind, array.shape, contents, raw=True)
        return self.constants[key].name

    def part(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> Any:
        """A graph of all nodes so far, as ONNX has it."""
        values = [[self.helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)]
        return self.helper.make_graph(self.nodes, name, *values, list(self.constants.values()))

    def model(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Any:
        graph = self.part("pytagi_ddp", inputs, outputs)
        return self.helper.make_model(graph, opset_imports=[self.helper.make_opsetid("", OPSET)], ir_version=IR)
