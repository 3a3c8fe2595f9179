#!/usr/bin/env python3
"""Proves that sample.py finds each block of comments once, whole, and draws the same for the same seed."""

import unittest

import sample

C = '''// SPDX-License-Identifier: MIT
// The first block
// has two lines.
int a = 1'000;  // trailing
const char* text = "// a literal";
const char* raw = R"(// and
// raw)";
/* A block
 * of C. */
int b;
  // indented

// apart
}  // namespace x
'''
PYTHON = '''#!/usr/bin/env python3
"""Docstring
of two lines."""
# a comment
# of two lines
x = "# a literal"  # trailing


def f():
    """Does something."""
    return """no docstring"""
'''


class Blocks(unittest.TestCase):
    def found(self, find, text):
        lines = text.split("\n")
        return ["\n".join(lines[first:last + 1]).strip() for first, last in find(text)]

    def test_comment_blocks_of_c_are_found(self):
        self.assertEqual(self.found(sample.comments_of_c, C), [
            "// The first block\n// has two lines.", "int a = 1'000;  // trailing", "/* A block\n * of C. */",
            "// indented", "// apart"])

    def test_comment_blocks_of_python_are_found(self):
        self.assertEqual(self.found(sample.comments_of_python, PYTHON), [
            '"""Docstring\nof two lines."""', "# a comment\n# of two lines", 'x = "# a literal"  # trailing',
            '"""Does something."""'])

    def test_names_of_tests_are_found(self):
        text = "int a;\nTEST_P(Over, GivesTheResult) {\n}\n    def test_something(self):\n"
        self.assertEqual(self.found(lambda t: sample.tests_of(None, t), text),
                         ["TEST_P(Over, GivesTheResult) {", "def test_something(self):"])

    def test_same_seed_draws_the_same_sample(self):
        def drawn(seed):
            return [(path, first) for path, _, first, _ in sample.draw(sample.comments_of, ("src/base",), 10, seed)]
        self.assertEqual(drawn("1"), drawn("1"))
        self.assertNotEqual(drawn("1"), drawn("2"))


if __name__ == "__main__":
    unittest.main()
