#include "src/capi/guard.h"

#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace hetcomm::capi {
namespace {

thread_local std::string last_error;       // NOLINT(cert-err58-cpp)
thread_local std::string completion_text;  // NOLINT(cert-err58-cpp)

}  // namespace

hetcomm_status_t fail(Code code, std::string_view text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hetcomm_status_t>(code);
}

const char* keep_text(const std::string& text) noexcept {
  try {
    completion_text = text;
  } catch (...) {
    completion_text.clear();
  }
  return completion_text.c_str();
}

hetcomm_status_t report_exception(const std::exception* exception) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(exception) != nullptr) {
    return fail(Code::kOutOfMemory, "memory is exhausted");
  }
  return fail(Code::kInternal, exception != nullptr ? exception->what() : "unknown exception");
}

void quarantine(void* memory, size_t size) noexcept {
  constexpr size_t kMaxKept = 4096;
  static std::mutex mutex;
  static std::array<void*, kMaxKept> kept{};
  static size_t next = 0;
  std::memset(memory, 0xdd, size);
  const std::lock_guard lock(mutex);
  std::swap(kept[next], memory);
  next = (next + 1) % kMaxKept;
  ::operator delete(memory);
}

const char* last_error_text() noexcept { return last_error.c_str(); }

}  // namespace hetcomm::capi

extern "C" const char* hetcomm_last_error(void) noexcept {
  return hetcomm::capi::last_error_text();
}
