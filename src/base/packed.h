// Packs similar numbers and texts, for descriptions of many ranks. As in bytes.h, readers treat
// their input as hostile: after the first failure they return 0 or an empty list, and
// ByteReader::failed() returns true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/bytes.h"

namespace hetcomm {

// Writes a number with seven bits per byte, the lowest first, so that small numbers take one byte.
void write_packed(ByteWriter& writer, uint64_t value);
// Reads a number. Fails the reader if the number is longer than 64 bits.
uint64_t read_packed(ByteReader& reader);

// Writes |values| in the shorter of two forms: one by one, or as runs. A run is a count, a first
// number and a step, for numbers that repeat or change evenly.
void write_column(ByteWriter& writer, const std::vector<uint32_t>& values);
// Reads |count| numbers, each below |end|.
std::vector<uint32_t> read_column(ByteReader& reader, size_t count, uint32_t end);

// Writes each text as the number of leading bytes it shares with the previous text, and the rest. A
// short text that differs from the previous one only in its last letter takes two bytes.
void write_texts(ByteWriter& writer, const std::vector<std::string>& texts);
// Limits on what read_texts() accepts.
struct TextLimits {
  size_t count = 0;
  size_t bytes_each = 0;
  // The limit on all texts together. Without it, few bytes could encode many long texts, because a
  // text may repeat the one before.
  size_t bytes_all = SIZE_MAX;
};
std::vector<std::string> read_texts(ByteReader& reader, const TextLimits& limits);

}  // namespace hetcomm
