"""Prints "DIRECTORY;MAJOR;MINOR;CXX11_ABI" of the torch that this interpreter imports, or nothing.

Does not import torch where it can be avoided, which takes seconds.
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
    abi = 1
    if (major, minor) < (2, 7):
        import torch  # builds of before came with either

        abi = int(torch.compiled_with_cxx11_abi())
    print(f"{folder};{major};{minor};{abi}", end="")


if __name__ == "__main__":
    sys.exit(main())
