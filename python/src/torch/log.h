// Writes to torch's log from places that no exception may leave.
#pragma once

#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>
#include <exception>

namespace hetcomm::torch_backend {

// Writes nothing if there is no memory for a line.
template <typename... Parts>
void log_warning(const Parts&... parts) noexcept {
  try {
    LOG(WARNING) << "hetcomm: " << c10::str(parts...);
  } catch (...) {  // no memory
  }
}

// Logs that |what| failed with the current exception. It is called in a handler.
inline void log_thrown(const char* what) noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& error) {
      LOG(ERROR) << "hetcomm: " << what << " failed: " << error.what();
    } catch (...) {
      LOG(ERROR) << "hetcomm: " << what << " failed";
    }
  } catch (...) {  // no memory
  }
}

}  // namespace hetcomm::torch_backend
