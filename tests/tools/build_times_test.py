#!/usr/bin/env python3
"""build_times.py counts each command once, takes the last time of an output, and sums by folder."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import build_times

LOG = """# ninja log v5
0\t2500\t1\tsrc/core/CMakeFiles/hetcomm_core.dir/job.cc.o\taa
100\t600\t1\tsrc/core/CMakeFiles/hetcomm_core.dir/team.cc.o\tbb
600\t1600\t1\tlib/libhetcomm.so.0\tcc
600\t1600\t1\tlib/libhetcomm.so\tcc
3000\t4000\t2\tsrc/core/CMakeFiles/hetcomm_core.dir/job.cc.o\tdd
"""


class BuildTimesTest(unittest.TestCase):
    def test_rebuilt_output_uses_its_latest_time(self):
        times = build_times.read_log(LOG)
        self.assertEqual(times["src/core/CMakeFiles/hetcomm_core.dir/job.cc.o"], 1.0)

    def test_command_with_two_outputs_counts_once(self):
        times = build_times.read_log(LOG)
        self.assertEqual([o for o in times if o.startswith("lib/")], ["lib/libhetcomm.so"])

    def test_times_are_summed_by_folder_with_the_largest_sum_first(self):
        sums = build_times.sums_by_folder(build_times.read_log(LOG))
        self.assertEqual(sums, [(1.5, 2, "src/core"), (1.0, 1, "lib")])

    def test_all_files_are_written_and_the_slowest_are_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ".ninja_log").write_text(LOG)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = build_times.main([folder, "--top", "1"])
            written = (Path(folder) / "times.txt").read_text().splitlines()
        self.assertEqual(status, 0)
        self.assertEqual(len(written), 3)
        self.assertIn(written[0], output.getvalue())
        self.assertNotIn("team.cc.o", output.getvalue())

    def test_missing_log_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(build_times.main([folder]), 1)
        self.assertIn(".ninja_log is missing", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
