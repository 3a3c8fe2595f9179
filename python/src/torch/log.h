// Writes to PyTorch's log from functions that must not throw.
#pragma once

#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>
#include <exception>

namespace hetcomm::torch_backend {

// Writes |parts| as one line. Writes nothing if memory runs out.
template <typename... Parts>
void log_warning(const Parts&... parts) noexcept {
  try {
    LOG(WARNING) << "hetcomm: " << c10::str(parts...);
  } catch (...) {  // out of memory
  }
}

// Logs that |what| failed with the current exception. Must be called in a catch block.
inline void log_thrown(const char* what) noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& error) {
      LOG(ERROR) << "hetcomm: " << what << " failed: " << error.what();
    } catch (...) {
      LOG(ERROR) << "hetcomm: " << what << " failed";
    }
  } catch (...) {  // out of memory
  }
}

}  // namespace hetcomm::torch_backend
