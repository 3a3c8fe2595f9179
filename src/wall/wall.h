// Every entry point of a C ABI uses this wall. The wall catches all exceptions, stores the calling
// thread's error text, reads options and writes texts. Each shared library has its own copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include <hetcomm/status.h>

#include "src/base/status.h"

namespace hetcomm::capi {

// Sets the calling thread's error text and returns the code.
hetcomm_status_t fail(Code code, std::string_view text) noexcept;
inline hetcomm_status_t fail(const Status& status) noexcept {
  return fail(status.code(), status.text());
}
const char* last_error_text() noexcept;
hetcomm_status_t report_exception(const std::exception* exception) noexcept;

// Runs |body|, which returns a Status. Returns its code, and sets the error text if it fails.
// Catches all exceptions.
template <typename Body>
hetcomm_status_t guard(Body&& body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? HETCOMM_OK : fail(status);
  } catch (const std::exception& exception) {
    return report_exception(&exception);
  } catch (...) {
    return report_exception(nullptr);
  }
}

inline Status null_argument(const char* name) {
  return Status(Code::kInvalidArgument, std::string(name) + " is null");
}
#define HETCOMM_REQUIRE(argument)                                                \
  do {                                                                           \
    if ((argument) == nullptr) return ::hetcomm::capi::null_argument(#argument); \
  } while (false)

// Copies an option struct of any version of the library. Fields that |given| lacks are zero in
// |options|, and so are all fields if |given| is null. Fields that this library does not have must
// be zero in |given|.
template <typename Options>
Status read_options(const Options* given, Options* options) {
  std::memset(options, 0, sizeof(*options));
  options->struct_size = sizeof(*options);
  if (given == nullptr) return {};
  constexpr size_t kMax = 4096;
  const size_t size = given->struct_size;
  if (size < sizeof(size_t) || size > kMax) {
    return Status(Code::kInvalidArgument, size == 0
                                              ? "options: struct_size is not set"
                                              : "options: struct_size is " + std::to_string(size) +
                                                    ", which is not the size of the struct");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(*options); i < size; ++i) {
    if (bytes[i] != 0) {
      return Status(Code::kUnsupported, "options: a field that this library does not know is set");
    }
  }
  std::memcpy(options, given, size < sizeof(*options) ? size : sizeof(*options));
  options->struct_size = sizeof(*options);
  return {};
}

// Writes as much of |text| as fits in |capacity| bytes with a terminating NUL. |*out_size| receives
// the size of the whole text, including the NUL. |out_text| may be null only if |capacity| is 0.
inline Status write_text(std::string_view text, size_t capacity, char* out_text, size_t* out_size) {
  if (capacity > 0 && out_text == nullptr) {
    return {Code::kInvalidArgument, "out_text is NULL and capacity is not 0"};
  }
  if (out_size == nullptr) return {Code::kInvalidArgument, "out_size is NULL"};
  if (capacity > 0) {
    const size_t size = std::min(text.size(), capacity - 1);
    std::memcpy(out_text, text.data(), size);
    out_text[size] = '\0';
  }
  *out_size = text.size() + 1;
  return {};
}

}  // namespace hetcomm::capi
