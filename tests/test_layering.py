"""Who may import what: the layers of the house, read off the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = sorted((ROOT / "rewriter").glob("*.py"))
PASSES = sorted((ROOT / "passes").glob("*.py"))


def imports(path):
    """Yield (module, line, whether inside a function) of every import."""
    tree = ast.parse(path.read_text(), str(path))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        local = id(node) in inside
        if isinstance(node, ast.Import):
            yield from ((a.name, node.lineno, local) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base, node.lineno, local
            for a in node.names:
                yield f"{base}.{a.name}", node.lineno, local


def is_in(module, package):
    return module == package or module.startswith(package + ".")


def _id(path):
    return f"{path.parent.name}/{path.name}"


def test_there_is_something_to_check():
    assert len(CORE) > 15
    assert len(PASSES) > 5


@pytest.mark.parametrize("path", [*CORE, *PASSES], ids=_id)
def test_only_one_door_to_the_internals(path):
    """`jax_compat` alone imports `jax._src` or `jax.extend`."""
    if path.name == "jax_compat.py":
        return
    for module, line, _ in imports(path):
        assert not is_in(module, "jax._src"), f"{path.name}:{line}"
        assert not is_in(module, "jax.extend"), f"{path.name}:{line}"
        assert not is_in(module, "jaxlib"), f"{path.name}:{line}"


@pytest.mark.parametrize("path", [*CORE, *PASSES], ids=_id)
def test_no_attribute_ways_around(path):
    """Nor does anyone else reach them as attributes."""
    if path.name == "jax_compat.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            reached = (node.value.id, node.attr)
            assert reached not in {("jax", "_src"), ("jax", "extend")}, node.lineno


@pytest.mark.parametrize("path", CORE, ids=_id)
def test_core_does_not_know_the_passes(path):
    """One import, inside a function of `phases.py`."""
    for module, line, local in imports(path):
        if is_in(module, "passes"):
            assert path.name == "phases.py", f"{path.name}:{line}"
            assert local, f"{path.name}:{line} is at module level"


def test_the_pipeline_is_picked_up():
    path = ROOT / "rewriter" / "phases.py"
    assert any(is_in(module, "passes") for module, _, _ in imports(path))


@pytest.mark.parametrize("path", PASSES, ids=_id)
def test_passes_do_not_know_each_other(path):
    """Nor `rewriter.optimize`, which would be a cycle."""
    for module, line, _ in imports(path):
        where = f"{path.name}:{line}"
        if path.name != "__init__.py":
            assert not is_in(module, "passes"), where
            assert not module.startswith("."), where
        assert not is_in(module, "rewriter.optimize"), where
        assert module != "rewriter.explain", where


@pytest.mark.parametrize("path", [*CORE, *PASSES], ids=_id)
def test_heavy_imports_are_local(path):
    """networkx and the like cost a third of a second: imported where first used."""
    heavy = ("networkx", "scipy", "matplotlib", "sklearn", "pandas")
    for module, line, local in imports(path):
        if any(is_in(module, h) for h in heavy):
            assert local, f"{path.name}:{line}"


@pytest.mark.parametrize("path", [*CORE, *PASSES], ids=_id)
def test_short_files(path):
    """No file over 400 lines, save the one that holds JAX's internals."""
    limit = 600 if path.name == "jax_compat.py" else 400
    assert len(path.read_text().splitlines()) <= limit


def test_no_cycle_between_modules():
    """Module-level imports of the core have an order."""
    import graphlib

    edges = {}
    names = {p.stem for p in CORE}
    for path in CORE:
        if path.name == "__init__.py":
            continue
        edges[path.stem] = {
            module.split(".")[1]
            for module, _, local in imports(path)
            if not local and module.startswith("rewriter.")
        } & names - {path.stem}
    order = list(graphlib.TopologicalSorter(edges).static_order())
    assert order.index("jax_compat") < order.index("optimize")
