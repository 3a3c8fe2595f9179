// Compact encodings for lists of similar numbers and texts, used in descriptions of many ranks. As
// in bytes.h, readers do not trust their input. After the first failure they return 0 or an empty
// list, and ByteReader::failed() returns true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/bytes.h"

namespace hetcomm {

// Writes a number with seven bits per byte, lowest bits first. Numbers below 128 take one byte.
void write_packed(ByteWriter& writer, uint64_t value);
// Reads a number. Makes |reader| fail if the number does not fit in 64 bits.
uint64_t read_packed(ByteReader& reader);

// Writes |values| in the shorter of two encodings: one by one, or as runs. A run consists of a
// count, a first number and a step. It encodes numbers that repeat or that change by a constant
// step.
void write_column(ByteWriter& writer, const std::vector<uint32_t>& values);
// Reads |count| numbers. Fails unless each of them is below |end|.
std::vector<uint32_t> read_column(ByteReader& reader, size_t count, uint32_t end);

// Writes each text as the number of leading bytes that it shares with the previous text, followed
// by the remaining bytes. A short text that differs from the previous one only in its last
// character takes two bytes.
void write_texts(ByteWriter& writer, const std::vector<std::string>& texts);
// Limits on what read_texts() accepts.
struct TextLimits {
  size_t count = 0;
  size_t bytes_each = 0;
  // The limit on the total size of all texts. Without it, a few bytes could encode many long texts,
  // because a text can repeat the previous one.
  size_t bytes_all = SIZE_MAX;
};
std::vector<std::string> read_texts(ByteReader& reader, const TextLimits& limits);

}  // namespace hetcomm
