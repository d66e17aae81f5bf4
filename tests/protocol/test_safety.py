"""Nothing in the package can run what it receives."""

from __future__ import annotations

import ast

import tree

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {("torch", "load"), ("numpy", "load"), ("np", "load"), ("yaml", "load"), ("runpy", "run_path")}


def dangers(module: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.add(str(node.module))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in ATTRIBUTES:
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add("allow_pickle")
    return found


def test_the_check_finds_what_it_looks_for() -> None:
    imports = "import pickle\nfrom marshal import loads\nimport torch\n"
    text = f"{imports}torch.load(x)\neval(x)\nnp.load(x, allow_pickle=True)"
    assert dangers(ast.parse(text)) == {"pickle", "marshal", "torch.load", "eval", "np.load", "allow_pickle"}


def test_no_file_of_the_package_evaluates_data() -> None:
    found = {tree.name(path): dangers(tree.parse(path)) for path in tree.sources()}
    assert {name: things for name, things in found.items() if things} == {}


def test_the_protocol_needs_no_torch_but_in_one_file() -> None:
    files = [path for path in tree.sources("protocol") if "torch" in tree.absolute_imports(path)]
    assert [tree.name(path) for path in files] == ["protocol/torch.py"]
