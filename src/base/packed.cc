#include "src/base/packed.h"

#include <algorithm>

namespace hetcomm {
namespace {

constexpr unsigned kBitsOfByte = 7;
constexpr uint8_t kMore = 1U << kBitsOfByte;
// The first byte of a column says which of these two encodings its numbers have.
constexpr uint8_t kRuns = 0;
constexpr uint8_t kPlain = 1;
// An encoded text begins with a byte that holds two 4-bit lengths. A length of 15 or more is stored
// as 15, and the excess over 15 follows.
constexpr uint64_t kLongLength = 15;

// Maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
uint64_t fold(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

int64_t unfold(uint64_t folded) {
  return static_cast<int64_t>(folded >> 1) ^ -static_cast<int64_t>(folded & 1);
}

}  // namespace

void write_packed(ByteWriter& writer, uint64_t value) {
  while (value >= kMore) {
    writer.write(static_cast<uint8_t>(value | kMore));
    value >>= kBitsOfByte;
  }
  writer.write(static_cast<uint8_t>(value));
}

uint64_t read_packed(ByteReader& reader) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += kBitsOfByte) {
    const auto byte = reader.read<uint8_t>();
    const uint64_t bits = byte & (kMore - 1U);
    if ((bits << shift) >> shift != bits) break;
    value |= bits << shift;
    if (byte < kMore) return value;
  }
  reader.fail();
  return 0;
}

namespace {

void write_runs(ByteWriter& writer, const std::vector<uint32_t>& values) {
  for (size_t first = 0; first < values.size();) {
    size_t end = first + 1;
    int64_t step = 0;
    if (end < values.size()) step = int64_t{values[end]} - int64_t{values[first]};
    while (end < values.size() && int64_t{values[end]} - int64_t{values[end - 1]} == step) ++end;
    write_packed(writer, end - first);
    write_packed(writer, values[first]);
    write_packed(writer, fold(end - first > 1 ? step : 0));
    first = end;
  }
}

std::vector<uint32_t> read_runs(ByteReader& reader, size_t count, uint32_t end) {
  std::vector<uint32_t> values;
  while (values.size() < count) {
    const uint64_t run = read_packed(reader);
    const uint64_t first = read_packed(reader);
    const int64_t step = unfold(read_packed(reader));
    const bool sane = run >= 1 && run <= count - values.size() && first < end &&
                      step < int64_t{end} && step > -int64_t{end};
    // If |sane| is true, this computation of the run's last number cannot overflow.
    const int64_t last =
        sane ? static_cast<int64_t>(first) + step * static_cast<int64_t>(run - 1) : -1;
    if (reader.failed() || last < 0 || last >= int64_t{end}) {
      reader.fail();
      return {};
    }
    for (uint64_t i = 0; i < run; ++i) {
      values.push_back(
          static_cast<uint32_t>(static_cast<int64_t>(first) + step * static_cast<int64_t>(i)));
    }
  }
  return values;
}

}  // namespace

void write_column(ByteWriter& writer, const std::vector<uint32_t>& values) {
  ByteWriter runs;
  write_runs(runs, values);
  ByteWriter plain;
  for (const uint32_t value : values) write_packed(plain, value);
  const bool is_even = runs.bytes().size() <= plain.bytes().size();
  writer.write(static_cast<uint8_t>(is_even ? kRuns : kPlain));
  writer.write_raw(is_even ? runs.bytes() : plain.bytes());
}

std::vector<uint32_t> read_column(ByteReader& reader, size_t count, uint32_t end) {
  const auto form = reader.read<uint8_t>();
  if (form == kRuns) return read_runs(reader, count, end);
  std::vector<uint32_t> values;
  while (values.size() < count) {
    const uint64_t value = read_packed(reader);
    if (form != kPlain || value >= end) reader.fail();
    if (reader.failed()) return {};
    values.push_back(static_cast<uint32_t>(value));
  }
  return values;
}

void write_texts(ByteWriter& writer, const std::vector<std::string>& texts) {
  write_packed(writer, texts.size());
  std::string_view before;
  for (const std::string& text : texts) {
    const auto differ = std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first;
    const auto same = static_cast<size_t>(differ - before.begin());
    const size_t rest = text.size() - same;
    writer.write(static_cast<uint8_t>(std::min<uint64_t>(same, kLongLength) << 4 |
                                      std::min<uint64_t>(rest, kLongLength)));
    if (same >= kLongLength) write_packed(writer, same - kLongLength);
    if (rest >= kLongLength) write_packed(writer, rest - kLongLength);
    writer.write_raw(std::as_bytes(std::span(text)).subspan(same));
    before = text;
  }
}

std::vector<std::string> read_texts(ByteReader& reader, const TextLimits& limits) {
  const size_t count = reader.check_count(read_packed(reader), limits.count);
  const size_t longest = limits.bytes_each;
  size_t bytes_left = limits.bytes_all;
  std::vector<std::string> texts;
  while (!reader.failed() && texts.size() < count) {
    std::string text = texts.empty() ? std::string() : texts.back();
    const auto lengths = reader.read<uint8_t>();
    uint64_t same = lengths >> 4;
    uint64_t rest = lengths & kLongLength;
    if (same == kLongLength) same += std::min<uint64_t>(read_packed(reader), longest);
    if (rest == kLongLength) rest += std::min<uint64_t>(read_packed(reader), longest);
    if (same > text.size() || same + rest > std::min(longest, bytes_left)) {
      reader.fail();
      break;
    }
    bytes_left -= same + rest;
    text.resize(same);
    const ConstByteSpan bytes = reader.read_raw(rest);
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    texts.push_back(std::move(text));
  }
  if (reader.failed()) texts.clear();
  return texts;
}

}  // namespace hetcomm
