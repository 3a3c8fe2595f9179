#!/usr/bin/env python3
"""Proves that check_comments.py lets sentences pass and catches each kind of fault."""

import tempfile
import unittest
from pathlib import Path

import check_comments


class CheckCommentsTest(unittest.TestCase):
    def faults(self, text, name="src/net/a.cc"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return check_comments.check_tree(Path(folder))

    def assert_caught(self, text, expected):
        faults = self.faults(text)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(expected, faults[0])

    def test_full_sentences_pass(self):
        self.assertEqual(self.faults("// A sentence names who acts.\nint a;  // of the sender\n"), [])

    def test_long_line_is_caught(self):
        self.assert_caught("// " + "x" * 98 + "\n", "101 columns")

    def test_raw_strings_can_be_long(self):
        self.assertEqual(self.faults('const char* text = R"(\n' + "x" * 200 + '\n)";\n'), [])

    def test_fragments_are_caught(self):
        for begin in ("What a rank sends.", "Of one queue.", "Whoever waits.", "So many bytes."):
            for form in ("// {}\n", "  /* {} */\n", "int a;  // {}\n"):
                self.assert_caught(form.format(begin), "begins with")

    def test_continued_line_can_begin_with_any_word(self):
        self.assertEqual(self.faults("// The sender knows\n// What it does here.\n"), [])

    def test_files_of_other_languages_are_ignored(self):
        self.assertEqual(self.faults("# " + "x" * 200 + "\n", "src/net/a.py"), [])


if __name__ == "__main__":
    unittest.main()
