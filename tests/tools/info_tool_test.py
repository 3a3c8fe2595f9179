#!/usr/bin/env python3
"""Runs hetcomm_info as its users do.

Properties: a call without arguments prints a page that begins with the transports and omits the table
of variables, and every section can be requested; a mistyped word is answered with the nearest one;
every numeric variable states its unit and range, and every choice its values; a missing transport is
refused when it is set; NIC names without a match give a warning; every rank has its own log file;
errors state time limits as they were set; explain says for every transport of the build why it is or is
not used; the ranks of a launcher form one job, whose rank 0 prints for all; a missing rank gives one
error and no output; topology draws this machine and those of files, and its JSON gives the same drawing
again; a file that is unusable, or contradicts this machine, is named with the reason; a schedule is
made, read, checked, simulated, lowered and drawn from the command line.

Usage: info_tool_test.py PATH_OF_HETCOMM_INFO [unittest options]
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

INFO = ""
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE",
                      "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")


def mpi_options():
    """Open MPI refuses more ranks than cores unless it is told."""
    if not shutil.which("mpirun"):
        return []
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    return ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in version else []


MPI_OPTIONS = mpi_options()


def info(*words, **added):
    clean = {k: v for k, v in os.environ.items()
             if k not in LAUNCHER_VARIABLES and not k.startswith("HETCOMM_")}
    return subprocess.run([INFO, *words], capture_output=True, text=True, timeout=100,
                          env={**clean, **added})


class Page(unittest.TestCase):
    def test_page_begins_with_transports_and_lists_only_variables_that_are_set(self):
        result = info(HETCOMM_RAILS="3")
        self.assertEqual(result.returncode, 0, result.stderr)
        titles = [line for line in result.stdout.splitlines() if line and line[0] != " "]
        self.assertEqual(titles[:4], ["transports", "devices",
                                      "variables that are not at their default", "library"])
        rows = [line.split() for line in result.stdout.splitlines()]
        self.assertIn(["HETCOMM_RAILS", "4", "3"], rows)
        self.assertNotIn("HETCOMM_TIMEOUT", result.stdout)
        self.assertLess(len(rows), 40)  # a page
        self.assertIn("none", info().stdout)

    def test_every_section_can_be_requested(self):
        for words, expected in ((("--variables",), "HETCOMM_TIMEOUT "),
                                (("--devices", "--variables"), "host memory"),
                                (("--version",), "hetcomm ")):
            with self.subTest(words):
                self.assertIn(expected, info(*words).stdout)
        everything = json.loads(info("--format", "json").stdout)
        for section in ("version", "abi_version", "build", "variables", "devices", "transports"):
            self.assertTrue(everything[section] or section == "abi_version", section)

    def test_typo_suggests_the_nearest_word(self):
        for words, told in ((("explian",), "did you mean 'explain'?"),
                            (("--transport",), "did you mean '--transports'?"),
                            (("explain", "--pere", "1"), "did you mean '--peer'?"),
                            (("--peer", "1"), "does not go with this command")):
            with self.subTest(words):
                result = info(*words)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertIn(told, result.stderr)
        self.assertNotIn("did you mean", info("xyzzy").stderr)


class Variables(unittest.TestCase):
    def test_variable_descriptions_give_values_and_ranges(self):
        listed = json.loads(info("--variables", "--format", "json").stdout)["variables"]
        meaning = {row["name"]: row["meaning"] for row in listed}
        self.assertIn("caller|thread", meaning["HETCOMM_PROGRESS"])
        self.assertIn("500ms", meaning["HETCOMM_TIMEOUT"])
        self.assertIn("64K to 1G", meaning["HETCOMM_SHM_RING_BYTES"])
        self.assertIn("0 to 255", meaning["HETCOMM_RDMA_TRAFFIC_CLASS"])

    def test_error_for_an_invalid_value_lists_the_accepted_ones(self):
        for value, told in (("HETCOMM_TIMEOUT=abc", "500ms"), ("HETCOMM_RAILS=0", "1 to 64"),
                            ("HETCOMM_TRANSPORTS=shmm", "self, shm, rdma, tcp")):
            with self.subTest(value):
                name, text = value.split("=")
                result = info("--transports", **{name: text})
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(name, result.stderr)
                self.assertIn(told, result.stderr)


class Transports(unittest.TestCase):
    def test_blanks_in_a_list_of_transports_are_ignored(self):
        self.assertEqual(info("--transports", HETCOMM_TRANSPORTS="shm, tcp").returncode, 0)

    def test_usable_transport_states_what_was_found(self):
        listed = json.loads(info("--transports", "--format", "json").stdout)["transports"]
        reason = {row["name"]: row["reason"] for row in listed}
        self.assertEqual(set(reason), {"self", "shm", "rdma", "tcp"})
        self.assertNotIn("success", reason["self"])
        self.assertNotIn(":0,", reason["tcp"] + ",")


class LogFiles(unittest.TestCase):
    def test_every_rank_writes_its_own_log_file(self):
        with tempfile.TemporaryDirectory() as folder:
            result = info("explain", HETCOMM_LOG="info", HETCOMM_LOG_FILE=f"{folder}/%r.log")
            self.assertEqual(result.returncode, 0, result.stderr)
            logs = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(set(logs), {"0.log", "1.log"})
        self.assertIn("store: rank 0 listens", logs["0.log"])  # before the rank is anybody's
        self.assertNotIn("store: rank 0 listens", logs["1.log"])
        self.assertNotIn("store: rank 0 listens", result.stderr)

    def test_unknown_placeholder_is_refused(self):
        result = info(HETCOMM_LOG_FILE="/tmp/%d.log")
        self.assertEqual(result.returncode, 1)
        self.assertIn("'%d'", result.stderr)
        self.assertIn("%r the rank", result.stderr)


class Names(unittest.TestCase):
    def test_interface_name_without_a_match_gives_one_warning(self):
        result = info("--devices", HETCOMM_INTERFACE="lo,eht9", HETCOMM_RDMA_NIC="mlx9_0")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stderr.splitlines()
        self.assertEqual(len([line for line in lines if "'eht9'" in line]), 1, result.stderr)
        self.assertIn("lo (127.0.0.1)", result.stderr)
        self.assertEqual(len([line for line in lines if "HETCOMM_RDMA_NIC" in line]), 1,
                         result.stderr)
        self.assertEqual(info("--devices", HETCOMM_INTERFACE="lo").stderr, "")


class TimeLimits(unittest.TestCase):
    def test_error_states_the_time_limit_that_was_set(self):
        for rank, told in (("0", "rank 1 of 2 did not join within 1.5 s"),
                           ("1", "rank 0's store was not found within 1.5 s")):
            with self.subTest(rank), socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
                probe.close()
                result = info("explain", RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=port, HETCOMM_BOOTSTRAP_TIMEOUT="1500ms")
                self.assertEqual(result.returncode, 1)
                self.assertIn(told, result.stderr)


class Explain(unittest.TestCase):
    def test_explain_names_every_transport(self):
        for added in ({}, {"HETCOMM_TRANSPORTS": "tcp"}):
            with self.subTest(added):
                result = info("explain", **added)
                self.assertEqual(result.returncode, 0, result.stderr)
                for transport in ("shm", "rdma", "tcp"):
                    self.assertEqual(result.stdout.count(f"\n    {transport} "), 2, result.stdout)
                    self.assertNotIn(f"no: {transport}:", result.stdout)
                self.assertEqual(result.stdout.count("to rank 1:"), 1, result.stdout)

    def test_ranks_of_a_launcher_form_one_job(self):
        def explain(*words):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            ranks = [subprocess.Popen(
                [INFO, "explain", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                                "HETCOMM_SECRET": "the secret of this test"})
                     for rank in range(3)]
            outputs = [rank.communicate(timeout=100) for rank in ranks]
            return [rank.returncode for rank in ranks], outputs

        status, outputs = explain("--format", "json")
        self.assertEqual(status, [0, 0, 0], outputs)
        self.assertEqual([out for out, _ in outputs[1:]], ["", ""])
        views = json.loads(outputs[0][0])
        self.assertEqual([(view["rank"], view["size"]) for view in views],
                         [(0, 3), (1, 3), (2, 3)])
        for view in views:
            self.assertEqual([peer["rank"] for peer in view["peers"]],
                             [rank for rank in range(3) if rank != view["rank"]])
        status, outputs = explain("--peer", "3")
        self.assertEqual(status, [2, 2, 2], outputs)
        self.assertEqual("".join(errors for _, errors in outputs).count("rank 3"), 1, outputs)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun in PATH")
    def test_ranks_of_mpirun_form_one_job(self):
        with open(INFO, "rb") as program:
            text = program.read()
        if b"__asan_init" in text or b"__tsan_init" in text:
            self.skipTest("sanitizers report what MPI itself does")
        clean = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        result = subprocess.run(
            ["mpirun", *MPI_OPTIONS, "-n", "2", INFO, "explain"], capture_output=True, text=True,
            timeout=100, env={**clean, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.assertEqual(result.returncode, 0, result.stderr)
        told = [line for line in result.stdout.splitlines() if line.startswith("rank ")]
        self.assertEqual([line.split(" on ")[0] for line in told], ["rank 0 of 2", "rank 1 of 2"])

    def test_pairings_are_listed_for_a_device(self):
        machine = str(MACHINES / "eight_nics.xml")
        added = {"HETCOMM_TOPOLOGY": machine, "HETCOMM_TOPOLOGY_TRUST": "on",
                 "HETCOMM_DEVICES": "sim-handle:pci=0000:13:00.0:latency=1us"}
        result = info("explain", "--device", "1", "--format", "json", **added)
        self.assertEqual(result.returncode, 0, result.stderr)
        first = json.loads(result.stdout)[0]["peers"][0]
        self.assertEqual((first["device"], first["rank"]), (1, 1))
        self.assertEqual({pairing["transport"] for pairing in first["pairings"]} & {"shm", "tcp"}, {"shm", "tcp"})
        for pairing in first["pairings"]:
            self.assertTrue(pairing["verdict"], pairing)
        # This host has none of the machine's NICs, so that no transport is bound to one.
        self.assertEqual(len(first["idle_nics"]), 8)
        self.assertTrue(all(nic["why"] for nic in first["idle_nics"]))
        text = info("explain", "--device", "1", "--peer", "1", **added).stdout
        self.assertIn("for data of device 1", text)
        self.assertIn("verdict", text)

    def test_device_states_its_nearest_numa_node(self):
        added = {"HETCOMM_TOPOLOGY": str(MACHINES / "four_nics.xml"), "HETCOMM_TOPOLOGY_TRUST": "on"}
        near = []
        for node in (0, 1):
            devices = {"HETCOMM_DEVICES": f"sim-handle:node={node}"}
            listed = json.loads(info("--devices", "--format", "json", **devices).stdout)["devices"]
            self.assertEqual([device["numa_node"] for device in listed], [-1, node])
            result = info("explain", "--device", "1", "--format", "json", **added, **devices)
            idle = json.loads(result.stdout)[0]["peers"][0]["idle_nics"]
            near.append({nic["nic"] for nic in idle if nic["distance"] == "NUMA node"})
        self.assertTrue(near[0] and near[1], near)
        self.assertFalse(near[0] & near[1], near)
        self.assertIn("NUMA NODE", info("--devices").stdout)

    def test_missing_device_gives_one_error(self):
        result = info("explain", "--device", "7")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("device 7"), 1, result.stderr)

    def test_missing_rank_gives_one_error(self):
        result = info("explain", "--peer", "5")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("rank 5"), 1, result.stderr)

    def test_invalid_value_gives_one_error(self):
        result = info("explain", HETCOMM_RAILS="0")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


MACHINES = pathlib.Path(__file__).resolve().parent.parent / "machines"


class Topology(unittest.TestCase):
    def drawn(self, *words, **added):
        result = info("topology", *words, **added)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_drawing_of_this_machine_has_tree_matrix_and_legend(self):
        text = self.drawn()
        self.assertTrue(text.startswith("this host\n"), text)
        self.assertTrue("PIX " in text or "no network interface" in text, text)
        self.assertEqual(json.loads(self.drawn("--format", "json"))["format"], "hetcomm topology")

    def test_matrix_names_the_nic_that_each_accelerator_uses(self):
        text = self.drawn("--file", str(MACHINES / "four_nics.xml"))
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(("acc", "numa"))}
        self.assertEqual(rows["acc0"], ["PIX*", "NODE", "SYS", "SYS", "SYS"])
        self.assertEqual(rows["acc3"], ["NODE", "PIX*", "SYS", "SYS", "SYS"])
        self.assertEqual(rows["numa1"], ["SYS", "SYS", "NODE*", "NODE", "NODE"])
        self.assertIn("nic4 eno1, 10 Gbit/s, up, 192.168.0.0/24", text)

    def test_json_copy_of_a_machine_gives_the_same_drawing(self):
        with tempfile.TemporaryDirectory() as folder:
            for machine in sorted(MACHINES.glob("*.xml")):
                path = pathlib.Path(folder) / "copy.json"
                path.write_text(self.drawn("--file", str(machine), "--format", "json"))
                self.assertEqual(self.drawn("--file", str(path)), self.drawn("--file", str(machine)), machine)

    def test_named_nic_sets_the_interface_variables(self):
        usable = [nic for nic in json.loads(self.drawn("--format", "json")).get("nics", [])
                  if nic["state"] == "up" and "interface" in nic]
        if not usable:
            self.skipTest("this host has no interface that is up")
        name = usable[0]["interface"]
        result = info("--variables", "--format", "json", HETCOMM_NIC=name)
        self.assertEqual(result.returncode, 0, result.stderr)
        values = {each["name"]: each["value"] for each in json.loads(result.stdout)["variables"]}
        self.assertEqual(values["HETCOMM_INTERFACE"], name)
        self.assertNotEqual(values["HETCOMM_RDMA_NIC"], "")
        result = info("--variables", "--format", "json", HETCOMM_NIC=name, HETCOMM_INTERFACE="lo")
        values = {each["name"]: each["value"] for each in json.loads(result.stdout)["variables"]}
        self.assertEqual(values["HETCOMM_INTERFACE"], "lo")

    def test_missing_nic_is_refused_when_a_context_is_created(self):
        result = info(HETCOMM_NIC="mlx5_99")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no NIC is called 'mlx5_99'; this host has", result.stderr)

    def test_fabrics_are_shown_and_unknown_nics_are_refused(self):
        file = str(MACHINES / "four_nics.xml")
        text = self.drawn("--file", file, HETCOMM_FABRIC="mlx5_0=rail0,eno1=storage")
        self.assertIn("192.168.0.0/24, fabric storage", text)
        result = info("topology", "--file", file, HETCOMM_FABRIC="mlx5_9=rail0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("HETCOMM_FABRIC: no NIC is called 'mlx5_9'; this host has", result.stderr)
        self.assertEqual(info(HETCOMM_FABRIC="mlx5_9=rail0").returncode, 1)

    def test_device_with_an_address_counts_as_an_accelerator(self):
        # One that the tree does not show, and one that is an accelerator already.
        text = self.drawn("--file", str(MACHINES / "one_nic.xml"),
                          HETCOMM_DEVICES="sim-handle:pci=0000:61:00.1:latency=2us,sim-handle:pci=0000:13:00.0")
        self.assertIn("acc4 0000:61:00.1 ", text)
        self.assertEqual(sum(line.startswith("acc") for line in text.splitlines()), 9)

    def test_picture_is_xml_with_a_box_for_each_object(self):
        picture = xml.etree.ElementTree.fromstring(
            self.drawn("--file", str(MACHINES / "eight_nics.xml"), "--format", "svg"))
        titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(sum(title.startswith("acc") for title in titles), 8)
        self.assertEqual(sum(title.startswith("nic") for title in titles), 8)
        self.assertEqual(len(list(picture.iter("{http://www.w3.org/2000/svg}path"))), 8)

    def test_rules_in_the_environment_are_applied(self):
        text = self.drawn("--file", str(MACHINES / "four_nics.xml"), HETCOMM_NIC="^mlx5_0|acc1=eno1")
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("acc")}
        self.assertEqual(rows["acc0"][:2], ["-", "NODE*"])
        self.assertEqual(rows["acc1"], ["-", "-", "-", "-", "SYS*"])

    def test_file_name_can_contain_special_characters(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a; b=c.xml"
            shutil.copy(MACHINES / "four_nics.xml", path)
            self.assertEqual(self.drawn("--file", str(path)).count("acc1"), self.drawn("--file", str(MACHINES / "four_nics.xml")).count("acc1"))

    def test_error_names_an_unusable_rule_or_file(self):
        for nic, reason in (("mlx5_9", "no NIC is called 'mlx5_9'; this host has mlx5_0:1"),
                            ("^*", "no NIC is left that is up"), ("gpu0=mlx5_0", "'gpu0' is no accelerator")):
            result = info("topology", "--file", str(MACHINES / "four_nics.xml"), HETCOMM_NIC=nic)
            self.assertEqual(result.returncode, 1)
            self.assertIn(reason, result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "machine.json"
            for text, reason in (("{", "line 1"), ('{"format": "hetcomm topology", "version": 9}', "version is 9"),
                                 (None, "No such file")):
                path.unlink(missing_ok=True)
                if text:
                    path.write_text(text)
                result = info("topology", "--file", str(path))
                self.assertEqual(result.returncode, 1)
                self.assertIn(str(path), result.stderr)
                self.assertIn(reason, result.stderr)

    def test_file_that_contradicts_this_machine_is_not_used(self):
        path = str(MACHINES / "eight_nics.xml")
        result = info("topology", HETCOMM_TOPOLOGY=path)
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.startswith("this host\n"))
        self.assertIn(f"{path} is not used: it has NIC mlx5_0:1, which this host lacks", result.stderr)
        trusted = info("topology", HETCOMM_TOPOLOGY=path, HETCOMM_TOPOLOGY_TRUST="on")
        self.assertIn("acc7", trusted.stdout)
        self.assertEqual(trusted.stderr, "")


class Schedule(unittest.TestCase):
    WORDS = ("schedule", "h-1f1b", "--ranks", "4", "--micro-batches", "16", "--forward", "10ms",
             "--boundary", "1=5ms+20ms")

    def answer(self, *words):
        result = info(*words)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def refusal(self, *words):
        result = info(*words)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def test_forecast_states_the_cost_of_the_slow_link(self):
        hidden = self.answer(*self.WORDS)
        self.assertIn("iteration: 620.000 ms", hidden)
        shown = self.answer("schedule", "1f1b", *self.WORDS[2:])
        self.assertIn("iteration: 970.000 ms", shown)
        self.assertIn("41.2 % between stages 1 and 2", shown)
        forecast = json.loads(self.answer(*self.WORDS, "--format", "json"))["forecast"]
        self.assertEqual(forecast["total_ns"], 620_000_000)

    def test_schedule_is_written_as_svg_trace_and_csv(self):
        picture = xml.etree.ElementTree.fromstring(self.answer(*self.WORDS, "--format", "svg"))
        titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(sum(" on rank " in title for title in titles), 4 * 32)
        trace = json.loads(self.answer(*self.WORDS, "--format", "trace"))
        self.assertEqual(sum(event["ph"] == "X" for event in trace["traceEvents"]), 4 * 32)
        self.assertEqual(self.answer("schedule", "1f1b", "--ranks", "2", "--micro-batches", "2",
                                     "--format", "csv"),
                         "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")

    def test_schedules_and_questions_are_read_from_files(self):
        with tempfile.TemporaryDirectory() as folder:
            csv = pathlib.Path(folder, "schedule.csv")
            csv.write_text("0F0,0B0\n1F0,1B0\n")
            self.assertIn("2 ranks, 2 stages, 1 micro-batches", self.answer("schedule", str(csv)))
            self.assertEqual(
                self.answer("schedule", str(csv), "--level", "transfers", "--receives-ahead", "0",
                            "--format", "csv"),
                "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
            question = pathlib.Path(folder, "question.json")
            question.write_text('{"format": "hetcomm schedule question", "version": 1,\n"schedule": 3}')
            self.assertIn("schedule is no object", self.refusal("schedule", str(question)))
            self.assertIn("cannot be read", self.refusal("schedule", f"{folder}/none.csv"))

    def test_arranged_schedule_under_a_memory_limit_is_faster_than_zb_h1(self):
        words = ("--ranks", "4", "--micro-batches", "8", "--forward", "10ms", "--boundary",
                 "1=1ms+30ms", "--memory-limit", "4", "--format", "json")
        known = json.loads(self.answer("schedule", "zb-h1", *words))
        found = json.loads(self.answer("schedule", "arranged", *words, "--effort", "1000000"))
        self.assertLess(found["forecast"]["total_ns"], known["forecast"]["total_ns"])
        self.assertLessEqual(max(found["peaks"]), 4)

    def test_gradient_reductions_follow_the_routes_of_a_file(self):
        words = ("schedule", "1f1b", "--ranks", "2", "--micro-batches", "4", "--forward", "10ms")
        plain = json.loads(self.answer(*words, "--format", "json"))["forecast"]["total_ns"]
        with tempfile.TemporaryDirectory() as folder:
            routes = pathlib.Path(folder, "routes.json")
            hops = [{"busy_ns": 7_000_000, "latency_ns": 1_000_000, "resources": ["wan"]}]
            routes.write_text(json.dumps([{"reduce": [0], "hops": hops}]))
            told = json.loads(self.answer(*words, "--routes", str(routes), "--reductions", "--format", "json"))
            self.assertEqual(told["forecast"]["total_ns"], plain + 8_000_000)
            self.assertEqual(told["forecast"]["resources"], [{"name": "wan", "busy_ns": 7_000_000}])
            self.assertIn("wan: busy 7.000 ms", self.answer(*words, "--routes", str(routes), "--reductions"))
            self.assertIn("stage 0 has no REDUCE_GRAD", self.refusal(*words, "--routes", str(routes)))
            routes.write_text("{}")
            self.assertIn("is no JSON list of routes", self.refusal(*words, "--routes", str(routes)))

    def test_send_waits_are_placed_as_requested(self):
        words = ("schedule", "1f1b", "--ranks", "2", "--micro-batches", "2", "--format", "csv")
        told = self.answer(*words, "--level", "waits", "--send-waits", "at_once")
        self.assertIn("0SEND_F0,0WAIT_SEND_F0", told)
        self.assertNotIn("0SEND_F0,0WAIT_SEND_F0", self.answer(*words, "--level", "waits", "--send-buffers", "2"))
        self.assertIn("need --level", self.refusal(*words, "--send-waits", "at_once"))

    def test_pipeline_plans_are_checked(self):
        plans = pathlib.Path(__file__).parent.parent / "unit" / "pipeline" / "plans"
        told = self.answer("schedule", str(plans / "good" / "two_stages.json"))
        self.assertIn("pipeline plan", told)
        self.assertIn("in flight", told)
        outline = json.loads(self.answer("schedule", str(plans / "good" / "two_pipelines.json"), "--format", "json"))
        self.assertEqual(len(outline["pipelines"]), 2)
        self.assertIn("action 4: 0B1 is there twice", self.refusal("schedule", str(plans / "bad" / "action_twice.json")))

    def write_traces(self, folder, cells, late_ns):
        """Traces of two ranks; the second one's steps come |late_ns| later than they could. A cell is an action
        and the milliseconds at which it starts and ends."""
        files = []
        for rank, steps in enumerate(cells):
            document = {"format": "hetcomm pipeline trace", "version": 1, "rank": rank, "pipeline": 0, "group": rank,
                        "training_step": 0, "evaluation": False, "total_ns": 70_000_000,
                        "steps": [{"action": action, "start_ns": start * 1_000_000 + rank * late_ns,
                                   "end_ns": end * 1_000_000 + rank * late_ns, "data_wait_ns": 1, "room_wait_ns": 0}
                                  for action, start, end in steps]}
            files.append(pathlib.Path(folder, f"rank{rank}.json"))
            files[-1].write_text(json.dumps(document))
        return ",".join(map(str, files))

    def test_traces_of_a_run_are_compared_with_the_forecast(self):
        # Transfers take 5 ms, and the second rank's clock is 7 ms ahead.
        cells = [[("0F0", 0, 10), ("0F1", 10, 20), ("0B0", 50, 70), ("0B1", 80, 100)],
                 [("1F0", 15, 25), ("1B0", 25, 45), ("1F1", 45, 55), ("1B1", 55, 75)]]
        with tempfile.TemporaryDirectory() as folder:
            csv = pathlib.Path(folder, "schedule.csv")
            csv.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
            words = ("schedule", str(csv), "--traces", self.write_traces(folder, cells, 7_000_000))
            told = json.loads(self.answer(*words, "--format", "json"))
            self.assertEqual(told["run"]["transfer_ns"], [5_000_000])
            self.assertEqual(told["run"]["replayed_ns"], told["forecast"]["total_ns"])
            self.assertEqual([stage["forward_ns"] for stage in told["run"]["stages"]], [10_000_000] * 2)
            self.assertIn("as run", self.answer(*words, "--format", "svg"))
            self.assertIn("of now", self.answer(*words))
            self.assertNotIn("zb-h1", self.answer(*words))
            self.assertIn("zb-h1", self.answer(*words, "--may-split"))
            known = ("--forward", "10ms", "--backward", "20ms", "--boundary", "0=0ms+5ms")
            self.assertIn("no time is more than 10 % away", self.answer(*words, *known))
            moved = ("--forward", "8ms", "--backward", "20ms", "--boundary", "0=0ms+5ms")
            self.assertIn("forward of stage 1 was 8.000 ms, and is 10.000 ms now", self.answer(*words, *moved))
            csv.write_text("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n")
            self.assertIn("rank 0 performed 0F1 where the schedule has 0B0", self.refusal(*words))
            csv.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
            self.assertIn("is no JSON document", self.refusal(*words[:3], str(csv)))
            self.assertIn("cannot be read", self.refusal(*words[:3], f"{folder}/none.json"))
            self.assertIn("--may-split needs --traces", self.refusal(*words[:2], "--may-split"))

    def test_traces_of_a_plan_are_matched_to_its_pipeline(self):
        plans = pathlib.Path(__file__).parent.parent / "unit" / "pipeline" / "plans" / "good"
        plan = json.loads((plans / "two_stages.json").read_text())
        outline = json.loads(self.answer("schedule", str(plans / "two_stages.json"), "--format", "json"))
        cells = [[(cell, 10 * i, 10 * i + 5) for i, cell in enumerate(actions)]
                 for actions in outline["pipelines"][0]["actions"]]
        with tempfile.TemporaryDirectory() as folder:
            words = ("schedule", str(plans / "two_stages.json"), "--traces", self.write_traces(folder, cells, 0))
            told = json.loads(self.answer(*words, "--format", "json"))
            self.assertEqual(len(told["run"]["stages"]), len(plan["pipelines"][0]["stages"]))
            trace = pathlib.Path(folder, "rank0.json")
            trace.write_text(trace.read_text().replace('"pipeline": 0', '"pipeline": 1'))
            self.assertIn("of no pipeline of the plan", self.refusal(*words))

    def forecast_ns(self, plan, *words):
        """Returns how long |plan|, a document, takes by the times in |words|."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            path.write_text(json.dumps(plan))
            told = json.loads(self.answer("schedule", str(path), *words, "--format", "json"))
            return told["forecast"]["total_ns"]

    def test_plan_is_simulated_with_given_times(self):
        plans = pathlib.Path(__file__).parent.parent / "unit" / "pipeline" / "plans" / "good"
        plan = json.loads((plans / "two_stages.json").read_text())
        near, far = ("--forward", "10ms"), ("--forward", "10ms", "--boundary", "0=1ms+30ms")
        self.assertGreater(self.forecast_ns(plan, *far), self.forecast_ns(plan, *near) + 30_000_000)
        # As few items in flight as the plan says: more would hide a part of the latency.
        totals = []
        for limit in (1, 16):
            plan["pipelines"][0]["boundaries"][0]["in_flight"] = limit
            totals.append(self.forecast_ns(plan, *far))
        self.assertGreater(totals[0], totals[1])
        self.assertIn("--pipeline needs a pipeline plan",
                      self.refusal("schedule", str(plans / "two_stages.json"), "--pipeline", "0"))
        self.assertIn("--pipeline needs a pipeline plan", self.refusal(*self.WORDS, "--pipeline", "0"))
        # Limits are those of their boundaries, in whatever order the plan has them.
        times = (*far, "--boundary", "1=0ms+1ms")
        plan = json.loads((plans / "hidden_transfers.json").read_text())
        boundaries = plan["pipelines"][0]["boundaries"]
        for boundary, limit in zip(boundaries, (1, 16)):
            boundary["in_flight"] = limit
        total = self.forecast_ns(plan, *times)
        boundaries.reverse()
        self.assertEqual(self.forecast_ns(plan, *times), total)
        self.answer("schedule", str(plans / "skipped_stage.json"), *times, "--format", "json")
        both = ("schedule", str(plans / "two_pipelines.json"), "--forward", "10ms", "--format", "json")
        for number in ("0", "1"):
            self.assertGreater(json.loads(self.answer(*both, "--pipeline", number))["forecast"]["total_ns"], 0)
        self.assertIn("the plan has 2 pipelines, and none is 2", self.refusal(*both, "--pipeline", "2"))

    def test_plan_with_the_proposed_schedule_is_printed(self):
        plans = pathlib.Path(__file__).parent.parent / "unit" / "pipeline" / "plans" / "good"
        plan = json.loads((plans / "two_stages.json").read_text())
        plan["pipelines"][0]["schedule"] = {"name": "1f1b"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            path.write_text(json.dumps(plan))
            outline = json.loads(self.answer("schedule", str(path), "--format", "json"))
            cells = [[(cell, 20 * i, 20 * i + (20 if "B" in cell else 10)) for i, cell in enumerate(actions)]
                     for actions in outline["pipelines"][0]["actions"]]
            words = ("schedule", str(path), "--traces", self.write_traces(folder, cells, 0), "--format")
            answer = json.loads(self.answer(*words, "json", "--may-split"))
            proposal = answer["proposal"]
            # One more than the simulation needs.
            self.assertEqual(proposal["in_flight"], [each + 1 for each in answer["candidates"][0]["in_flight"]])
            better = pathlib.Path(folder, "better.json")
            better.write_text(self.answer(*words, "plan", "--may-split"))
            changed = json.loads(better.read_text())["pipelines"][0]
            self.assertEqual(changed["schedule"], proposal["schedule"])
            self.assertEqual(changed["boundaries"][0]["in_flight"], proposal["in_flight"][0])
            self.assertIn("pipeline plan", self.answer("schedule", str(better)))
            self.assertIn("needs a pipeline plan and --traces", self.refusal("schedule", str(path), "--format", "plan"))
            self.assertIn("needs a pipeline plan and --traces", self.refusal(*self.WORDS, "--format", "plan"))
            self.assertIn("does not go with --traces", self.refusal(*words, "json", "--pipeline", "0"))
            self.assertIn("plan.json is no trace of a pipeline", self.refusal("schedule", str(path), "--traces", str(path)))

    def test_plan_is_simulated_over_a_link_model(self):
        plans = pathlib.Path(__file__).parent.parent / "unit" / "pipeline" / "plans" / "good"
        plan = json.loads((plans / "two_pipelines.json").read_text())
        labels = sorted({rank["host"] for rank in plan["ranks"]})
        links = {
            "format": "hetcomm link model", "version": 1, "source": "a test",
            "resources": [{"name": "switch", "kind": "trunk", "bytes_per_s": 1_000_000_000}],
            "clusters": [{"name": "x"}], "hosts": [{"label": label, "cluster": "x", "nics": [{"out": [], "in": []}]} for label in labels],
            "paths": [{"from": "x", "to": "x", "latency_ns": 1000, "resources": ["switch"]}],
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "links.json")
            path.write_text(json.dumps(links))
            words = ("schedule", str(plans / "two_pipelines.json"), "--links", str(path))
            text = self.answer(*words, "--forward", "10ms", "--gradient-bytes", "1MiB")
            self.assertIn("2 pipelines", text)
            self.assertIn("switch: busy", text)
            self.assertIn("reduction of stages", text)
            total = lambda *more: json.loads(self.answer(*words, "--forward", "10ms", "--format", "json", *more))["forecast"]["total_ns"]
            self.assertGreater(total("--gradient-bytes", "64MiB"), total())
            self.assertIn("<svg", self.answer(*words, "--forward", "10ms", "--format", "svg"))
            self.assertIn("traceEvents", self.answer(*words, "--forward", "10ms", "--format", "trace"))
            for more, told in (((), "--links needs a pipeline plan and --forward"),
                               (("--forward", "1ms,2ms,3ms,4ms,5ms,6ms,7ms,8ms,9ms"), "times of 9 stages are given, and the plan has"),
                               (("--forward", "10ms", "--boundary", "0=1ms"), "beside --links"),
                               (("--forward", "10ms", "--gradient-bytes", "1,2"), "--gradient-bytes has 2 sizes"),
                               (("--forward", "10ms", "--nics", "none"), "nics has 1 elements"),
                               (("--forward", "10ms", "--ranks", "2"), "do not go with a file")):
                self.assertIn(told, self.refusal(*words, *more))
            self.assertIn("need --links", self.refusal(*self.WORDS, "--gradient-bytes", "1"))
            question = pathlib.Path(folder, "question.json")
            question.write_text(json.dumps({
                "format": "hetcomm forecast question", "version": 1, "plan": plan, "links": {"model": links},
                "times": {"stages": [{"forward_ns": 10_000_000, "backward_ns": 20_000_000}]}}))
            told = json.loads(self.answer("schedule", str(question), "--format", "json"))
            self.assertEqual(told["forecast"]["total_ns"], total())

    def test_deadlocked_schedule_is_explained(self):
        with tempfile.TemporaryDirectory() as folder:
            csv = pathlib.Path(folder, "schedule.csv")
            csv.write_text("0F0,0B0\n1B0,1F0\n")
            self.assertIn("rank 0 waits at 0B0 for 1B0 of rank 1", self.refusal("schedule", str(csv)))

    def test_errors_name_invalid_schedule_arguments(self):
        for words, told in (
            (("1f1c", "--ranks", "2", "--micro-batches", "2"), "did you mean '1f1b'?"),
            (("1f1b", "--ranks", "2"), "needs --ranks and --micro-batches"),
            (("1f1b", "--ranks", "2", "--micro-batches", "2", "--forward", "3"), "'3' is no time such as 12.5ms"),
            (("1f1b", "--ranks", "2", "--micro-batches", "2", "--forward", "1ms", "--boundary", "x"),
             "--boundary x is not of the form"),
            (("1f1b", "--ranks", "2", "--micro-batches", "2", "--forward", "1ms", "--boundary", "1=1ms"),
             "name one after stage 1, and there is none"),
            (("1f1b", "--ranks", "2", "--micro-batches", "2", "--backward", "1ms"), "need --forward"),
            (("1f1b", "--ranks", "2", "--micro-batches", "4", "--memory-limit", "1"),
             "rank 0 holds up to 2 in 0F1, and 1 is its limit"),
            (("arranged", "--ranks", "2", "--micro-batches", "2", "--forward", "1ms"),
             "arranged needs --forward and --memory-limit"),
            (("h-1f1b", "--ranks", "2", "--micro-batches", "2"), "h-1f1b needs --forward"),
            (("1f1b", "--rank", "2"), "did you mean '--ranks'?"),
            ((), "schedule takes a name"),
        ):
            with self.subTest(words):
                self.assertIn(told, self.refusal("schedule", *words))


if __name__ == "__main__":
    INFO = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
