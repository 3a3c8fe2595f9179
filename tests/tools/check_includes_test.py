#!/usr/bin/env python3
"""Proves that check_includes.py catches a name whose header is not included, and lets good files pass."""

import tempfile
import unittest
from pathlib import Path

import check_includes

HEADER = """#pragma once
#include <vector>
namespace x {
inline constexpr int kLimit = 3;
class Engine {
  std::vector<int> all_;
};
class Other;
}  // namespace x
"""


class CheckIncludesTest(unittest.TestCase):
    def faults(self, source, **more):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"engine.h": HEADER, "source.cc": source, **more}.items():
                path = Path(folder, "src", name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return [fault.split(": ", 1)[1] for fault in check_includes.check_tree(Path(folder))]

    def test_names_of_a_header_that_is_not_included_are_caught(self):
        self.assertEqual(self.faults("int limit = kLimit;\nEngine* engine;\n"), [
            "Engine is in src/engine.h, which is not included", "kLimit is in src/engine.h, which is not included"])

    def test_names_of_a_header_included_directly_or_indirectly_pass(self):
        self.assertEqual(self.faults('#include "src/engine.h"\nEngine engine;\nstd::vector<int> v;\n'), [])
        self.assertEqual(self.faults('#include "src/all.h"\nEngine engine;\n',
                                     **{"all.h": '#pragma once\n#include "src/engine.h"\n'}), [])

    def test_standard_library_name_without_its_header_is_caught(self):
        self.assertEqual(self.faults("std::optional<int> none;\n"), ["std::optional needs <optional>"])

    def test_names_in_comments_strings_declarations_and_other_namespaces_are_ignored(self):
        self.assertEqual(self.faults("// Engine and std::optional\nconst char* text = \"Engine std::map\";\n"
                                     "struct Engine;\nother::Engine* one;\n"), [])


if __name__ == "__main__":
    unittest.main()
