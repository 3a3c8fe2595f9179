#!/usr/bin/env python3
"""check_units.py finds cycles, large classes and friends, and accepts a tree without them."""

import tempfile
import unittest
from pathlib import Path

import check_units


class CheckUnits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def problems(self):
        return check_units.check(self.root)[0]

    def problems_but_for(self, large):
        return check_units.check(self.root, large)[0]

    def chain(self, count):
        """|count| units in a circle, each through its source."""
        for i in range(count):
            self.write(f"src/core/u{i}.h", "#pragma once\n")
            self.write(f"src/core/u{i}.cc", f'#include "src/core/u{i}.h"\n#include "src/core/u{(i + 1) % count}.h"\n')

    def test_small_cycle_passes(self):
        self.chain(check_units.MAX_CYCLE)
        self.assertEqual(self.problems(), [])

    def test_large_cycle_is_caught(self):
        self.chain(check_units.MAX_CYCLE + 1)
        self.assertRegex(self.problems()[0], f"a cycle of {check_units.MAX_CYCLE + 1} units")

    def tower(self, floors):
        """Units of a room, each on top of the one before, and one of another room below them."""
        self.write("src/base/ground.h", "#pragma once\n")
        for i in range(floors):
            below = f"src/core/f{i - 1}.h" if i > 0 else "src/base/ground.h"
            self.write(f"src/core/f{i}.h", f'#pragma once\n#include "{below}"\n')

    def test_dependency_depth_at_the_limit_passes(self):
        self.tower(check_units.MAX_FLOORS)
        self.assertEqual(self.problems(), [])

    def test_dependency_depth_above_the_limit_is_caught(self):
        self.tower(check_units.MAX_FLOORS + 1)
        top = check_units.MAX_FLOORS
        self.assertEqual(self.problems(), [f"src/core/f{top} stands on floor {top + 1} of its room (at most {top})"])

    def test_source_belongs_to_the_longest_matching_header(self):
        self.write("src/a.h", "")
        self.write("src/a_b.h", "")
        self.write("src/a_b_c.cc", "")
        self.write("src/a_d.cc", "")
        units = check_units.units_of(self.root)
        self.assertEqual(units["src/a_b_c.cc"], "src/a_b")
        self.assertEqual(units["src/a_d.cc"], "src/a")

    def large_class(self, members, methods):
        body = "".join(f"  int m{i}_ = 0;\n" for i in range(members))
        body += "".join(f"  int f{i}(int a, int b) const {{ return a + b; }}\n" for i in range(methods))
        self.write("src/core/large.h", f"class Large final : public Base {{\n public:\n{body}}};\n")

    def test_class_at_the_limit_passes(self):
        self.large_class(check_units.MAX_MEMBERS, check_units.MAX_METHODS)
        self.assertEqual(self.problems(), [])

    def test_class_with_too_many_members_is_caught(self):
        self.large_class(check_units.MAX_MEMBERS + 1, 1)
        self.assertRegex(self.problems()[0], "src/core/large:Large has 26 members and 1 methods")

    def test_class_with_too_many_methods_is_caught(self):
        self.large_class(1, check_units.MAX_METHODS + 1)
        self.assertRegex(self.problems()[0], "src/core/large:Large has 1 members and 46 methods")

    def test_listed_class_passes_until_its_figures_change(self):
        self.large_class(30, 50)
        self.assertEqual(self.problems_but_for({"src/core/large:Large": (30, 50)}), [])
        for other in ((31, 50), (30, 49)):
            self.assertRegex(self.problems_but_for({"src/core/large:Large": other})[0], "LARGE_CLASSES says")

    def test_listed_class_that_is_small_or_missing_is_caught(self):
        self.large_class(3, 4)
        self.assertRegex(self.problems_but_for({"src/core/large:Large": (30, 50)})[0], "still lists")
        self.assertRegex(self.problems_but_for({"src/core/other:Other": (30, 50)})[0], "which is gone")

    def test_aliases_and_constants_are_not_counted(self):
        members, methods = check_units.sizes("""
         public:
          using Alias = int;
          static constexpr int kBound = 4;
          enum class Kind : uint8_t { kA, kB };
          struct Nested { int a; int b(); };
          Large(const Large&) = delete;
          Large() : a_(1) { go(); }
          std::function<void(int)> callback_;
          std::array<int, 3> list_{};
          Nested nested_{1, 2};
          template <typename T> T get() const { return T{}; }
          virtual void pure() = 0;
          int a_, b_ = 2;
        """)
        self.assertEqual((members, methods), (5, 3))

    def test_friend_from_another_unit_is_caught(self):
        self.write("src/core/a.h", "class A {\n  friend class B;\n};\n")
        self.write("src/core/b.h", "class B {\n};\n")
        self.assertRegex(self.problems()[0], "a friend from another unit: src/core/a:A B")


if __name__ == "__main__":
    unittest.main()
