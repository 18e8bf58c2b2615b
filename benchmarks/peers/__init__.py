"""Peers that need an environment of their own: ``--peer enzyme=/path/to/python``.

Each is measured by a child process that the given Python runs. Enzyme-JAX is timed
there beside ``jax.jit`` of the same program, so that its speedup is free of the
environment; PyTensor has programs of its own (:mod:`benchmarks.peers.pytensor_peer`).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.children import run_child
from benchmarks.table import MISSING, number, times

if TYPE_CHECKING:
    from benchmarks.contest import Workload

_TIMEOUT_S = 900.0
_KINDS = {
    "enzyme": ("Enzyme-JAX", "pip install enzyme-ad"),
    "pytensor": ("PyTensor", "pip install pytensor"),
}


@dataclass(frozen=True)
class Peer:
    """A peer and the Python that can import it."""

    name: str
    python: str

    @property
    def heading(self) -> str:
        """Head of its column."""
        extra = " / speedup" if self.name == "enzyme" else ""
        return f"{_KINDS[self.name][0]} ms{extra}"


def asked(options: Sequence[str]) -> list[Peer]:
    """Read the ``--peer`` options."""
    found = []
    for text in options:
        name, _, python = text.partition("=")
        if name not in _KINDS or not python:
            raise SystemExit(f"--peer {text}: enzyme=PYTHON or pytensor=PYTHON")
        if shutil.which(python) is None:
            raise SystemExit(f"--peer {text}: there is no program {python}")
        found.append(Peer(name, python))
    return found


def measured(
    peer: Peer, module: str, workload: Workload, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one program in the environment of the peer, with the inputs that we have."""
    import jax

    from benchmarks.contest import difference

    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(workload.wide):
        args, given, got = (
            workload.make(),
            Path(folder, "in.npz"),
            Path(folder, "out.npz"),
        )
        np.savez(given, *(np.asarray(leaf) for leaf in jax.tree.leaves(args)))
        arguments = ["--workload", workload.name, "--rounds", str(options.rounds)]
        arguments += ["--inputs", str(given)]
        arguments += ["--quick"] if options.quick else []
        if peer.name == "enzyme":
            arguments += ["--module", module]
            return _child(peer, "benchmarks.peers.enzyme_peer", arguments)
        arguments += ["--outputs", str(got)]
        result = _child(peer, "benchmarks.peers.pytensor_peer", arguments)
        if got.exists():
            with np.load(got) as arrays:
                values = [arrays[key] for key in arrays.files]
            reference = jax.tree.leaves(jax.jit(workload.original)(*args))
            result["difference"] = difference(reference, values)
    return result


def _child(peer: Peer, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    handed, trouble = run_child(module, arguments, _TIMEOUT_S, python=peer.python)
    return {**(handed or {}), "trouble": trouble}


def cell(result: dict[str, Any]) -> str:
    """Print what a peer took, or why nothing is known."""
    if result.get("trouble"):
        return f"failed: {result['trouble'][:60]}"
    if "median_ms" not in result:
        return MISSING
    text = number(result["median_ms"])
    if "speedup" in result:
        text += f" / {times(result['speedup'])}"
    if result.get("difference", 0.0) > 1e-3:
        text += f" (differs by {result['difference']:.0e})"
    return text


def remark(peers: Sequence[Peer], results: Sequence[dict[str, Any]]) -> str:
    """Say which peers were measured with what, and which were not."""
    lines = []
    by_name = {peer.name: peer for peer in peers}
    for name, (title, install) in _KINDS.items():
        if name not in by_name:
            lines.append(f"{title}: not measured ({install}; --peer {name}=PYTHON)")
            continue
        versions = (r[name]["version"] for r in results if "version" in r[name])
        found = next(versions, None)
        lines.append(f"{title}: {found or 'could not be imported'}, in its own process")
    return "\n".join(lines)
