"""examples/weight_sync.py: after each step the engine has the weights of the trainer, bit for bit,
although its layout and types differ and its weights are fused.
"""

import os
import pathlib
import subprocess
import sys
import unittest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "weight_sync.py"


class WeightSync(unittest.TestCase):
    def test_engine_has_the_trainers_weights_after_each_step(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        environment = dict(os.environ, HETCOMM_SECRET="the secret of this test", USE_LIBUV="0")
        done = subprocess.run(
            [*command, "--nproc-per-node", "8", EXAMPLE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertEqual(done.stdout.count(", 0 differ"), 3, done.stdout)


if __name__ == "__main__":
    unittest.main()
