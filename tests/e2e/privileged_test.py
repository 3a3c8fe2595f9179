"""A program that has more rights than its caller (setuid, file capabilities; needs root).

Proves: it loads no library and writes no file that its caller names by variables, and warns once with
their names; variables about trust end the creation of a context with PERMISSION_DENIED; the program's
own settings apply; if its owner starts it, all variables apply.

privileged_test.py LIBRARY INCLUDE CC: libhetcomm.so, the public headers, a C compiler.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77
STRANGER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PROGRAM = r"""
#include <stdio.h>
#include <sys/auxv.h>
#include <hetcomm/hetcomm.h>
int main(int argc, char** argv) {
  hetcomm_context_options_t options = {.struct_size = sizeof(options)};
  options.settings = argc > 1 ? argv[1] : NULL;
  hetcomm_context_t* context = NULL;
  const hetcomm_status_t status = hetcomm_context_create(&options, &context);
  printf("privileged %d, %s %s\n", getauxval(AT_SECURE) != 0, hetcomm_status_name(status),
         status == HETCOMM_OK ? "" : hetcomm_last_error());
  return 0;
}
"""
PLUGIN = r"""
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fprintf(stderr, "the plug-in's code runs\n"); }
"""


class PrivilegedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        library, include, compiler = sys.argv[1:4]
        cls.folder = Path(tempfile.mkdtemp(prefix="hetcomm-privileged-"))
        cls.folder.chmod(0o755)
        lib = cls.folder / "lib"
        lib.mkdir()
        shutil.copy(os.path.realpath(library), lib / "libhetcomm.so.0")
        (lib / "libhetcomm.so").symlink_to("libhetcomm.so.0")
        cls.program = cls.folder / "program"
        (cls.folder / "program.c").write_text(PROGRAM)
        (cls.folder / "plugin.c").write_text(PLUGIN)
        cls.plugin = cls.folder / "plugin.so"
        # The loader resolves no $ORIGIN for such a program.
        subprocess.run([compiler, cls.folder / "program.c", "-I", include, f"-L{lib}", "-lhetcomm",
                        f"-Wl,-rpath,{lib}", "-o", cls.program], check=True)
        subprocess.run([compiler, "-shared", "-fPIC", cls.folder / "plugin.c", "-o", cls.plugin], check=True)
        cls.program.chmod(0o4755)
        # A folder in which anybody may make files.
        cls.open_folder = cls.folder / "open"
        cls.open_folder.mkdir()
        cls.open_folder.chmod(0o777)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_program(self, *words, prefix=tuple(STRANGER), **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HETCOMM_")}
        done = subprocess.run([*prefix, str(self.program), *words], env={**environment, **variables}, text=True,
                              check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if prefix and "privileged 1" not in done.stdout:
            print("skipped: this file system has no setuid programs")
            sys.exit(SKIPPED)
        return done.stdout, done.stderr

    def test_variables_that_name_files_and_libraries_are_ignored(self):
        log = self.open_folder / "log"
        output, errors = self.run_program(HETCOMM_DEVICE_PLUGINS=str(self.plugin), HETCOMM_LOG_FILE=str(log),
                                          HETCOMM_LOG="info", HETCOMM_TOPOLOGY="/etc/shadow")
        self.assertIn(", OK", output)
        self.assertNotIn("code runs", errors)
        self.assertFalse(log.exists())
        warnings = [line for line in errors.splitlines() if "are ignored" in line]
        self.assertEqual(len(warnings), 1, errors)
        for name in ("HETCOMM_DEVICE_PLUGINS", "HETCOMM_LOG_FILE", "HETCOMM_TOPOLOGY"):
            self.assertIn(name, warnings[0])
        self.assertNotIn("HETCOMM_LOG,", warnings[0])

    def test_trust_variables_fail_context_creation(self):
        for name, value in (("HETCOMM_SECRET_FILE", "/etc/hostname"), ("HETCOMM_TLS_CERTIFICATE", "/etc/hostname"),
                            ("HETCOMM_TLS_KEY", "/etc/hostname"), ("HETCOMM_TLS_CA", "/etc/hostname"),
                            ("HETCOMM_TLS_SERVER_NAME", "another.host"), ("HETCOMM_SHM_USERS", "any")):
            output, _ = self.run_program(**{name: value})
            self.assertIn("PERMISSION_DENIED", output)
            self.assertIn(name, output)

    def test_settings_of_the_program_are_used(self):
        log = self.open_folder / "own-log"
        output, errors = self.run_program(f"LOG_FILE={log};LOG=info;SECRET_FILE=/etc/hostname",
                                          HETCOMM_LOG_FILE="/nowhere/log", HETCOMM_SECRET_FILE="/nowhere/secret")
        self.assertIn(", OK", output)
        self.assertTrue(log.exists())
        self.assertNotIn("are ignored", errors)

    def test_owner_of_the_program_can_use_all_variables(self):
        _, errors = self.run_program(prefix=(), HETCOMM_DEVICE_PLUGINS=str(self.plugin))
        self.assertIn("code runs", errors)

    def test_file_capabilities_count_as_privileges(self):
        if not shutil.which("setcap"):
            self.skipTest("no setcap")
        self.program.chmod(0o755)
        self.addCleanup(self.program.chmod, 0o4755)
        set_them = subprocess.run(["setcap", "cap_net_raw+ep", str(self.program)], check=False,
                                  stderr=subprocess.DEVNULL)
        if set_them.returncode != 0:
            self.skipTest("this file system has no capabilities")
        self.addCleanup(subprocess.run, ["setcap", "-r", str(self.program)], check=False)
        _, errors = self.run_program(HETCOMM_DEVICE_PLUGINS=str(self.plugin))
        self.assertNotIn("code runs", errors)
        self.assertIn("are ignored", errors)


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        print("skipped: not root, or no setpriv")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
