// Runs the suite for all devices on torch's devices: here the stand-in for an accelerator, or the
// device that HETCOMM_TEST_TORCH_DEVICE names, such as cuda:0.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/unit/device/fixture.h"

namespace hetcomm {

std::vector<std::string> kinds_to_test() {
  const char* const name = std::getenv("HETCOMM_TEST_TORCH_DEVICE");
  return {std::string("torch:") + (name != nullptr ? name : "privateuseone:0")};
}

}  // namespace hetcomm
