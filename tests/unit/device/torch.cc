// Makes torch devices available to the table's test suite.
#include <exception>
#include <string>
#include <string_view>

#include "devices/device.h"
#include "python/src/torch/device.h"
#include "src/base/status.h"

namespace hetcomm {

Result<Device> create_torch_device(std::string_view name) {
  try {
    return torch_backend::make_device(c10::Device(std::string(name)));
  } catch (const std::exception& error) {
    return Status(Code::kNotFound, error.what());
  }
}

}  // namespace hetcomm
