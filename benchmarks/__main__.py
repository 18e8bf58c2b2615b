"""The command line: ``python -m benchmarks NAME``."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

_ABOUT = "Benchmarks of the rewriter. Each prints a table and writes JSON."
_NOTES = """\
Everything that is compared runs interleaved in one process, so ratios hold on a busy
machine; absolute times do not. Run from the root of the repository, for instance
  python -m benchmarks edm
  python -m benchmarks edm --accuracy               (a Markdown table)
  python -m benchmarks rows --peer enzyme=PYTHON    (a Python with enzyme-ad and jax)
  python -m benchmarks constants --measure
  python -m benchmarks cases --only 05,42 --numerics strict
  python -m benchmarks dispatch --optimiser jit     (the identity: shows the noise)
"""

_MODULES = {
    "edm": "benchmarks.edm",
    "rows": "benchmarks.rows",
    "contractions": "benchmarks.contractions",
    "recurrences": "benchmarks.recurrences",
    "lstm": "benchmarks.lstm",
    "cases": "benchmarks.cases.score",
    "rewrite-time": "benchmarks.rewrite_time",
    "dispatch": "benchmarks.dispatch",
    "memory": "benchmarks.memory",
    "constants": "benchmarks.constants",
}


def _common() -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--optimiser",
        default="rewriter",
        metavar="WHAT",
        help="rewriter (default), jit (the identity), or MODULE:FUNCTION",
    )
    parser.add_argument(
        "--numerics",
        choices=("strict", "reassociate", "fast"),
        help="level passed to the optimiser (default: its own default)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results",
        metavar="DIR",
        help="folder for JSON and charts (default: benchmarks/results)",
    )
    return parser


def _add_edm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help="points (default 10000, quick 2000)")
    parser.add_argument("--features", type=int, default=40, help="dimensions (40)")
    parser.add_argument("--rounds", type=int, default=15, help="at most (15)")
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--no-chart", action="store_true", help="tables only")
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help="only the accuracy over kinds of data, as Markdown",
    )
    _add_peer(parser)


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="also enzyme or pytensor, run by a Python that has it",
    )


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15, help="at most (15)")
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--only", metavar="WORD,WORD", help="names that contain these")
    _add_peer(parser)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NN,NN", help="these cases only")


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, default=240, metavar="S", help="per process (240 s)"
    )


def _add_cases(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser)
    _add_timeout(parser)
    parser.add_argument(
        "--no-bench",
        dest="bench",
        action="store_false",
        help="check the values only, no timing",
    )


def _add_rewrite_time(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser)
    parser.add_argument("--repeats", type=int, default=5, help="medians of (5)")
    parser.add_argument(
        "--part", choices=("all", "cases", "growth"), default="all", help="(all)"
    )
    parser.add_argument("--quick", action="store_true", help="2 repeats, small sizes")


def _add_dispatch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer calls")


def _add_constants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the constants themselves, beside those in use",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser)
    _add_timeout(parser)


def _parser() -> argparse.ArgumentParser:
    """Build the whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_ABOUT,
        epilog=_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    common = _common()
    for name, add, text in (
        ("edm", _add_edm, "distance matrix against libraries, with a chart"),
        ("rows", _add_rows, "row maps and RNNs: original, ours, by hand"),
        ("contractions", _add_rows, "distances, forms and products written as loops"),
        ("recurrences", _add_rows, "sums, scans and recurrences of many kinds"),
        ("lstm", _add_rows, "training a hierarchical Bi-LSTM, against torch too"),
        ("cases", _add_cases, "loops of real users: right, and how fast"),
        ("rewrite-time", _add_rewrite_time, "what rewriting costs, and how it grows"),
        ("dispatch", _add_dispatch, "what a cached call costs against jax.jit"),
        ("memory", _add_memory, "temporary bytes and peak RSS of the cases"),
        ("constants", _add_constants, "the cost model against measurements"),
    ):
        add(commands.add_parser(name, parents=[common], help=text, description=text))
    return parser


def main() -> int:
    """Run the benchmark that the command line names."""
    options = _parser().parse_args()
    # imported only now, so that --help does not wait for JAX
    return importlib.import_module(_MODULES[options.name]).run(options)


if __name__ == "__main__":
    raise SystemExit(main())
