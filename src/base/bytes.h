// ByteWriter encodes setup data (descriptors, hellos, store messages), and ByteReader decodes it.
// Integers are little-endian, and each string is preceded by its length. The reader does not trust
// its input and never reads past the end. After the first failure every further read fails too, so
// one check at the end is enough.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/span.h"

namespace hetcomm {

class ByteWriter {
 public:
  ByteWriter() = default;
  explicit ByteWriter(std::vector<std::byte> before) : bytes_(std::move(before)) {}

  template <typename T>
  requires std::is_integral_v<T>
  void write(T value) {
    std::array<std::byte, sizeof(T)> raw;
    for (size_t i = 0; i < sizeof(T); ++i) {
      raw[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
    }
    write_raw(raw);
  }
  void write_raw(ConstByteSpan bytes) {
    const size_t before = bytes_.size();
    bytes_.resize(before + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<ptrdiff_t>(before));
  }
  void write_bytes(ConstByteSpan bytes) {
    write(static_cast<uint32_t>(bytes.size()));
    write_raw(bytes);
  }
  void write_string(std::string_view text) { write_bytes(std::as_bytes(std::span(text))); }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(ConstByteSpan bytes) : rest_(bytes) {}

  // Reads an integer. Returns 0 after a failure.
  template <typename T>
  requires std::is_integral_v<T> T read() {
    const ConstByteSpan raw = read_raw(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < raw.size(); ++i) value |= std::to_integer<uint64_t>(raw[i]) << (8 * i);
    return static_cast<T>(value);
  }
  // Reads a length and that many bytes. Fails if the length exceeds |limit|. The result points into
  // the input, and is empty after a failure.
  ConstByteSpan read_bytes(size_t limit) {
    const uint32_t length = read<uint32_t>();
    if (length > limit) {
      fail();
      return {};
    }
    return read_raw(length);
  }
  std::string read_string(size_t limit) {
    const ConstByteSpan bytes = read_bytes(limit);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // Fills |out| from the input. Leaves it unchanged after a failure.
  template <size_t kSize>
  void read_into(std::array<std::byte, kSize>& out) {
    const ConstByteSpan bytes = read_raw(kSize);
    std::copy(bytes.begin(), bytes.end(), out.begin());
  }
  // Reads the number of elements that follow. Each of them takes at least |bytes_each| bytes. Fails
  // if the number exceeds |limit|, or if the rest of the input is too short for that many elements.
  // A caller can therefore reserve memory for the result.
  template <typename T>
  requires std::is_integral_v<T> size_t read_count(size_t limit, size_t bytes_each = 1) {
    return check_count(read<T>(), limit, bytes_each);
  }
  // Returns |count| if it passes the checks of read_count(). Otherwise fails and returns 0.
  size_t check_count(uint64_t count, size_t limit, size_t bytes_each = 1) {
    if (!failed_ && count <= limit && count <= left() / bytes_each) return count;
    fail();
    return 0;
  }
  ConstByteSpan read_raw(size_t length) {
    if (failed_ || rest_.size() < length) {
      fail();
      return {};
    }
    const ConstByteSpan result = rest_.first(length);
    rest_ = rest_.subspan(length);
    return result;
  }

  bool failed() const { return failed_; }
  // Returns whether all reads succeeded and consumed the whole input.
  bool finished() const { return !failed_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }
  // Makes the reader fail. Callers use this when they find an invalid value in the input.
  void fail() {
    failed_ = true;
    rest_ = {};
  }

 private:
  ConstByteSpan rest_;
  bool failed_ = false;
};

}  // namespace hetcomm
