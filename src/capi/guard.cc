#include "src/capi/guard.h"

#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace hetcomm::capi {
namespace {

thread_local std::string completion_text;  // NOLINT(cert-err58-cpp)

}  // namespace

const char* keep_text(const std::string& text) noexcept {
  try {
    completion_text = text;
  } catch (...) {
    completion_text.clear();
  }
  return completion_text.c_str();
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

}  // namespace hetcomm::capi

extern "C" const char* hetcomm_last_error(void) noexcept {
  return hetcomm::capi::last_error_text();
}
