#include "src/wall/wall.h"

#include <new>

namespace hetcomm::capi {
namespace {

thread_local std::string last_error;  // NOLINT(cert-err58-cpp)

}  // namespace

hetcomm_status_t fail(Code code, std::string_view text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hetcomm_status_t>(code);
}

hetcomm_status_t report_exception(const std::exception* exception) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(exception) != nullptr) {
    return fail(Code::kOutOfMemory, "memory is exhausted");
  }
  return fail(Code::kInternal, exception != nullptr ? exception->what() : "unknown exception");
}

const char* last_error_text() noexcept { return last_error.c_str(); }

}  // namespace hetcomm::capi
