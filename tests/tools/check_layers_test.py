#!/usr/bin/env python3
"""Proves that check_layers.py lets good trees pass and catches each kind of violation."""

import tempfile
import unittest
from pathlib import Path

import check_layers

# A tree in which every include is allowed.
GOOD = {
    "include/hetcomm/status.h": "#include <stdint.h>\n",
    "include/hetcomm/hetcomm.h": '#include <hetcomm/status.h>\nextern "C" {\n}\n',
    "src/base/status.h": "#include <string>\n#include <hetcomm/status.h>\n",
    "src/net/poller.cc": '#include <sys/epoll.h>\n#include <openssl/hmac.h>\n#include "src/base/status.h"\n',
    "src/bootstrap/bootstrap.h": '#include "src/base/status.h"\n',
    "src/bootstrap/store.h": '#include "src/bootstrap/bootstrap.h"\n',
    "devices/device.h": '#include "src/base/status.h"\n',
    "devices/registry.h": '#include "devices/device.h"\n',
    "devices/cuda/driver.cc": '#include <cuda.h>\n#include "devices/device.h"\n',
    "transports/transport.h": '#include "devices/device.h"\n',
    "transports/tcp/tcp.h": '#include "transports/transport.h"\n',
    "transports/tcp/tcp.cc": '#include "transports/tcp/tcp.h"\n',
    "transports/shm/shm.h": '#include "transports/transport.h"\n',
    "src/core/job/core.h": '#include "transports/transport.h"\n#include "src/bootstrap/bootstrap.h"\n',
    "reshard/move_plan.h": '#include "src/base/status.h"\n',
    "src/reshard/execution.cc": '#include "src/core/job/core.h"\n#include "reshard/move_plan.h"\n',
    "src/capi/context.cc": '#include "src/core/job/core.h"\n#include "transports/tcp/tcp.h"\nextern "C" {}\n',
    "src/mpi/mpi.cc": "#include <mpi.h>\n#include <hetcomm/hetcomm.h>\n",
    "bench/main.cc": "#include <CLI/CLI.hpp>\n#include <hetcomm/hetcomm.h>\n",
    "tests/unit/core/core_test.cc": '#include <gtest/gtest.h>\n#include "src/core/job/core.h"\n',
}


class CheckLayersTest(unittest.TestCase):
    def check(self, **extra):
        """The violations of the good tree with |extra| files, given as {path: text}."""
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**GOOD, **extra}.items():
                file = Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            count, violations = check_layers.check_tree(folder)
            self.assertEqual(count, len({**GOOD, **extra}))
            return [str(violation) for violation in violations]

    def assert_caught(self, path, text, expected):
        violations = self.check(**{path: text})
        self.assertEqual(len(violations), 1, violations)
        self.assertIn(path, violations[0])
        self.assertIn(expected, violations[0])

    def test_forward_declaration_upwards_is_caught(self):
        violations = self.check(**{"src/net/a.h": "class Core;\n",
                                   "src/core/job/core.h": "class Core final : public Other {\n};\n"})
        self.assertEqual(len(violations), 1, violations)
        self.assertIn("src/net/a.h", violations[0])
        self.assertIn("must not name Core of src/core/job/core.h", violations[0])

    def test_forward_declaration_downwards_passes(self):
        self.assertEqual(self.check(**{"src/net/poller.h": "class Poller {\n};\n",
                                       "src/core/job/a.h": "class Poller;\n"}), [])

    def test_good_tree_passes(self):
        self.assertEqual(self.check(), [])

    def test_base_must_not_see_core(self):
        self.assert_caught("src/system/log.cc", '#include "src/core/job/core.h"\n', "src/system/ must not")

    def test_core_must_not_name_a_transport(self):
        self.assert_caught("src/core/job/a.cc", '#include "transports/tcp/tcp.h"\n', "src/core/job/ must not")

    def test_core_must_see_only_the_bootstrap_interface(self):
        self.assert_caught("src/core/job/a.cc", '#include "src/bootstrap/store.h"\n', "src/core/job/ must not")

    def test_transports_must_not_see_each_other(self):
        self.assert_caught(
            "transports/tcp/a.cc", '#include "transports/shm/shm.h"\n', "transports/tcp/ must not")

    def test_transport_must_not_see_core(self):
        self.assert_caught("transports/shm/a.cc", '#include "src/core/job/core.h"\n', "must not include")

    def test_core_must_not_see_the_registries(self):
        self.assert_caught("src/core/job/a.cc", '#include "devices/registry.h"\n', "src/core/job/ must not")

    def test_core_must_not_include_mpi(self):
        self.assert_caught("src/core/job/a.cc", "#include <hetcomm/mpi.h>\n", "src/mpi/")

    def test_planning_must_not_see_core(self):
        self.assert_caught("reshard/move_plan.cc", '#include "src/core/job/core.h"\n', "reshard/ must not")

    def test_bench_must_see_only_the_public_api(self):
        self.assert_caught("bench/a.cc", '#include "src/base/status.h"\n', "bench/ must not")

    def test_capi_tests_must_see_only_the_public_api(self):
        self.assert_caught("tests/capi/a.cc", '#include "src/core/job/core.h"\n', "tests/capi/ must not")

    def test_vendor_header_outside_its_device_is_caught(self):
        self.assert_caught("src/core/job/a.cc", "#include <cuda_runtime.h>\n", "devices/cuda/ only")

    def test_vendor_header_in_another_device_is_caught(self):
        self.assert_caught("devices/host/a.cc", "#include <CL/cl.h>\n", "devices/opencl/ only")

    def test_header_of_an_unknown_library_is_caught(self):
        self.assert_caught("src/core/job/a.cc", "#include <vendor_magic.h>\n", "no known header")

    def test_extern_c_outside_the_c_abi_is_caught(self):
        self.assert_caught("src/core/job/a.cc", 'int a;\nextern "C" int b();\n', "src/core/job/a.cc:2")

    def test_relative_include_is_caught(self):
        self.assert_caught("transports/tcp/a.cc", '#include "tcp.h"\n', "from the repository's root")

    def test_file_outside_all_layers_is_caught(self):
        self.assert_caught("stray/a.cc", "int a;\n", "belongs to no layer")

    def test_includes_in_comments_are_ignored(self):
        text = '// #include <cuda.h>\n/*\n#include "src/core/job/core.h"\nextern "C" */ int a;\n'
        self.assertEqual(self.check(**{"src/base/a.cc": text}), [])


if __name__ == "__main__":
    unittest.main()
