"""Prints "DIRECTORY;MAJOR;MINOR;DEFINITION..." of the torch that this interpreter imports, or
nothing.

With the definitions, the compiler and pybind11 see the same types in a module as in torch.

Imports torch only if it is older than 2.9, because the import takes seconds.
"""

import importlib.util
import pathlib
import re
import sys


def main():
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return
    folder = pathlib.Path(spec.origin).parent
    version = folder / "version.py"
    if not (folder / "include" / "torch").is_dir() or not version.is_file():
        return
    match = re.search(r"__version__ = '(\d+)\.(\d+)", version.read_text())
    if match is None:
        return
    major, minor = int(match[1]), int(match[2])
    definitions = ["_GLIBCXX_USE_CXX11_ABI=1"]
    if (major, minor) < (2, 9):
        definitions = definitions_of_old()
    print(";".join([str(folder), str(major), str(minor)] + definitions), end="")


def definitions_of_old():
    """Returns the definitions for a torch before 2.9. Before 2.7 torch was built with either
    ABI. Before 2.9 it came with pybind11 2, which shares types only between modules whose
    compilers have the same names."""
    import torch

    definitions = [f"_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            definitions.append(f'PYBIND11_{name}="{value}"')
    return definitions


if __name__ == "__main__":
    sys.exit(main())
