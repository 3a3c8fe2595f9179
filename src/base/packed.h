// Packing of numbers and texts that resemble each other, for descriptions of many ranks. As in
// bytes.h, readers treat their input as hostile: after the first failure everything read is empty,
// and ByteReader::failed() tells so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/bytes.h"

namespace hetcomm {

// Seven bits in a byte, the lowest first: small numbers take one byte.
void write_packed(ByteWriter& writer, uint64_t value);
// Fails the reader if a number is longer than 64 bits.
uint64_t read_packed(ByteReader& reader);

// Numbers that repeat, or grow or fall evenly, are written as runs: how many there are, the first,
// and the step between them. Others are written one by one, where that is shorter.
void write_column(ByteWriter& writer, const std::vector<uint32_t>& values);
// Reads |count| numbers, each below |end|.
std::vector<uint32_t> read_column(ByteReader& reader, size_t count, uint32_t end);

// Each text is written as the number of leading bytes it shares with the previous text, and the
// rest. A short text that differs from the previous one in a letter takes two bytes.
void write_texts(ByteWriter& writer, const std::vector<std::string>& texts);
// Limits on the texts that are read.
struct TextLimits {
  size_t count = 0;
  size_t bytes_each = 0;
  size_t bytes_all = SIZE_MAX;  // a few bytes can encode long texts with shared prefixes
};
std::vector<std::string> read_texts(ByteReader& reader, const TextLimits& limits);

}  // namespace hetcomm
