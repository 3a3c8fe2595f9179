#!/usr/bin/env python3
"""Proves that check_readmes.py lets true tables pass and catches each kind of fault."""

import tempfile
import unittest
from pathlib import Path

import check_readmes

TABLE = "# net\n\n| file | what it holds |\n|---|---|\n"
GOOD = {
    "net/README.md": TABLE + "| `poller.h`, `queue` | both; `note.h` too |\n| `tls/` | all |\n",
    "net/poller.h": "",
    "net/poller.cc": "",
    "net/poller_epoll.cc": "",
    "net/queue.cc": "",
    "net/note.h": "",
    "net/CMakeLists.txt": "",
    "net/tls/session.h": "",
    "net/other/README.md": "No table here.\n",
    "net/other/thing.h": "",
    "net/unnamed/thing.h": "",
}


class CheckReadmesTest(unittest.TestCase):
    def faults(self, changes):
        """The faults of the good tree with |changes|, {path: text or None to leave it out}."""
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**GOOD, **changes}.items():
                if text is None:
                    continue
                file = Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return check_readmes.check_tree(folder)[1]

    def assert_caught(self, changes, expected):
        faults = self.faults(changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(expected, faults[0])

    def test_program_that_differs_from_its_file_is_caught(self):
        text = "This is a whole program ([ring.c](ring.c)).\n\n```c\nint main(void) { return 0; }\n```\n"
        self.assertEqual(self.faults({"README.md": text, "ring.c": "/* Head. */\nint main(void) { return 0; }\n"}), [])
        self.assert_caught({"README.md": text, "ring.c": "int main(void) { return 1; }\n"}, "another one")

    def test_good_tree_passes(self):
        self.assertEqual(self.faults({}), [])

    def test_file_missing_from_the_table_is_caught(self):
        self.assert_caught({"net/new.h": ""}, "net/README.md: new.h is not in the table")

    def test_source_with_its_own_header_needs_its_own_row(self):
        faults = self.faults({"net/poller_epoll.h": ""})
        self.assertEqual([fault.split()[1] for fault in faults],
                         ["poller_epoll.cc", "poller_epoll.h"])

    def test_name_without_a_file_is_caught(self):
        self.assert_caught({"net/queue.cc": None}, "`queue` is no file")

    def test_folder_without_files_is_caught(self):
        self.assert_caught({"net/tls/session.h": None}, "`tls/` is no file")

    def test_unlisted_file_in_a_named_folder_is_caught(self):
        row = "| `unnamed/more.h` | |\n"
        self.assert_caught(
            {"net/README.md": GOOD["net/README.md"] + row, "net/unnamed/more.h": ""},
            "unnamed/thing.h is not in the table")

    def test_pattern_covers_the_files_that_match(self):
        row = "| `unnamed/*.h` | |\n"
        self.assertEqual(self.faults({"net/README.md": GOOD["net/README.md"] + row}), [])

    def test_tables_of_other_things_are_ignored(self):
        text = "\n| variable | meaning |\n|---|---|\n| `HETCOMM_X` | x |\n"
        self.assertEqual(self.faults({"net/README.md": GOOD["net/README.md"] + text}), [])


if __name__ == "__main__":
    unittest.main()
